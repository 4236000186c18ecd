// Adapters beside the matrix products: y += B A x for tokens that have one (Hu et al. 2021). -DWIDE: numbers of A and B are
// float32 (1) or float16 (0). A site is one product of the model; the A of its parts lie one below the other, so `shrink`
// runs once for a site and `expand` for each of its parts.
//
// Each token does its sums alone and in one order, whatever else is in the step.
#include "rows.cuh"

constexpr int THREADS = 128;

struct Pair {  // what an adapter has for a site (a), or for a part of it (b)
    u64 a;      // [rank][ldx], zeros behind the last column; 0: nothing
    u64 b;      // [rank][outputs]: B^T times the adapter's scale; 0: nothing
    int rank, first;  // rows of a; rows of b, and the first row of h that is theirs
};

struct Eight {
    float v[8];
};
DEVICE Eight eight_of(const void* p, int form, size_t at) {
    Eight found;
    if (form == AS_F32) {
        float4 low = *(const float4*)((const float*)p + at), high = *(const float4*)((const float*)p + at + 4);
        found = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    } else {
        uint4 bits = *(const uint4*)((const u16*)p + at);
        u32 pairs[4] = {bits.x, bits.y, bits.z, bits.w};
        UNROLL
        for (int i = 0; i < 4; i++) {
            found.v[2 * i] = form == AS_F16 ? low_of<F16>(pairs[i]) : low_of<BF16>(pairs[i]);
            found.v[2 * i + 1] = form == AS_F16 ? high_of<F16>(pairs[i]) : high_of<BF16>(pairs[i]);
        }
    }
    return found;
}

// h[t] = A x[t] for t < counts[0], of the adapter in slot adapters[t]; -1: none. x [tokens, ldx]: an operand of a product,
// times xscale[t] where that is not 0. h [tokens, ldh] float32. grid (tokens, at most). A warp has a row of A at a time.
KERNEL(THREADS, 8) shrink(const void* x, int form, const float* xscale, const int* adapters, const int* counts,
                          const Pair* pairs, float* h, int ldx, int ldh) {
    int token = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= counts[0] || adapters[token] < 0) return;
    Pair pair = pairs[adapters[token]];
    if (!pair.a) return;
    for (int row = warp; row < pair.rank; row += THREADS / 32) {
        float sum = 0.f;
        for (int column = lane * 8; column < ldx; column += 256) {
            Eight a = eight_of((const void*)pair.a, WIDE ? AS_F32 : AS_F16, (size_t)row * ldx + column);
            Eight b = eight_of(x, form, (size_t)token * ldx + column);
            UNROLL
            for (int i = 0; i < 8; i++) sum = fmaf(a.v[i], b.v[i], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) h[(size_t)token * ldh + row] = xscale ? sum * xscale[token] : sum;
    }
}

// y[t][column + n] += B h[t] for n < outputs. grid (tokens, ceil(outputs / 256))
KERNEL(THREADS, 8) expand(const float* h, const int* adapters, const int* counts, const Pair* pairs, float* y, int column,
                          int outputs, int ldh, int ldy) {
    int token = blockIdx.x, n = (blockIdx.y * THREADS + threadIdx.x) * 2;
    if (token >= counts[0] || adapters[token] < 0 || n >= outputs) return;
    Pair pair = pairs[adapters[token]];
    if (!pair.b) return;
    const float* own = h + (size_t)token * ldh + pair.first;
    bool both = n + 1 < outputs;
    float low = 0.f, high = 0.f;
    for (int row = 0; row < pair.rank; row++) {
        size_t at = (size_t)row * outputs + n;
        float factor = own[row];
        if (WIDE) {
            low = fmaf(((const float*)pair.b)[at], factor, low);
            if (both) high = fmaf(((const float*)pair.b)[at + 1], factor, high);
        } else {
            low = fmaf(f16_value(((const u16*)pair.b)[at]), factor, low);
            if (both) high = fmaf(f16_value(((const u16*)pair.b)[at + 1]), factor, high);
        }
    }
    float* target = y + (size_t)token * ldy + column + n;
    target[0] += low;
    if (both) target[1] += high;
}
