// Number formats of the KV cache, as imp/model/kv.py defines them, bit for bit. -DKV: which. -DD: the size of a head.
//
// The plane of a layer: [block][kv head]{ K codes [16][CODES] | K scales [16][SCALES] | V codes | V scales }, in bytes.
// A format of codes has for a vector, which lies turned in shared memory, `encode` by one warp, and `decode` of 16
// neighbouring numbers by one thread.
#pragma once
#include "prelude.cuh"

enum { FP32, FP16, BF16_KV, FP8, INT8_KV, INT4_KV, NVFP4, MXFP4 };  // -DKV
constexpr int BLOCK = 16;                                             // positions of a block

constexpr int KV_BITS = KV == FP32 ? 32 : KV <= BF16_KV ? 16 : KV <= INT8_KV ? 8 : 4;
constexpr bool CODED = KV > BF16_KV;
constexpr int GROUPS = D / 16;
constexpr int SHARED_POWER = D % 32 ? 16 : 32;  // numbers of a head that share a power of two, in mxfp4
constexpr int CODES = D * KV_BITS / 8;
constexpr int SCALES = KV == FP8 || KV == INT8_KV ? 2
                       : KV == INT4_KV            ? 2 + 2 * GROUPS
                       : KV == NVFP4              ? 2 + GROUPS
                       : KV == MXFP4              ? D / SHARED_POWER
                                                  : 0;
constexpr int HALF_BYTES = BLOCK * (CODES + SCALES);  // the keys, or the values, of a block and head

struct Place {  // of one key or value
    u8 *codes, *scales;
};
// second: 0 for the key, 1 for the value
DEVICE Place place_of(u8* plane, u64 block_bytes, int block, int offset, int head, int second) {
    u8* start = plane + block * block_bytes + (size_t)(2 * head + second) * HALF_BYTES;
    return {start + offset * CODES, start + BLOCK * CODES + offset * SCALES};
}

// -- turning: every TURNING numbers of a head times the symmetric Walsh-Hadamard matrix over its root -------------------

constexpr int TURNING = D & -D;

// x [D] in shared memory, by one warp
DEVICE void turn(float* x) {
    int lane = threadIdx.x % 32;
    for (int half = 1; half < TURNING; half *= 2) {
        __syncwarp();
        for (int i = lane; i < D / 2; i += 32) {
            int at = i / half * 2 * half + i % half;
            float a = x[at], b = x[at + half];
            x[at] = a + b;
            x[at + half] = a - b;
        }
    }
    __syncwarp();
    float scale = __fdiv_rn(1.f, __fsqrt_rn((float)TURNING));
    for (int i = lane; i < D; i += 32) x[i] = __fmul_rn(x[i], scale);
    __syncwarp();
}

// -- encoding ---------------------------------------------------------------------------------------------------------
// Every operation is rounded as NumPy rounds it: no fused multiply-adds, no approximate divisions.

DEVICE float inverse_of(float x) { return x > 0.f ? __frcp_rn(x) : 0.f; }
DEVICE float bf16_rounded(float x) { return bf16_value(bf16_bits(x)); }

// The nearest code of a float with EXPONENT and MANTISSA bits, ties to even; past the largest: the largest
template <int EXPONENT, int MANTISSA> DEVICE u32 small_code(float x, float largest) {
    constexpr int BIAS = (1 << (EXPONENT - 1)) - 1, DROP = 23 - MANTISSA;
    float size = fminf(fabsf(x), largest);
    u32 raw = __float_as_uint(size);
    u32 normal = ((raw + ((1u << (DROP - 1)) - 1) + (raw >> DROP & 1)) >> DROP) - ((127 - BIAS) << MANTISSA);
    float one = __uint_as_float((127 + 24 - BIAS - MANTISSA) << 23);  // whose last place is the smallest step
    u32 subnormal = __float_as_uint(__fadd_rn(size, one)) - __float_as_uint(one);
    u32 code = size < __uint_as_float((128 - BIAS) << 23) ? subnormal : normal;
    return code | __float_as_uint(x) >> 31 << (EXPONENT + MANTISSA);
}
DEVICE u32 e4m3_code(float x) { return small_code<4, 3>(x, 448.f); }
DEVICE u32 e2m1_code(float x) { return small_code<2, 1>(x, 6.f); }

DEVICE float magnitude(const float* x, int count) {
    float largest = 0.f;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}
DEVICE void write_scale(const Place& p, float scale) {
    if (threadIdx.x % 32 == 0) p.scales[0] = (u8)bf16_bits(scale), p.scales[1] = (u8)(bf16_bits(scale) >> 8);
}
// 16 codes of 4 bits in 8 bytes: number j with number j + 8
template <class Code> DEVICE void write_nibbles(u8* target, Code code) {
    u32 pair[2] = {0, 0};
    UNROLL
    for (int i = 0; i < 16; i++) pair[i % 8 / 4] |= code(i) << (8 * (i % 4) + 4 * (i / 8));
    *(uint2*)target = {pair[0], pair[1]};
}

// One warp: x [D] float32 in shared memory becomes a record. A lane has groups of 16 numbers.
DEVICE void encode(const float* x, const Place& p) {
    int lane = threadIdx.x % 32;
    const float* group = x + lane * 16;
    bool mine = lane < GROUPS;
    if (KV == FP8 || KV == INT8_KV) {
        float scale = bf16_rounded(__fmul_rn(warp_max(mine ? magnitude(group, 16) : 0.f), KV == FP8 ? 1.f / 448 : 1.f / 127));
        float inverse = inverse_of(scale);
        for (int i = lane; i < D; i += 32) {
            float y = __fmul_rn(x[i], inverse);
            p.codes[i] = KV == FP8 ? e4m3_code(y) : (u8)(s8)fminf(fmaxf(rintf(y), -127.f), 127.f);
        }
        write_scale(p, scale);
    } else if (KV == INT4_KV) {
        float low = 0.f, high = 0.f;
        for (int i = 0; mine && i < 16; i++) low = fminf(low, group[i]), high = fmaxf(high, group[i]);
        float width = __fmul_rn(__fsub_rn(high, low), 1.f / 15);
        float unit = bf16_rounded(__fmul_rn(warp_max(width), 1.f / 255));
        float steps = fminf(ceilf(__fmul_rn(width, inverse_of(unit))), 255.f);
        float scale = __fmul_rn(steps, unit), inverse = inverse_of(scale);
        float zeros = fminf(fmaxf(rintf(__fmul_rn(__fmul_rn(low, inverse), -16.f)), 0.f), 255.f);
        float least = __fmul_rn(__fmul_rn(zeros, -1.f / 16), scale);
        if (mine) {
            write_nibbles(p.codes + lane * 8, [&](int i) {
                return (u32)fminf(fmaxf(rintf(__fmul_rn(__fsub_rn(group[i], least), inverse)), 0.f), 15.f);
            });
            p.scales[2 + 2 * lane] = (u8)(u32)steps;
            p.scales[3 + 2 * lane] = (u8)(u32)zeros;
        }
        write_scale(p, unit);
    } else if (KV == NVFP4) {
        float largest = mine ? magnitude(group, 16) : 0.f;
        float whole = bf16_rounded(__fmul_rn(warp_max(largest), 1.f / (6 * 448)));
        u32 code = e4m3_code(__fmul_rn(__fmul_rn(largest, 1.f / 6), inverse_of(whole)));
        float inverse = inverse_of(__fmul_rn(e4m3_value(code), whole));
        if (mine) {
            write_nibbles(p.codes + lane * 8, [&](int i) { return e2m1_code(__fmul_rn(group[i], inverse)); });
            p.scales[2 + lane] = (u8)code;
        }
        write_scale(p, whole);
    } else if (mine) {
        const float* sharing = x + lane * 16 / SHARED_POWER * SHARED_POWER;
        u32 exponent = __float_as_uint(magnitude(sharing, SHARED_POWER)) >> 23, power = exponent > 2 ? exponent - 2 : 0;
        float inverse = __uint_as_float((254 - power) << 23);
        write_nibbles(p.codes + lane * 8, [&](int i) { return e2m1_code(__fmul_rn(group[i], inverse)); });
        if (lane * 16 % SHARED_POWER == 0) p.scales[lane * 16 / SHARED_POWER] = (u8)power;
    }
}

// -- decoding ---------------------------------------------------------------------------------------------------------

// 16 numbers, those of group `group`, of one key or value
DEVICE void decode(float (&x)[16], const Place& p, int group) {
    float whole = KV == MXFP4 ? 0.f : bf16_value((u16)(p.scales[0] | p.scales[1] << 8));
    if (KV == FP8 || KV == INT8_KV) {
        uint4 codes = *(const uint4*)(p.codes + group * 16);
        u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
        UNROLL
        for (int i = 0; i < 16; i++) {
            u32 code = words[i / 4] >> 8 * (i % 4) & 0xff;
            x[i] = (KV == FP8 ? e4m3_value(code) : (float)(s8)code) * whole;
        }
        return;
    }
    uint2 codes = *(const uint2*)(p.codes + group * 8);
    float scale, least = 0.f;
    if (KV == INT4_KV) {
        scale = (float)p.scales[2 + 2 * group] * whole;
        least = (float)p.scales[3 + 2 * group] * (-1.f / 16) * scale;
    } else if (KV == NVFP4) scale = e4m3_value(p.scales[2 + group]) * whole;
    else scale = __uint_as_float((u32)p.scales[group * 16 / SHARED_POWER] << 23);
    UNROLL
    for (int i = 0; i < 16; i++) {
        u32 code = (i % 8 < 4 ? codes.x : codes.y) >> (8 * (i % 4) + 4 * (i / 8)) & 15;
        x[i] = KV == INT4_KV ? (float)code * scale + least : e2m1_value(code) * scale;
    }
}
