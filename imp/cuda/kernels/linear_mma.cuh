// The body of linear.cu for weights that go through the matrix units.
#pragma once
#include "weights.cuh"

constexpr int WARPS = 4;

// R tiles of rows and N tiles of 8 tokens, one block; every warp goes over a quarter of the records.
template <int R, int N> struct Sums {
    typedef Weights<FMT> W;
    typedef W::Act Act;

    struct Record {
        uint4 codes[R];
        W::Scales low[R], high[R];  // of rows l / 4 and l / 4 + 8
    };

    float sums[R][N][4] = {};
    const u16* x[N];  // of the lane's token in each tile, at the lane's columns; 0: there is none

    __device__ __forceinline__ void place(const Product& p, int token0) {
        int lane = threadIdx.x % 32;
        UNROLL
        for (int n = 0; n < N; n++) {
            int token = token0 + n * 8 + lane / 4;
            x[n] = token < p.tokens ? (const u16*)p.x + (size_t)token * p.ldx + lane % 4 * 4 : 0;
        }
    }
    __device__ __forceinline__ Record load(const Product& p, int tile0, int record, int records) {
        Record found;
        int lane = threadIdx.x % 32, tiles = (p.rows + TILE - 1) / TILE;
        UNROLL
        for (int t = 0; t < R; t++) {
            size_t at = (size_t)min(tile0 + t, tiles - 1) * records + record;
            found.codes[t] = load_once(p.codes + at * 32 + lane);
            found.low[t] = W::read(p.scales, at, lane / 4);
            found.high[t] = W::read(p.scales, at, lane / 4 + 8);
        }
        return found;
    }
    __device__ __forceinline__ void add(const Record& record, int column0) {
        UNROLL
        for (int step = 0; step < W::STEPS; step++) {
            u32 a[R][4];
            UNROLL
            for (int t = 0; t < R; t++)
                UNROLL
                for (int r = 0; r < 4; r++)
                    a[t][r] = W::fragment(record.codes[t], r % 2 ? record.high[t] : record.low[t], step, r);
            UNROLL
            for (int n = 0; n < N; n++) {
                uint2 b = x[n] ? *(const uint2*)(x[n] + column0 + step * STEP) : uint2{0, 0};
                UNROLL
                for (int t = 0; t < R; t++) Act::mma(sums[t][n], a[t], b.x, b.y);
            }
        }
    }
};

template <int R, int N> DEVICE void multiply(const Product& p) {
    typedef Sums<R, N> S;
    constexpr int COLUMNS = S::W::STEPS * STEP, AHEAD = R * N < 8 ? 4 : 2, TOKENS = 8 * N, ROWS = TILE * R;
    __shared__ float partial[WARPS][TOKENS][ROWS + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile0 = blockIdx.x * R, token0 = blockIdx.y * TOKENS;
    if (token0 >= p.tokens) return;

    S s;
    s.place(p, token0);
    int records = p.columns / COLUMNS;
    typename S::Record ahead[AHEAD];
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        if (warp + i * WARPS < records) ahead[i] = s.load(p, tile0, warp + i * WARPS, records);
    for (int first = warp; first < records; first += AHEAD * WARPS) {
        UNROLL
        for (int i = 0; i < AHEAD; i++) {
            int record = first + i * WARPS, later = record + AHEAD * WARPS;
            if (record >= records) break;
            typename S::Record now = ahead[i];
            if (later < records) ahead[i] = s.load(p, tile0, later, records);
            s.add(now, record * COLUMNS);
        }
    }

    UNROLL
    for (int t = 0; t < R; t++)
        UNROLL
        for (int n = 0; n < N; n++)
            UNROLL
            for (int i = 0; i < 4; i++)
                partial[warp][n * 8 + lane % 4 * 2 + i % 2][t * TILE + lane / 4 + 8 * (i / 2)] = s.sums[t][n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += WARPS * 32) {
        int token = i / ROWS, row = i % ROWS;
        float sum = partial[0][token][row];
        UNROLL
        for (int other = 1; other < WARPS; other++) sum += partial[other][token][row];
        finish(p, token0 + token, tile0 * TILE + row, sum);
    }
}
