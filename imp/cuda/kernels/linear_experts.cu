// The product of linear.cu for experts: each 8 NT rows of y have one, and are made of rows of x anywhere. -DFMT, -DNT.
// The same sums as linear.cu's, so a row's bits do not depend on where experts.cu placed it.
constexpr bool GROUPED = true;
#include "product.cuh"

// codes, scales, row_scales, bias: of all experts, one behind the other: `expert_codes` vectors of 16 bytes, `expert_scales`
// bytes, `expert_row_scales` floats, `rows` floats. x [.., ldx]: of tokens (gathered), or of rows of y. y [.., ldy] float32: rows without a source are
// written, too. sources, tile_expert: experts.cu's, with align = 8 NT. grid (ceil(rows / 16), tiles), 128 threads
KERNEL(128, NT < (ONE_BY_ONE ? 4 : 8) ? 4 : NT < 8 ? 3 : 2) linear_experts(const uint4* codes, const u8* scales, const float* row_scales, const void* x,
                                           const float* xscale, const float* bias, float* y, const int* sources,
                                           const int* tile_expert, int rows, int columns, int ldx, int ldy, int gathered,
                                           long long expert_codes, long long expert_scales, long long expert_row_scales) {
    int expert = tile_expert[blockIdx.y];
    if (expert < 0) return;
    Product p = {codes + expert * expert_codes, scales + expert * expert_scales,
                 row_scales ? row_scales + expert * expert_row_scales : 0, x, xscale, bias ? bias + expert * rows : 0, y,
                 (int)(blockIdx.y + 1) * 8 * NT, rows, columns, ldx, ldy, 0, sources, gathered != 0};
    multiply<1, NT>(p, blockIdx.x);
}
