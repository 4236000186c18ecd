// RMS norm: y = x / sqrt(mean(x^2) + eps) * w. One block of 256 threads a row, 4 columns a thread at a time; the row is read
// again from the cache for the second pass.
#include "rows.cuh"

constexpr int THREADS = 256;

// 1 / sqrt(mean + eps) of a row, for all threads of the block
DEVICE float inverse_rms(const float* row, int columns, float eps) {
    __shared__ float room[THREADS / 32];
    float sum = 0.f;
    for (int column = threadIdx.x * 4; column < columns; column += THREADS * 4) sum += squares(read_four(row, column, columns));
    return rsqrtf(block_sum<THREADS / 32>(sum, room) / (float)columns + eps);
}

// out[i] = norm(x[rows ? rows[i] : i]) for i < counts[word], in the form of an operand. grid (rows, at most)
KERNEL(THREADS, 4) rms_norm(const float* x, const float* w, const int* rows, const int* counts, int word, void* out, int form,
                            int columns, int ldx, int ldo, float eps) {
    int i = blockIdx.x;
    if (i >= counts[word]) return;
    const float* row = x + (size_t)(rows ? rows[i] : i) * ldx;
    float inverse = inverse_rms(row, columns, eps);
    for (int column = threadIdx.x * 4; column < ldo; column += THREADS * 4) {
        float4 y = times(times(read_four(row, column, columns), inverse), read_four(w, column, columns));
        write_four(out, form, (size_t)i * ldo + column, y);
    }
}

// residual[i] += norm(x[i]) for i < counts[0]. grid (tokens, at most)
KERNEL(THREADS, 4) rms_norm_add(const float* x, const float* w, float* residual, const int* counts, int columns, int ldx,
                                int ldr, float eps) {
    if (blockIdx.x >= counts[0]) return;
    const float* row = x + (size_t)blockIdx.x * ldx;
    float* target = residual + (size_t)blockIdx.x * ldr;
    float inverse = inverse_rms(row, columns, eps);
    for (int column = threadIdx.x; column < columns; column += THREADS) target[column] += row[column] * inverse * w[column];
}
