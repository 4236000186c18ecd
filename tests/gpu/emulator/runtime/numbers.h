// Arithmetic on raw bits, as the sections on arithmetic, logic and conversion of the PTX ISA define it.
// .approx instructions are computed exactly here; hardware may differ by an ulp or two.
#ifndef NUMBERS_H
#define NUMBERS_H

static inline float f32_of(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline u32 bits_f32(float f) { u32 bits; memcpy(&bits, &f, 4); return bits; }
static inline double f64_of(u64 bits) { double f; memcpy(&f, &bits, 8); return f; }
static inline u64 bits_f64(double f) { u64 bits; memcpy(&bits, &f, 8); return bits; }
static inline double f16_of(u16 bits) { _Float16 h; memcpy(&h, &bits, 2); return (double)(float)h; }
static inline double bf16_of(u16 bits) { return (double)f32_of((u32)bits << 16); }

// The neighbour of x with an odd last bit where x is not exact: rounding that once more to fewer bits is as rounding once.
static inline double to_odd(double x, double error) {
    if (error == 0 || isnan(error) || isinf(x) || (bits_f64(x) & 1)) return x;
    return nextafter(x, error > 0 ? INFINITY : -INFINITY);
}
static inline double sum_odd(double a, double b) {   // a + b with the error of Knuth's two-sum
    double s = a + b, back = s - a;
    return to_odd(s, (a - (s - back)) + (b - back));
}
static inline float f32_odd(double x) {
    float f = (float)x;
    if (isnan(x) || isinf(f) || (double)f == x || (bits_f32(f) & 1)) return f;
    return nextafterf(f, x > f ? INFINITY : -INFINITY);
}
static inline u16 bits_f16(double x) {
    if (isnan(x)) return 0x7fff;
    _Float16 h = (_Float16)x; u16 bits; memcpy(&bits, &h, 2); return bits;
}
static inline u16 bits_bf16(double x) {
    if (isnan(x)) return 0x7fff;
    float rounded = (float)x;                       // f32_odd stops at the largest float32, this does not
    u32 bits = bits_f32(isinf(rounded) ? rounded : f32_odd(x));
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline u16 bits_f16_rz(double x) {
    u16 bits = bits_f16(x);
    if (!isnan(x) && fabs(f16_of(bits)) > fabs(x)) bits--;   // one nearer to zero; from infinity to the largest number
    return bits;
}
static inline u16 bits_bf16_rz(double x) {
    u16 bits = bits_bf16(x);
    if (!isnan(x) && fabs(bf16_of(bits)) > fabs(x)) bits--;
    return bits;
}
static inline u32 bits_f32_rz(double x) {
    u32 bits = bits_f32((float)x);
    if (!isnan(x) && fabs((double)f32_of(bits)) > fabs(x)) bits--;
    return bits;
}
static inline u32 bits_f32_rm(double x) {
    float f = (float)x;
    return bits_f32(f > x ? nextafterf(f, -INFINITY) : f);
}
static inline u32 bits_f32_rp(double x) {
    float f = (float)x;
    return bits_f32(f < x ? nextafterf(f, INFINITY) : f);
}
static inline u32 bits_tf32(float x, int ties_away) {
    u32 bits = bits_f32(x);
    if (isnan(x) || isinf(x)) return bits;
    return (bits + (ties_away ? 0x1000u : 0xfffu + (bits >> 13 & 1))) & ~0x1fffu;
}

// Eight-bit and smaller floats (PTX ISA, Alternate Floating-Point Data Formats).
static inline double small_float(u32 bits, int exponent_bits, int mantissa_bits) {
    int sign = bits >> (exponent_bits + mantissa_bits) & 1, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
    double scale = 1 << mantissa_bits;
    double x = exponent ? ldexp(1 + mantissa / scale, exponent - bias) : ldexp(mantissa / scale, 1 - bias);
    return sign ? -x : x;
}
static inline double e4m3_of(u8 bits) { return (bits & 0x7f) == 0x7f ? NAN : small_float(bits, 4, 3); }
static inline double e5m2_of(u8 bits) {
    if ((bits & 0x7c) == 0x7c) return bits & 3 ? NAN : bits & 0x80 ? -INFINITY : INFINITY;
    return small_float(bits, 5, 2);
}
static inline double e2m1_of(u8 bits) { return small_float(bits & 15, 2, 1); }
// .rn.satfinite: to nearest, ties to even, and what is too large to the largest
static inline u32 small_bits(double x, int exponent_bits, int mantissa_bits, double largest) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    u32 sign = (u32)!!signbit(x) << (exponent_bits + mantissa_bits);
    x = fmin(fabs(x), largest);
    frexp(x, &exponent);
    exponent = x == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    u32 steps = (u32)rint(ldexp(x, mantissa_bits - exponent));   // of the last place at that exponent
    return sign | (steps + ((u32)(exponent + bias - 1) << mantissa_bits));
}
static inline u8 bits_e4m3(double x) { return isnan(x) ? 0x7f : small_bits(x, 4, 3, 448); }
static inline u8 bits_e5m2(double x) { return isnan(x) ? 0x7f : small_bits(x, 5, 2, 57344); }
static inline u8 bits_e2m1(double x) { return isnan(x) ? 0x7 : small_bits(x, 2, 1, 6); }

static inline u32 flush(u32 bits) { return (bits & 0x7f800000) ? bits : bits & 0x80000000; }   // .ftz
static inline float saturated(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }                 // NaN becomes 0
static inline double saturated_f64(double x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
static inline double minimum(double a, double b) {
    if (isnan(a) || isnan(b)) return isnan(a) ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}
static inline double maximum(double a, double b) {
    if (isnan(a) || isnan(b)) return isnan(a) ? b : a;
    return a > b || (a == b && signbit(b)) ? a : b;
}
static inline double minimum_nan(double a, double b) { return isnan(a) || isnan(b) ? NAN : minimum(a, b); }
static inline double maximum_nan(double a, double b) { return isnan(a) || isnan(b) ? NAN : maximum(a, b); }
static inline float product_sum(float a, float b, float c) { return fmaf(a, b, c); }

// Floats to integers clamp; NaN is 0 up to 32 bits, and the sign bit alone in 64.
static inline u64 integer_of(double x, int bits, int is_signed) {
    if (isnan(x)) return bits == 64 ? 1ull << 63 : 0;
    double high = ldexp(1, is_signed ? bits - 1 : bits), low = is_signed ? -high : 0;
    if (x >= high) return is_signed ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
    if (x <= low) return is_signed ? (u64)-1 << (bits - 1) : 0;
    return is_signed ? (u64)(s64)x : (u64)x;
}
static inline s64 clamped(s64 x, s64 low, s64 high) { return x < low ? low : x > high ? high : x; }

// Division by zero is unspecified in PTX; it is all ones here. The other trap of the host is the least number by -1.
#define DIVISION(bits) \
    static inline u##bits divide_u##bits(u##bits a, u##bits b) { return b ? a / b : (u##bits)~0ull; } \
    static inline u##bits remainder_u##bits(u##bits a, u##bits b) { return b ? a % b : a; } \
    static inline u##bits divide_s##bits(u##bits a, u##bits b) { \
        return b ? b == (u##bits)~0ull ? (u##bits)-a : (u##bits)((s##bits)a / (s##bits)b) : (u##bits)~0ull; } \
    static inline u##bits remainder_s##bits(u##bits a, u##bits b) { \
        return b ? b == (u##bits)~0ull ? 0 : (u##bits)((s##bits)a % (s##bits)b) : a; }
DIVISION(16)
DIVISION(32)
DIVISION(64)

// Shifts by the width or more give zeros, or copies of the sign.
#define SHIFTS(bits) \
    static inline u##bits left_##bits(u##bits a, u32 n) { return n >= bits ? 0 : (u##bits)(a << n); } \
    static inline u##bits right_u##bits(u##bits a, u32 n) { return n >= bits ? 0 : (u##bits)(a >> n); } \
    static inline u##bits right_s##bits(u##bits a, u32 n) { return (u##bits)((s##bits)a >> (n >= bits ? bits - 1 : n)); }
SHIFTS(16)
SHIFTS(32)
SHIFTS(64)

static inline u32 funnel_left(u32 low, u32 high, u32 n) { return (u32)(((((u64)high << 32) | low) << n) >> 32); }
static inline u32 funnel_right(u32 low, u32 high, u32 n) { return (u32)((((u64)high << 32) | low) >> n); }
static inline u32 permuted(u32 a, u32 b, u32 selector) {
    u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 pick = selector >> (4 * i) & 15, byte = (u32)(bytes >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
static inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}
static inline u64 field_unsigned(u64 a, u32 at, u32 length, u32 bits) {
    at &= 255; length &= 255;
    if (!length || at >= bits) return 0;
    a >>= at;
    return length >= 64 ? a : a & ((1ull << length) - 1);
}
static inline u64 field_signed(u64 a, u32 at, u32 length, u32 bits) {
    at &= 255; length &= 255;
    if (!length) return 0;
    u32 top = at + length - 1 < bits - 1 ? at + length - 1 : bits - 1;    // where the sign is taken from
    u64 sign = a >> top & 1, result = 0;
    for (u32 i = 0; i < bits; i++)
        result |= (i < length && at + i < bits ? a >> (at + i) & 1 : sign) << i;
    return result;
}
static inline u64 field_inserted(u64 from, u64 into, u32 at, u32 length, u32 bits) {
    at &= 255; length &= 255;
    if (at >= bits || !length) return into;
    u64 mask = (length >= 64 ? ~0ull : (1ull << length) - 1) << at;
    return (into & ~mask) | (from << at & mask);
}
static inline u64 reversed(u64 x, u32 bits) {
    u64 result = 0;
    for (u32 i = 0; i < bits; i++) result |= (x >> i & 1) << (bits - 1 - i);
    return result;
}
static inline u32 leading_zeros(u64 x, u32 bits) { return x ? (u32)__builtin_clzll(x) - (64 - bits) : bits; }
static inline u32 highest_bit(u64 x, u32 bits, int is_signed, int as_shift) {
    if (is_signed && x >> (bits - 1) & 1) x = ~x & (~0ull >> (64 - bits));
    if (!x) return ~0u;
    u32 at = 63 - (u32)__builtin_clzll(x);
    return as_shift ? bits - 1 - at : at;
}
static inline u32 dot4(u32 a, int a_signed, u32 b, int b_signed, u32 c) {
    for (int i = 0; i < 4; i++) {
        s32 x = a_signed ? (s8)(a >> 8 * i) : (s32)(u8)(a >> 8 * i), y = b_signed ? (s8)(b >> 8 * i) : (s32)(u8)(b >> 8 * i);
        c += (u32)(x * y);
    }
    return c;
}
static inline u32 dot2(u32 a, int a_signed, u32 b, int b_signed, u32 c, int high) {
    for (int i = 0; i < 2; i++) {
        u32 byte = b >> 8 * (i + 2 * high);
        s32 x = a_signed ? (s16)(a >> 16 * i) : (s32)(u16)(a >> 16 * i), y = b_signed ? (s8)byte : (s32)(u8)byte;
        c += (u32)(x * y);
    }
    return c;
}
#endif
