// Gated activations: out = act(gate) * up. One block of 256 threads a token.
#include "rows.cuh"

constexpr int THREADS = 256;
enum { SILU, GELU_TANH };

DEVICE float gated(float gate, float up, int activation) {
    if (activation == SILU) return gate / (1.f + __expf(-gate)) * up;
    // Hendrycks & Gimpel 2016; 0.79788456 is the root of 2 / pi
    return 0.5f * gate * (1.f + tanh_of(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
}
DEVICE float4 gated(const float* gate_up, int column, int columns, int activation) {
    float4 gate = read_four(gate_up, column, columns), up = {};
    if (columns % 4 == 0) up = read_four(gate_up + columns, column, columns);
    else {  // the second half does not begin where 16 bytes do
        const float* second = gate_up + columns;
        if (column < columns) up.x = second[column];
        if (column + 1 < columns) up.y = second[column + 1];
        if (column + 2 < columns) up.z = second[column + 2];
        if (column + 3 < columns) up.w = second[column + 3];
    }
    return {gated(gate.x, up.x, activation), gated(gate.y, up.y, activation), gated(gate.z, up.z, activation),
            gated(gate.w, up.w, activation)};
}

// gate_up [tokens, ldg] float32, gate in columns 0 to F - 1, up in F to 2F - 1. out: an operand [tokens, ldo].
// Where it is float16, products past its range (Gemma has some) are divided by a power of two, xscale[token], that is 1
// for tokens without.
KERNEL(THREADS, 4) glu(const float* gate_up, void* out, float* xscale, int form, const int* counts, int columns, int ldg,
                       int ldo, int activation) {
    __shared__ float room[THREADS / 32];
    int token = blockIdx.x;
    if (token >= counts[0]) return;
    const float* row = gate_up + (size_t)token * ldg;
    float inverse = 1.f;
    if (form == AS_F16) {
        float largest = 0.f;
        for (int column = threadIdx.x * 4; column < columns; column += THREADS * 4) {
            float4 y = gated(row, column, columns, activation);
            largest = fmaxf(fmaxf(largest, fmaxf(fabsf(y.x), fabsf(y.y))), fmaxf(fabsf(y.z), fabsf(y.w)));
        }
        largest = warp_max(largest);
        if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = largest;
        __syncthreads();
        UNROLL
        for (int warp = 0; warp < THREADS / 32; warp++) largest = fmaxf(largest, room[warp]);
        int power = max(0, (int)(__float_as_uint(largest) >> 23) - 127 - 14);  // largest < 2^15 * 2^power
        inverse = __uint_as_float((127 - power) << 23);
        if (threadIdx.x == 0) xscale[token] = __uint_as_float((127 + power) << 23);
    }
    for (int column = threadIdx.x * 4; column < ldo; column += THREADS * 4)
        write_four(out, form, (size_t)token * ldo + column, times(gated(row, column, columns, activation), inverse));
}
