// Weights from the bytes of their file into the order of weights.cuh: what layouts.py does on the host, bit for bit. -DSRC: the
// format of the file (GGML's layouts: ggml-common.h).
//
// repack: grid (tiles, ceil(records / 8)), 256 threads: a warp a record, and one thread for the scales of each of its rows.
// source: `rows` rows of `row_bytes`, with `columns` weights each. codes, scales: those of the first tile. What fills rows up
// to 16 and columns to the last record is zero.
#include "weights.cuh"

constexpr int WARPS = 8, BLOCK = 32;

enum { F32_FILE, WORDS_FILE, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };  // -DSRC

DEVICE u32 half_at(const u8* p) { return __ldg((const u16*)p); }
DEVICE u32 byte_at(const u8* p) { return __ldg(p); }
DEVICE u16 scaled_half(u32 half, int factor) { return f16_bits(f16_value((u16)half) * (float)factor); }

// -- formats: BITS of a code, SCALES of a block of 32 columns. code(): as it is stored. scales(): of one block ----------------

template <int FORMAT> struct File;

template <> struct File<WORDS_FILE> {  // float16, bfloat16
    static constexpr int BITS = 16, SCALES = 0;
    DEVICE u32 code(const u8* row, int column) { return half_at(row + 2 * column); }
    DEVICE void scales(const u8*, int, u16*) {}
};
template <> struct File<Q8_0> {
    static constexpr int BITS = 8, SCALES = 1, BYTES = 34;
    DEVICE u32 code(const u8* row, int column) { return byte_at(row + column / 32 * BYTES + 2 + column % 32) ^ 0x80; }
    DEVICE void scales(const u8* row, int block, u16* out) { out[0] = half_at(row + block * BYTES); }
};
// scales, then HIGH bytes of fifth bits, then codes; ADD to what comes of both
template <int BITS_, int SCALES_, int HIGH, int ADD> struct Legacy {
    static constexpr int BITS = BITS_, SCALES = SCALES_, HEAD = 2 * SCALES + HIGH, BYTES = HEAD + 16;
    DEVICE u32 code(const u8* row, int column) {
        const u8* block = row + column / 32 * BYTES;
        int at = column % 32;
        u32 code = byte_at(block + HEAD + at % 16) >> at / 16 * 4 & 15;
        if (HIGH) code |= (byte_at(block + 2 * SCALES + at / 8) >> at % 8 & 1) << 4;
        return code + ADD;
    }
    DEVICE void scales(const u8* row, int block, u16* out) {
        for (int i = 0; i < SCALES; i++) out[i] = half_at(row + block * BYTES + 2 * i);
    }
};
template <> struct File<Q4_0> : Legacy<4, 1, 0, 0> {};
template <> struct File<Q4_1> : Legacy<4, 2, 0, 0> {};
template <> struct File<Q5_0> : Legacy<8, 1, 4, 128 - 16> {};
template <> struct File<Q5_1> : Legacy<8, 2, 4, 0> {};

// scale and minimum of one of 8 blocks, 6 bits each (get_scale_min_k4 of ggml-quants.c)
DEVICE uint2 k_parts(const u8* scales, int block) {
    if (block < 4) return {byte_at(scales + block) & 63, byte_at(scales + 4 + block) & 63};
    u32 low = byte_at(scales + 4 + block), scale = byte_at(scales + block - 4) >> 6, minimum = byte_at(scales + block) >> 6;
    return {(low & 15) | scale << 4, low >> 4 | minimum << 4};
}
template <> struct File<Q4_K> {
    static constexpr int BITS = 4, SCALES = 0, BYTES = 144;
    DEVICE u32 code(const u8* row, int column) {
        int at = column % 256;
        return byte_at(row + column / 256 * BYTES + 16 + at / 64 * 32 + at % 32) >> at / 32 % 2 * 4 & 15;
    }
    DEVICE void scales(const u8*, int, u16*) {}
};
template <> struct File<Q5_K> {
    static constexpr int BITS = 8, SCALES = 2, BYTES = 176;
    DEVICE u32 code(const u8* row, int column) {
        const u8* whole = row + column / 256 * BYTES;
        int at = column % 256;
        u32 low = byte_at(whole + 48 + at / 64 * 32 + at % 32) >> at / 32 % 2 * 4 & 15;
        return low | (byte_at(whole + 16 + at % 32) >> at / 32 & 1) << 4;
    }
    DEVICE void scales(const u8* row, int block, u16* out) {
        const u8* whole = row + block / 8 * BYTES;
        uint2 parts = k_parts(whole + 4, block % 8);
        out[0] = scaled_half(half_at(whole), parts.x);
        out[1] = scaled_half(half_at(whole + 2) ^ 0x8000, parts.y);
    }
};
template <> struct File<Q6_K> {
    static constexpr int BITS = 8, SCALES = 2, BYTES = 210;
    DEVICE u32 code(const u8* row, int column) {
        const u8* whole = row + column / 256 * BYTES;
        int half = column % 256 / 128, quarter = column % 128 / 32, at = column % 32;
        u32 low = byte_at(whole + half * 64 + quarter % 2 * 32 + at) >> quarter / 2 * 4 & 15;
        return (low | (byte_at(whole + 128 + half * 32 + at) >> 2 * quarter & 3) << 4) + 128 - 32;
    }
    DEVICE void scales(const u8* row, int block, u16* out) {
        const u8* whole = row + block / 8 * BYTES;
        for (int i = 0; i < 2; i++) out[i] = scaled_half(half_at(whole + 208), (s8)byte_at(whole + 192 + block % 8 * 2 + i));
    }
};

// -- a warp's record ------------------------------------------------------------------------------------------------------

#if SRC == 0
KERNEL(32 * WARPS, 4) repack(const u8* source, float* codes, u8*, long long row_bytes, int rows, int columns, int records) {
    int record = blockIdx.y * WARPS + threadIdx.x / 32;
    if (record >= records) return;
    float* target = codes + ((size_t)blockIdx.x * records + record) * TILE * STEP;
    for (int i = threadIdx.x % 32; i < TILE * STEP; i += 32) {
        int row = blockIdx.x * TILE + i % TILE, column = record * STEP + i / TILE;
        bool inside = row < rows && column < columns;
        target[i] = inside ? __ldg((const float*)(source + row * row_bytes) + column) : 0.f;
    }
}
#else
KERNEL(32 * WARPS, 4) repack(const u8* source, uint4* codes, u8* scales, long long row_bytes, int rows, int columns, int records) {
    typedef File<SRC> F;
    constexpr int STEPS = 16 / F::BITS, COLUMNS = STEPS * STEP;
    int record = blockIdx.y * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (record >= records) return;
    size_t at = (size_t)blockIdx.x * records + record;
    u32 words[4] = {};
    UNROLL
    for (int step = 0; step < STEPS; step++)
        UNROLL
        for (int i = 0; i < 8; i++) {
            int r = i / 2, e = i % 2, row = blockIdx.x * TILE + lane / 4 + 8 * (r % 2);
            int column = record * COLUMNS + step * STEP + 4 * (lane % 4) + 2 * (r / 2) + e;
            u32 code = row < rows && column < columns ? F::code(source + row * row_bytes, column) : 0;
            if (F::BITS == 16) words[r] |= code << 16 * e;
            else if (F::BITS == 8) words[2 * step + r / 2] |= code << (16 * (r % 2) + 8 * e);
            else words[step] |= code << (4 * r + 16 * e);
        }
    codes[at * 32 + lane] = {words[0], words[1], words[2], words[3]};
    if (lane >= TILE) return;
    int row = blockIdx.x * TILE + lane;
    const u8* own = source + row * row_bytes;
    if (SRC == Q4_K) {
        u32* whole = (u32*)scales + at / 4 * (5 * TILE);
        const u8* in_file = own + record / 4 * File<Q4_K>::BYTES;
        uint2 low = {}, high = {};
        u32 both = 0;
        if (row < rows) {
            low = k_parts(in_file + 4, record % 4 * 2), high = k_parts(in_file + 4, record % 4 * 2 + 1);
            both = half_at(in_file) | half_at(in_file + 2) << 16;
        }
        whole[(1 + record % 4) * TILE + lane] = low.x | low.y << 8 | high.x << 16 | high.y << 24;
        if (record % 4 == 0) whole[lane] = both;
        return;
    }
    constexpr int BLOCKS = F::BITS == 16 ? 0 : COLUMNS / BLOCK, OF_ROW = F::SCALES * BLOCKS;
    UNROLL
    for (int b = 0; b < BLOCKS; b++) {
        int block = record * BLOCKS + b;
        u16 found[2] = {};
        if (row < rows && block * BLOCK < columns) F::scales(own, block, found);
        UNROLL
        for (int i = 0; i < F::SCALES; i++) ((u16*)scales)[(at * TILE + lane) * OF_ROW + b * F::SCALES + i] = found[i];
    }
}
#endif
