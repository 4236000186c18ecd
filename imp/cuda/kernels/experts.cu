// Mixtures of experts: which experts a token goes to, its rows put beside those of the same expert, and their results
// added up. Between these, linear_experts.cu multiplies. Nothing of it needs the host: sizes stay on the device.
//
// An *entry* is a token with one of its K experts: entry k of token t is number t * K + k. Entries of an expert lie together
// in order of their numbers, and begin at a multiple of `align`, so that each block of a product, which has as many rows,
// has one expert. A row is the same wherever it lies, and results are added in the order of k: bits depend on the token
// alone.
#include "rows.cuh"

constexpr int MOST_EXPERTS = 512, THREADS = 256;

// Where scores come from: softmax of all logits, softmax of the chosen ones, or a sigmoid of each.
enum { SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID };

DEVICE float scored(float logit, float top, float inverse, int kind) {
    if (kind == SIGMOID) return 1.f / (1.f + __expf(-logit));
    return kind == SOFTMAX ? __expf(logit - top) * inverse : logit;
}

// experts[t][k], weights[t][k] for t < counts[0]: the K experts with the largest score + bias, the largest first, of equals
// the lowest. logits [tokens, ld] of E experts. bias [E] or 0 chooses alone: weights are without it. normalise: the weights
// of a token add up to 1. All are times `scale`. grid (tokens, at most), one warp
KERNEL(32, 16) route(const float* logits, const float* bias, const int* counts, int* experts, float* weights, int E, int K, int ld,
                     int kind, int normalise, float scale) {
    __shared__ float keys[MOST_EXPERTS];
    int token = blockIdx.x, lane = threadIdx.x;
    if (token >= counts[0]) return;
    const float* row = logits + (size_t)token * ld;
    float top = -__int_as_float(0x7f800000), sum = 0.f;
    for (int e = lane; e < E; e += 32) top = fmaxf(top, row[e]);
    top = warp_max(top);
    for (int e = lane; e < E; e += 32) sum += __expf(row[e] - top);
    float inverse = 1.f / warp_sum(sum);
    for (int e = lane; e < E; e += 32) keys[e] = scored(row[e], top, inverse, kind) + (bias ? bias[e] : 0.f);
    __syncwarp();
    float chosen = 0.f;  // the weight of choice `lane`
    for (int k = 0; k < K; k++) {
        float best = -__int_as_float(0x7f800000);
        int at = MOST_EXPERTS;
        for (int e = lane; e < E; e += 32)
            if (keys[e] > best) best = keys[e], at = e;
        float all = warp_max(best);
        at = min(__reduce_min_sync(~0u, best == all ? (u32)at : (u32)MOST_EXPERTS), E - 1);  // of no numbers at all: the last
        if (lane == k) {
            chosen = scored(row[at], top, inverse, kind);
            experts[token * K + k] = at;
        }
        __syncwarp();
        if (lane == 0) keys[at] = -__int_as_float(0x7f800000);
        __syncwarp();
    }
    float first = __shfl_sync(~0u, chosen, 0);
    if (kind == SOFTMAX_OF_CHOSEN) chosen = __expf(chosen - first);
    float total = warp_sum(lane < K ? chosen : 0.f);
    if (normalise || kind == SOFTMAX_OF_CHOSEN) chosen /= total;
    if (lane < K) weights[token * K + lane] = chosen * scale;
}

// sizes[e] = how many entries expert e has. grid (E), one warp
KERNEL(32, 16) count_entries(const int* experts, const int* counts, int* sizes, int K) {
    int entries = counts[0] * K, lane = threadIdx.x, size = 0;
    for (int i = lane; i < entries; i += 32) size += experts[i] == blockIdx.x;
    size = __reduce_add_sync(~0u, size);
    if (lane == 0) sizes[blockIdx.x] = size;
}

// places[entry] is the entry's row among those of all experts, sources[row] the token whose row it is, -1: none;
// tile_expert[i] the expert of rows i * align to (i + 1) * align - 1, for i < tiles; -1 from the last on. total[0]: how many
// rows that are. grid (E), one warp
KERNEL(32, 16) place(const int* experts, const int* sizes, const int* counts, int* places, int* sources, int* tile_expert,
                     int* total, int E, int K, int align, int tiles) {
    int expert = blockIdx.x, entries = counts[0] * K, lane = threadIdx.x, start = 0;
    for (int e = lane; e < expert; e += 32) start += (sizes[e] + align - 1) / align;
    start = __reduce_add_sync(~0u, start) * align;
    int end = start + (sizes[expert] + align - 1) / align * align, row = start;
    for (int first = 0; first < entries; first += 32) {
        bool here = first + lane < entries && experts[first + lane] == expert;
        u32 all = __ballot_sync(~0u, here);
        int at = row + __popc(all & ((1u << lane) - 1));
        if (here) {
            places[first + lane] = at;
            sources[at] = (first + lane) / K;
        }
        row += __popc(all);
    }
    for (int i = row + lane; i < end; i += 32) sources[i] = -1;
    for (int i = start / align + lane; i < (expert == E - 1 ? tiles : end / align); i += 32)
        tile_expert[i] = i < end / align ? expert : -1;
    if (expert == E - 1 && lane == 0) total[0] = end;
}

// y[t] += the sum over k of weights[t][k] * x[places[t][k]], in this order. grid (tokens, at most)
KERNEL(THREADS, 4) gather(const float* x, const int* places, const float* weights, const int* counts, float* y, int columns, int K,
                          int ldx, int ldy) {
    int token = blockIdx.x;
    if (token >= counts[0]) return;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        float sum = 0.f;
        for (int k = 0; k < K; k++)
            sum = fmaf(weights[token * K + k], x[(size_t)places[token * K + k] * ldx + column], sum);
        y[(size_t)token * ldy + column] += sum;
    }
}
