// The body of attend.cu for float32 keys: plain float32 arithmetic, where exact numbers count and speed does not. Rows are
// done 16 at a time, 4 to a warp; a lane has two keys of a tile while scores are made, then every 32nd column of v.
#pragma once

constexpr int PASS = 16, EACH = PASS / 4, COLUMNS = (D + 31) / 32;
constexpr int BLOCKS = 2;  // of a multiprocessor

struct RowSums {  // of one row; o: columns 32 i + lane
    float m, sum, o[COLUMNS];
    __device__ __forceinline__ void reset() {
        m = NEVER, sum = 0.f;
        UNROLL
        for (int i = 0; i < COLUMNS; i++) o[i] = 0.f;
    }
};

// keys or values of a tile as [KEYS][D + 1]; zeros from `end` on
DEVICE void fetch(float* target, const Job& job, const Span& span, int head, int second, int key0) {
    for (int i = threadIdx.x; i < KEYS * D; i += THREADS) {
        int key = key0 + i / D;
        float x = 0.f;
        if (key < span.end) {
            Place p = place_of(job.plane, job.block_bytes, span.blocks[key / BLOCK], key % BLOCK, head, second);
            x = ((const float*)p.codes)[i % D];
        }
        target[i / D * (D + 1) + i % D] = x;
    }
}

DEVICE void attend_pass(const Job& job, const Span& span, int row0, int begin, int end) {
    extern __shared__ __align__(16) float room[];
    float *kept = room + PASS * D, *weights = kept + KEYS * (D + 1);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, H = job.G * GROUP, mine = warp * EACH;
    for (int i = threadIdx.x; i < PASS * D; i += THREADS) {
        int row = row0 + i / D;
        size_t at = (size_t)(span.first_token + row / GROUP) * job.ldq + (head * GROUP + row % GROUP) * D + i % D;
        room[i] = row < span.rows ? ((const float*)job.q)[at] : 0.f;
    }
    RowSums now[EACH], total[EACH];
    UNROLL
    for (int r = 0; r < EACH; r++) now[r].reset(), total[r].reset();
    for (int key0 = begin; key0 < end; key0 += KEYS) {
        __syncthreads();
        fetch(kept, job, span, head, 0, key0);
        __syncthreads();
        UNROLL
        for (int r = 0; r < EACH; r++) {
            float score[2] = {0.f, 0.f};
            for (int i = 0; i < D; i++) {
                float q = room[(mine + r) * D + i];
                UNROLL
                for (int k = 0; k < 2; k++) score[k] = fmaf(q, kept[(lane + 32 * k) * (D + 1) + i], score[k]);
            }
            int position = span.first_position + (row0 + mine + r) / GROUP;
            UNROLL
            for (int k = 0; k < 2; k++)
                score[k] = seen_score(score[k], key0 + lane + 32 * k, position, job.scale, job.softcap, job.window);
            float top = fmaxf(now[r].m, warp_max(fmaxf(score[0], score[1]))), f = exp2_of(now[r].m - top), sum = 0.f;
            UNROLL
            for (int k = 0; k < 2; k++) {
                float weight = score[k] == NEVER ? 0.f : exp2_of(score[k] - top);
                weights[(mine + r) * KEYS + lane + 32 * k] = weight;
                sum += weight;
            }
            now[r].m = top;
            now[r].sum = fmaf(now[r].sum, f, warp_sum(sum));
            UNROLL
            for (int i = 0; i < COLUMNS; i++) now[r].o[i] *= f;
        }
        __syncthreads();
        fetch(kept, job, span, head, 1, key0);
        __syncthreads();
        for (int key = 0; key < KEYS; key++)
            UNROLL
            for (int i = 0; i < COLUMNS; i++) {
                float v = i * 32 + lane < D ? kept[key * (D + 1) + i * 32 + lane] : 0.f;
                UNROLL
                for (int r = 0; r < EACH; r++) now[r].o[i] = fmaf(weights[(mine + r) * KEYS + key], v, now[r].o[i]);
            }
        if ((key0 + KEYS) % SPLIT != 0 && key0 + KEYS < end) continue;
        UNROLL
        for (int r = 0; r < EACH; r++) {
            Merge f = merge(total[r].m, total[r].sum, now[r].m, now[r].sum);
            UNROLL
            for (int i = 0; i < COLUMNS; i++) total[r].o[i] = merged(total[r].o[i], now[r].o[i], f);
            now[r].reset();
        }
    }
    UNROLL
    for (int r = 0; r < EACH; r++) {
        int row = row0 + mine + r, token = span.first_token + row / GROUP, own = head * GROUP + row % GROUP;
        if (row >= span.rows) continue;
        float* target = job.splits > 1 ? partial_of(job.partial, token, H, own, job.splits, blockIdx.z) : room + (mine + r) * D;
        UNROLL
        for (int i = 0; i < COLUMNS; i++)
            if (i * 32 + lane < D)
                target[i * 32 + lane] = job.splits > 1 ? total[r].o[i] : __fdividef(total[r].o[i], total[r].sum);
        if (job.splits == 1) {
            __syncwarp();
            write_head(target, job.out, job.form, token, own, H, job.ldo);
        } else if (lane == 0) {
            target[D] = total[r].m;
            target[D + 1] = total[r].sum;
        }
    }
    __syncthreads();
}

DEVICE void attend_tile(const Job& job, const Span& span) {
    int begin = span.begin, end = span.end;
    if (job.splits > 1) begin = max(begin, (int)blockIdx.z * SPLIT), end = min(end, (int)(blockIdx.z + 1) * SPLIT);
    for (int row0 = 0; row0 < span.rows; row0 += PASS) attend_pass(job, span, row0, begin, end);
}
