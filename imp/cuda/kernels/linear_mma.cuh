// The body of a product for weights that go through the matrix units.
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
    const u16* x;  // the step's operands
    int places[N];  // in them, of the lane's token in each tile, at the lane's columns; -1: there is none

    __device__ __forceinline__ void place(const Product& p, int token0) {
        int lane = threadIdx.x % 32;
        x = (const u16*)p.x;
        UNROLL
        for (int n = 0; n < N; n++) {
            int token = token0 + n * 8 + lane / 4;
            int source = token < p.tokens ? source_of(p, token) : -1;
            places[n] = source >= 0 ? source * p.ldx + lane % 4 * 4 : -1;
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
    __device__ __forceinline__ uint2 operand(int n, int column) const {
        return places[n] >= 0 ? *(const uint2*)(x + places[n] + column) : uint2{0, 0};
    }
    __device__ __forceinline__ void add(const Record& record, int column0) {
        if constexpr (W::NESTED) add_nested(record, column0);
        else {
            UNROLL
            for (int step = 0; step < W::STEPS; step++) {
                u32 a[R][4];
                UNROLL
                for (int t = 0; t < R; t++) fragments(a[t], record, t, step);
                UNROLL
                for (int n = 0; n < N; n++) {
                    uint2 b = operand(n, column0 + step * STEP);
                    UNROLL
                    for (int t = 0; t < R; t++) Act::mma(sums[t][n], a[t], b.x, b.y);
                }
            }
        }
    }
    __device__ __forceinline__ void fragments(u32 (&a)[4], const Record& record, int t, int step) const {
        UNROLL
        for (int r = 0; r < 4; r++) a[r] = W::fragment(record.codes[t], r % 2 ? record.high[t] : record.low[t], step, r);
    }
    __device__ __forceinline__ void add_nested(const Record& record, int column0) {
        UNROLL
        for (int t = 0; t < R; t++) {
            u32 a[W::STEPS][4], m[W::STEPS][4];
            UNROLL
            for (int step = 0; step < W::STEPS; step++) {
                fragments(a[step], record, t, step);
                m[step][0] = m[step][2] = W::minimum(record.low[t], step);
                m[step][1] = m[step][3] = W::minimum(record.high[t], step);
            }
            float d[2] = {W::whole(record.low[t]), W::whole(record.high[t])};
            float least[2] = {W::whole_minimum(record.low[t]), W::whole_minimum(record.high[t])};
            UNROLL
            for (int n = 0; n < N; n++) {
                float products[4] = {}, minimums[4] = {};
                UNROLL
                for (int step = 0; step < W::STEPS; step++) {
                    uint2 b = operand(n, column0 + step * STEP);
                    Act::mma(products, a[step], b.x, b.y);
                    Act::mma(minimums, m[step], b.x, b.y);
                }
                UNROLL
                for (int i = 0; i < 4; i++)
                    sums[t][n][i] = __fmaf_rn(d[i / 2], products[i], __fmaf_rn(-least[i / 2], minimums[i], sums[t][n][i]));
            }
        }
    }
};

template <int R, int N> DEVICE void multiply(const Product& p, int tile0) {
    typedef Sums<R, N> S;
    constexpr int COLUMNS = S::W::STEPS * STEP, AHEAD = R * N < 8 ? 4 : S::W::NESTED ? 1 : 2, TOKENS = 8 * N, ROWS = TILE * R;
    __shared__ float partial[WARPS][TOKENS][ROWS + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token0 = blockIdx.y * TOKENS;
    if (token0 >= p.tokens || tile0 * TILE >= p.rows) return;

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
        finish<S::W::ROW_SCALED>(p, token0 + token, tile0 * TILE + row, sum);
    }
}

// nested sums take registers: two tiles of rows at once are too many
constexpr bool ONE_BY_ONE = Weights<FMT>::NESTED;
