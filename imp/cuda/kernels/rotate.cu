// Between the product that makes q, k and v, and attention: norms of heads, rope, and keys and values into the cache.
// -DKV, -DD: see kv.cuh.
//
// One warp a head: blocks 0 to H - 1 of y are query heads, then G key heads, then G value heads. grid (tokens, H + 2G)
#include "kv.cuh"

// x [D] of shared memory: RMS norm
DEVICE void norm_head(float* x, const float* w, float eps) {
    int lane = threadIdx.x;
    float sum = 0.f;
    for (int i = lane; i < D; i += 32) sum += x[i] * x[i];
    float inverse = rsqrtf(warp_sum(sum) / D + eps);
    for (int i = lane; i < D; i += 32) x[i] = x[i] * inverse * w[i];
    __syncwarp();
}
// pairs (i, i + half) turn by the angle of column i
DEVICE void rope_head(float* x, const float* cos, const float* sin, int half) {
    for (int i = threadIdx.x; i < half; i += 32) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
    __syncwarp();
}
DEVICE void store_floats(const float* x, void* target) {
    for (int i = threadIdx.x; i < D; i += 32) {
        if (KV == FP32) ((float*)target)[i] = x[i];
        else ((u16*)target)[i] = KV == BF16_KV ? bf16_bits(x[i]) : f16_bits(x[i]);
    }
}

// qkv [tokens, ldqkv] float32: H heads of q, G of k, G of v. q_norm, k_norm [D] or 0. cos, sin [positions, half] or 0.
// centre [G, D]: what is taken off turned keys, or 0. q [tokens, ldq]: as attention reads it, with zeros past H * D.
KERNEL(32, 16) rotate_store(const float* qkv, const int* positions, const int* slots, const int* counts, const float* cos,
                            const float* sin, const float* q_norm, const float* k_norm, const float* centre, u8* q, u8* plane,
                            long long block_bytes, int ldqkv, int ldq, int H, int G, int half, float q_eps, float k_eps) {
    __shared__ __align__(16) float x[D];
    int token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    if (token >= counts[0]) return;
    const float* source = qkv + (size_t)token * ldqkv + head * D;
    for (int i = lane; i < D; i += 32) x[i] = source[i];
    __syncwarp();

    bool is_query = head < H, is_value = head >= H + G;
    if (!is_value) {
        const float* w = is_query ? q_norm : k_norm;
        if (w) norm_head(x, w, is_query ? q_eps : k_eps);
        if (cos) rope_head(x, cos + (size_t)positions[token] * half, sin + (size_t)positions[token] * half, half);
    }
    if (CODED) turn(x);
    if (is_query) {
        size_t at = (size_t)token * ldq + head * D;
        store_floats(x, q + at * (KV == FP32 ? 4 : 2));
        for (int i = H * D + lane; head == H - 1 && i < ldq; i += 32) {
            if (KV == FP32) ((float*)q)[(size_t)token * ldq + i] = 0.f;
            else ((u16*)q)[(size_t)token * ldq + i] = 0;
        }
        return;
    }
    int kv_head = is_value ? head - H - G : head - H, slot = slots[token];
    Place place = place_of(plane, block_bytes, slot / BLOCK, slot % BLOCK, kv_head, is_value);
    if (!CODED) {
        store_floats(x, place.codes);
        return;
    }
    for (int i = lane; centre && !is_value && i < D; i += 32) x[i] = __fsub_rn(x[i], centre[kv_head * D + i]);
    __syncwarp();
    encode(x, place);
}
