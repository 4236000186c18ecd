// Rows from one form to another, and the cap on logits.
#include "rows.cuh"

constexpr int THREADS = 256;

// float32 rows as the operand of a matrix product. grid (tokens, at most)
KERNEL(THREADS, 4) convert(const float* x, void* out, int form, const int* counts, int columns, int ldx, int ldo) {
    if (blockIdx.x >= counts[0]) return;
    const float* row = x + (size_t)blockIdx.x * ldx;
    for (int column = threadIdx.x * 4; column < ldo; column += THREADS * 4)
        write_four(out, form, (size_t)blockIdx.x * ldo + column, read_four(row, column, columns));
}

// x = cap * tanh(x / cap), in place, for rows < counts[word]. grid (rows, ceil(columns / 1024))
KERNEL(THREADS, 4) softcap(float* x, const int* counts, int word, int columns, int ld, float cap) {
    if (blockIdx.x >= counts[word]) return;
    float* row = x + (size_t)blockIdx.x * ld;
    int last = min(columns, (int)(blockIdx.y + 1) * THREADS * 4);
    for (int column = blockIdx.y * THREADS * 4 + threadIdx.x; column < last; column += THREADS)
        row[column] = capped(row[column], cap);
}
