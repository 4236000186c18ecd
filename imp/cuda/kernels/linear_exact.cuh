// The body of a product for float32 weights, [tile][column][16 rows]: plain float32 arithmetic, where exact numbers count
// and speed does not. A record is 16 columns, for the order of sums.
#pragma once
#include "weights.cuh"

constexpr int WARPS = 4;

template <int R, int N> DEVICE void multiply(const Product& p, int tile0) {
    constexpr int ROWS = TILE * R, PASS = N < 4 ? 8 * N : 32, EACH = PASS * R / 2;  // tokens of a pass; sums of a lane
    __shared__ float partial[WARPS][PASS][ROWS + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = lane % ROWS, first = lane / ROWS, stride = 32 / ROWS;  // a lane has one row, and every stride-th token
    int tile = min(tile0 + row / TILE, (p.rows + TILE - 1) / TILE - 1);
    const float* w = (const float*)p.codes + (size_t)tile * p.columns * TILE + row % TILE;
    int token0 = blockIdx.y * 8 * N, end = min(p.tokens, token0 + 8 * N);

    _Pragma("unroll 1")
    for (; token0 < end; token0 += PASS) {
        float sums[EACH] = {};
        for (int record = warp; record < p.columns / STEP; record += WARPS) {
            _Pragma("unroll 1")  // or addresses of all tokens are kept for several columns
            for (int column = record * STEP; column < (record + 1) * STEP; column++) {
                float weight = w[(size_t)column * TILE];
                UNROLL
                for (int i = 0; i < EACH; i++) {
                    int token = min(token0 + first + i * stride, p.tokens - 1);
                    int source = max(0, source_of(p, token));
                    sums[i] = fmaf(weight, ((const float*)p.x)[(size_t)source * p.ldx + column], sums[i]);
                }
            }
        }
        UNROLL
        for (int i = 0; i < EACH; i++) partial[warp][first + i * stride][row] = sums[i];
        __syncthreads();
        for (int i = threadIdx.x; i < PASS * ROWS; i += WARPS * 32) {
            int token = i / ROWS, at = i % ROWS;
            float sum = partial[0][token][at];
            UNROLL
            for (int other = 1; other < WARPS; other++) sum += partial[other][token][at];
            finish<false>(p, token0 + token, tile0 * TILE + at, sum);
        }
        __syncthreads();
    }
}

constexpr bool ONE_BY_ONE = false;
