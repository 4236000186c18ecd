// What linear.cu and linear_experts.cu share: a product, and its body for the format at hand.
// GROUPED: rows of x are those that `sources` names.
#pragma once
#include "weights.cuh"

struct Product {
    const uint4* codes;
    const u8* scales;
    const float* row_scales;
    const void* x;
    const float* xscale;
    const float* bias;
    float* y;
    int tokens, rows, columns, ldx, ldy, add;
    const int* sources;
    bool gathered;  // x has a row for each token, not for each row of y
};

// the row of x that row `token` of y is made of; -1: none
DEVICE int source_of(const Product& p, int token) {
    if (!GROUPED) return token;
    int source = p.sources[token];
    return source < 0 || p.gathered ? source : token;
}

template <bool ROW_SCALED> DEVICE void finish(const Product& p, int token, int row, float sum) {
    if (token >= p.tokens || row >= p.rows) return;
    if (ROW_SCALED) sum *= p.row_scales[row];
    if (p.xscale) sum *= p.xscale[GROUPED ? max(0, source_of(p, token)) : token];
    if (p.bias) sum += p.bias[row];
    float* y = p.y + (size_t)token * p.ldy + row;
    *y = p.add ? *y + sum : sum;
}

#if FMT == 0
#include "linear_exact.cuh"
#else
#include "linear_mma.cuh"
#endif
