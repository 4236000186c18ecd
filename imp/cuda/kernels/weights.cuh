// Weights as the matrix kernels read them. A matrix [rows, columns] is cut into tiles of 16 rows, and a tile into records
// of 16, 32 or 64 columns; rows are filled up with zeros to 16, columns to 64. A record is the A of some steps of
// mma.m16n8k16: what one lane needs of it are 16 bytes, [tile][record][lane].
//
// Which of its 16 columns a lane has in a step is ours to choose, as long as activations are read alike: lane l has in
// register r, at place e of two, row l / 4 + 8 (r % 2) and column 4 (l % 4) + 2 (r / 2) + e. So the activations that it
// needs of a step are 8 bytes that lie together.
//
// Scales lie in [tile][record][16 rows], all numbers of a row in a record together: one load for a lane.
#pragma once
#include "prelude.cuh"

constexpr int TILE = 16, STEP = 16;

enum { F32_ROWS, F16_ROWS, BF16_ROWS, INT8, INT8M, INT8H, INT4, INT4M };  // -DFMT

DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE u32 twice(u16 x) { return x * 0x00010001u; }

DEVICE u32 f16x2_add(u32 a, u32 b) {
    u32 y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 f16x2_mul(u32 a, u32 b) {
    u32 y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 f16x2_fma(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// -- codes as pairs of exact float16 ---------------------------------------------------------------------------------

// register r of a step whose nibbles are `codes`: 0 to 15, less `zero`, as low bits of 1024
DEVICE u32 nibbles(u32 codes, int r, u32 zero) {
    return f16x2_add((codes >> 4 * r & 0x000f000f) | 0x64006400, twice(0xe400 + zero));
}
// register r of step s of a record of bytes: word 2s + r / 2 has those of row g in its low half, of row g + 8 in its high
DEVICE u32 bytes_of(const uint4& v, int step, int r) { return word(v, 2 * step + r / 2) >> 16 * (r % 2); }
DEVICE u32 integers(u32 bytes, u32 zero) { return f16x2_add(__byte_perm(bytes, 0x64646464, 0x4140), twice(0xe400 + zero)); }

// -- formats: a record's scales of two rows, and registers of A --------------------------------------------------------
// read(S, record, row): the Scales of one row. fragment(): register r of a step, of codes and the scales of that register's
// row.

template <int FORMAT> struct Weights;

struct Whole {  // 16-bit floats
    static constexpr int STEPS = 1;
    struct Scales {};
    DEVICE Scales read(const u8*, size_t, int) { return {}; }
    DEVICE u32 fragment(const uint4& v, Scales, int, int r) { return word(v, r); }
};
template <> struct Weights<F16_ROWS> : Whole { typedef F16 Act; };
template <> struct Weights<BF16_ROWS> : Whole { typedef BF16 Act; };

template <> struct Weights<INT8> {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u16 Scales;
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u16*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales d, int step, int r) {
        return f16x2_mul(integers(bytes_of(v, step, r), 128), twice(d));
    }
};
template <> struct Weights<INT8M> {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u32 Scales;  // d, m
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_fma(integers(bytes_of(v, step, r), 0), twice((u16)s), twice((u16)(s >> 16)));
    }
};
template <> struct Weights<INT8H> {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u32 Scales;  // d of 16 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_mul(integers(bytes_of(v, step, r), 128), twice((u16)(s >> 16 * step)));
    }
};
template <> struct Weights<INT4> {
    static constexpr int STEPS = 4;
    typedef F16 Act;
    typedef u32 Scales;  // d of 32 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_mul(nibbles(word(v, step), r, 8), twice((u16)(s >> 16 * (step / 2))));
    }
};
template <> struct Weights<INT4M> {
    static constexpr int STEPS = 4;
    typedef F16 Act;
    typedef uint2 Scales;  // d, m of 32 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const uint2*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        u32 pair = step / 2 ? s.y : s.x;
        return f16x2_fma(nibbles(word(v, step), r, 0), twice((u16)pair), twice((u16)(pair >> 16)));
    }
};
