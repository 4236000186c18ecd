// Embeddings: rows of a packed matrix (weights.cuh) as float32. -DFMT. One block of 128 threads a token.
#include "weights.cuh"

constexpr int THREADS = 128;

// a weight of what is its fragment
template <class W> DEVICE float whole_of(float found, typename W::Scales s, int step) {
    if constexpr (W::NESTED) return W::whole(s) * found - W::whole_minimum(s) * low_of<typename W::Act>(W::minimum(s, step));
    else return found;
}

// out[t] = W[tokens[t]] * scale for t < counts[0]; out [tokens, ldo], zeros past D. K64: columns of W in memory
KERNEL(THREADS, 8) embed(const uint4* codes, const u8* scales, const float* row_scales, const int* tokens, const int* counts, float* out,
                         int columns, int K64, int ldo, float scale) {
    if (blockIdx.x >= counts[0]) return;
    int row = tokens[blockIdx.x] % TILE;
    size_t tile = tokens[blockIdx.x] / TILE;
    float* target = out + (size_t)blockIdx.x * ldo;
#if FMT == 0
    const float* w = (const float*)codes + tile * K64 * TILE + row;
    for (int column = threadIdx.x; column < ldo; column += THREADS)
        target[column] = column < columns ? w[(size_t)column * TILE] * scale : 0.f;
#else
    typedef Weights<FMT> W;
    if (W::ROW_SCALED) scale *= row_scales[tokens[blockIdx.x]];
    // of every record four lanes have this row, each 4 neighbouring columns of every step
    constexpr int COLUMNS = W::STEPS * STEP;
    int records = K64 / COLUMNS;
    for (int i = threadIdx.x; i < records * 4; i += THREADS) {
        int record = i / 4, part = i % 4;
        size_t at = tile * records + record;
        uint4 v = load_once(codes + at * 32 + row % 8 * 4 + part);
        W::Scales s = W::read(scales, at, row);
        UNROLL
        for (int step = 0; step < W::STEPS; step++) {
            int column = record * COLUMNS + step * STEP + part * 4;
            u32 pair[2];
            UNROLL
            for (int half = 0; half < 2; half++)
                pair[half] = row < 8 ? W::fragment(v, s, step, 2 * half) : W::fragment(v, s, step, 2 * half + 1);
            float found[4] = {low_of<W::Act>(pair[0]), high_of<W::Act>(pair[0]), low_of<W::Act>(pair[1]),
                              high_of<W::Act>(pair[1])};
            UNROLL
            for (int e = 0; e < 4; e++)
                if (column + e < ldo) target[column + e] = column + e < columns ? whole_of<W>(found[e], s, step) * scale : 0.f;
        }
    }
#endif
}
