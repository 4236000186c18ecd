// y = x W^T: the matrix product of every layer. -DFMT: the format of W (weights.cuh). -DNT: tiles of 8 tokens in a block, for
// `linear`; 0: `linear_tiled`.
//
// Weights are the A of mma.m16n8k16, 16 of their rows at a time, and tokens its B: a step of few tokens wastes little, and
// every weight is read once from memory, 16 bytes a lane, several loads ahead of their use.
//
// The order of sums is part of the contract, since a token's numbers must not depend on what else is in the step: record r
// of a row's columns goes to partial sum r % 4, in ascending order, and the four are added in order. Each warp of a block
// makes one of them.
//
// linear:       grid (tiles of rows, ceil(tokens / (8 NT))), 128 threads. 16 rows and 8 NT tokens a block.
// linear_tiled: grid (ceil(tiles / 2), ceil(tokens / 64)), 128 threads. 32 rows and 64 tokens a block, for many tokens.
// row_scales [rows]: of formats that have them.
// x [tokens, ldx]: 16-bit (F32: float32) with zeros from the last column to K. xscale [tokens] or 0: what x is times.
// bias [N] or 0. y [tokens, ldy] float32; add: y += . N rows of W, K columns, both as the matrix has them in memory: K a
// multiple of 64. counts[word]: tokens.
constexpr bool GROUPED = false;
#include "product.cuh"

#if NT > 0
KERNEL(128, NT < (ONE_BY_ONE ? 4 : 8) ? 4 : ONE_BY_ONE && NT == 8 ? 2 : 3)
linear(const uint4* codes, const u8* scales, const float* row_scales, const void* x, const float* xscale, const float* bias,
       float* y, const int* counts, int word, int rows, int columns, int ldx, int ldy, int add) {
    Product p = {codes, scales, row_scales, x, xscale, bias, y, counts[word], rows, columns, ldx, ldy, add, 0, false};
    multiply<1, NT>(p, blockIdx.x);
}
#else
KERNEL(128, 2) linear_tiled(const uint4* codes, const u8* scales, const float* row_scales, const void* x,
                            const float* xscale, const float* bias, float* y, const int* counts, int word, int rows,
                            int columns, int ldx, int ldy, int add) {
    Product p = {codes, scales, row_scales, x, xscale, bias, y, counts[word], rows, columns, ldx, ldy, add, 0, false};
    if (ONE_BY_ONE) {
        _Pragma("unroll 1")
        for (int tile = 2 * blockIdx.x; tile < 2 * blockIdx.x + 2; tile++) {
            __syncthreads();
            multiply<1, 8>(p, tile);
        }
    } else multiply<2, 8>(p, 2 * blockIdx.x);
}
#endif
