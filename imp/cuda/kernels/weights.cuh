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

enum { F32_ROWS, F16_ROWS, BF16_ROWS, INT8, INT8M, INT8H, INT4, INT4M, FP8, NVFP4, MXFP4, INT4K, FP8B };  // -DFMT

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
// the same of e2m1
DEVICE u32 small_floats(u32 codes, int r) {
    u32 pair = codes >> 4 * r;
    return f16x2_mul((pair & 0x00080008) << 12 | (pair & 0x00070007) << 9, 0x74007400);  // 2^14
}
// register r of step s of a record of bytes: word 2s + r / 2 has those of row g in its low half, of row g + 8 in its high
DEVICE u32 bytes_of(const uint4& v, int step, int r) { return word(v, 2 * step + r / 2) >> 16 * (r % 2); }
DEVICE u32 integers(u32 bytes, u32 zero) { return f16x2_add(__byte_perm(bytes, 0x64646464, 0x4140), twice(0xe400 + zero)); }
// of two e4m3, which lie in bits 0 to 15
DEVICE u32 e4m3_pair(u32 bytes) {
    u32 pair = __byte_perm(bytes, 0, 0x1404);
    return f16x2_mul((pair & 0x80008000) | (pair & 0x7f007f00) >> 1, 0x5c005c00);  // 2^8
}

// -- formats: a record's scales of two rows, and registers of A --------------------------------------------------------
// read(S, record, row): the Scales of one row. fragment(): register r of a step, of codes and the scales of that register's
// row. ROW_SCALED: M has a float32 for each row, that sums are multiplied by at last. NESTED: sums of a record are, too, by
// `whole`, and less `whole_minimum` times those of `minimum`, which is what every weight of a step is less by.

template <int FORMAT> struct Weights;

struct Simple {
    static constexpr bool ROW_SCALED = false, NESTED = false;
};
struct Whole : Simple {  // 16-bit floats
    static constexpr int STEPS = 1;
    struct Scales {};
    DEVICE Scales read(const u8*, size_t, int) { return {}; }
    DEVICE u32 fragment(const uint4& v, Scales, int, int r) { return word(v, r); }
};
template <> struct Weights<F16_ROWS> : Whole { typedef F16 Act; };
template <> struct Weights<BF16_ROWS> : Whole { typedef BF16 Act; };

template <> struct Weights<INT8> : Simple {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u16 Scales;
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u16*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales d, int step, int r) {
        return f16x2_mul(integers(bytes_of(v, step, r), 128), twice(d));
    }
};
template <> struct Weights<INT8M> : Simple {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u32 Scales;  // d, m
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_fma(integers(bytes_of(v, step, r), 0), twice((u16)s), twice((u16)(s >> 16)));
    }
};
template <> struct Weights<INT8H> : Simple {
    static constexpr int STEPS = 2;
    typedef F16 Act;
    typedef u32 Scales;  // d of 16 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_mul(integers(bytes_of(v, step, r), 128), twice((u16)(s >> 16 * step)));
    }
};
template <> struct Weights<INT4> : Simple {
    static constexpr int STEPS = 4;
    typedef F16 Act;
    typedef u32 Scales;  // d of 32 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_mul(nibbles(word(v, step), r, 8), twice((u16)(s >> 16 * (step / 2))));
    }
};
template <> struct Weights<INT4M> : Simple {
    static constexpr int STEPS = 4;
    typedef F16 Act;
    typedef uint2 Scales;  // d, m of 32 columns each
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const uint2*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        u32 pair = step / 2 ? s.y : s.x;
        return f16x2_fma(nibbles(word(v, step), r, 0), twice((u16)pair), twice((u16)(pair >> 16)));
    }
};

// -- formats whose numbers are exact --------------------------------------------------------------------------------------

struct RowScaled {
    static constexpr bool ROW_SCALED = true, NESTED = false;
    typedef F16 Act;
};
template <> struct Weights<FP8> : RowScaled {  // e4m3
    static constexpr int STEPS = 2;
    struct Scales {};
    DEVICE Scales read(const u8*, size_t, int) { return {}; }
    DEVICE u32 fragment(const uint4& v, Scales, int step, int r) { return e4m3_pair(bytes_of(v, step, r)); }
};
template <> struct Weights<FP8B> : RowScaled {  // e4m3 with a float16 of at most 1 for 32 columns
    static constexpr int STEPS = 2;
    typedef u16 Scales;
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u16*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales d, int step, int r) {
        return f16x2_mul(e4m3_pair(bytes_of(v, step, r)), twice(d));
    }
};
template <> struct Weights<NVFP4> : RowScaled {  // e2m1 with an e4m3 for 16 columns: their product is an exact float16
    static constexpr int STEPS = 4;
    typedef u32 Scales;
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u32*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        u32 scale = s >> 8 * step & 0xff;
        return f16x2_mul(small_floats(word(v, step), r), e4m3_pair(scale | scale << 8));
    }
};
template <> struct Weights<MXFP4> : RowScaled {  // e2m1 with a power of two for 32 columns, 2^(byte - 24) of the row's largest
    static constexpr int STEPS = 4;
    typedef u16 Scales;
    DEVICE Scales read(const u8* scales, size_t record, int row) { return __ldg((const u16*)scales + record * TILE + row); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        u32 power = s >> 8 * (step / 2) & 0xff;  // as a float16: below 10 a subnormal one
        return f16x2_mul(small_floats(word(v, step), r), twice((u16)(power < 10 ? 1u << power : (power - 9) << 10)));
    }
};
// Q4_K as its file has it: weight = d s q - dmin m, with float16 d and dmin for 256 columns, and s and m of 6 bits for 32.
// [tile][256 columns]{ [16 rows] (d, dmin); [4 records][16 rows] (s, m, s, m) }: 320 bytes. s q is an exact float16.
template <> struct Weights<INT4K> {
    static constexpr bool ROW_SCALED = false, NESTED = true;
    static constexpr int STEPS = 4;
    typedef F16 Act;
    struct Scales {
        u32 whole, parts;
    };
    DEVICE Scales read(const u8* scales, size_t record, int row) {
        const u32* block = (const u32*)scales + record / 4 * (5 * TILE);
        return {__ldg(block + row), __ldg(block + (1 + record % 4) * TILE + row)};
    }
    // a byte as a pair of float16: 1024 and it, less 1024
    DEVICE u32 pair_of(Scales s, int byte) { return f16x2_add(twice(0x6400 | (s.parts >> 8 * byte & 0xff)), 0xe400e400); }
    DEVICE u32 fragment(const uint4& v, Scales s, int step, int r) {
        return f16x2_mul(nibbles(word(v, step), r, 0), pair_of(s, step / 2 * 2));
    }
    DEVICE u32 minimum(Scales s, int step) { return pair_of(s, step / 2 * 2 + 1); }
    DEVICE float whole(Scales s) { return f16_value((u16)s.whole); }
    DEVICE float whole_minimum(Scales s) { return f16_value((u16)(s.whole >> 16)); }
};
