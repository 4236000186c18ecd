// The body of attend.cu for keys that are 16-bit numbers, or become such: products by mma.m16n8k16.
//
// ROWS / 16 warps share out the rows. Where that leaves warps over, several have the same 16 rows: each makes the scores of
// a part of the 64 keys, they exchange them through shared memory, and each goes on with all scores and a part of the D
// columns of v. The numbers of a row are made by the same operations in the same order either way.
//
// Keys and values of a tile have a buffer each: while scores become weights the next keys arrive, and while the next scores
// are made the next values do.
#pragma once

#if KV == 2
typedef BF16 Kept;
#else
typedef F16 Kept;
#endif

constexpr int ROW_WARPS = ROWS / 16, SHARERS = 4 / ROW_WARPS;
constexpr int STRIDE = 2 * D + 16;                  // bytes of a vector in shared memory; 8 neighbours lie in 8 bank groups
constexpr int VECTOR_STEPS = D / 16;
constexpr int MINE = (VECTOR_STEPS + SHARERS - 1) / SHARERS;  // steps of 16 columns of v that a warp has
constexpr int KEY_TILES = 8 / SHARERS;                        // tiles of 8 keys whose scores a warp makes
constexpr bool Q_HELD = D <= 128;                             // in registers; else in shared memory
constexpr int BLOCKS = D <= 64 && ROWS < 64 ? 3 : 2;  // of a multiprocessor
constexpr int SCORE_STRIDE = KEYS + 4;

// 16 bytes of every vector of a tile, from the cache to shared memory; zeros from `end` on
DEVICE void fetch(u32 target, const Job& job, const Span& span, int head, int second, int key0) {
    if (CODED) {
        for (int i = threadIdx.x; i < KEYS * GROUPS; i += THREADS) {
            int key = key0 + i / GROUPS, group = i % GROUPS;
            float x[16] = {};
            if (key < span.end) {
                Place p = place_of(job.plane, job.block_bytes, span.blocks[key / BLOCK], key % BLOCK, head, second);
                decode(x, p, group);
            }
            u32 at = target + i / GROUPS * STRIDE + group * 32;
            UNROLL
            for (int part = 0; part < 2; part++)
                store_shared(at + part * 16, {Kept::pair(x[8 * part], x[8 * part + 1]), Kept::pair(x[8 * part + 2], x[8 * part + 3]),
                                              Kept::pair(x[8 * part + 4], x[8 * part + 5]), Kept::pair(x[8 * part + 6], x[8 * part + 7])});
        }
        return;
    }
    constexpr int PARTS = D / 8;
    for (int i = threadIdx.x; i < KEYS * PARTS; i += THREADS) {
        int key = key0 + i / PARTS, there = min(key, span.end - 1);
        Place p = place_of(job.plane, job.block_bytes, span.blocks[there / BLOCK], there % BLOCK, head, second);
        copy_async(target + i / PARTS * STRIDE + i % PARTS * 16, p.codes + i % PARTS * 16, key < span.end);
    }
}

struct RowSums {  // of the lane's rows l / 4 and l / 4 + 8, and of its columns of v
    float m[2], sum[2], o[MINE * 2][4];
    __device__ __forceinline__ void reset() {
        UNROLL
        for (int h = 0; h < 2; h++) m[h] = NEVER, sum[h] = 0.f;
        UNROLL
        for (int i = 0; i < MINE * 2; i++)
            UNROLL
            for (int j = 0; j < 4; j++) o[i][j] = 0.f;
    }
};

DEVICE void attend_tile(const Job& job, const Span& span) {
    extern __shared__ __align__(16) u8 room[];
    __shared__ float exchanged[SHARERS > 1 ? ROWS * SCORE_STRIDE : 1];
    __shared__ __align__(16) u8 queries[Q_HELD ? 16 : ROWS * STRIDE];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, H = job.G * GROUP;
    int row0 = warp / SHARERS * 16, share = warp % SHARERS;
    u32 keys = shared_address(room), values = keys + KEYS * STRIDE;

    int begin = span.begin, end = span.end;
    if (job.splits > 1) begin = max(begin, (int)blockIdx.z * SPLIT), end = min(end, (int)(blockIdx.z + 1) * SPLIT);
    if (begin < end) fetch(keys, job, span, head, 0, begin);
    copies_commit();
    if (begin < end) fetch(values, job, span, head, 1, begin);
    copies_commit();

    // q of the rows; rows past the last are zeros
    u32 held[Q_HELD ? VECTOR_STEPS : 1][4];
    auto query = [&](int row, int column) -> const u16* {
        return (const u16*)job.q + (size_t)(span.first_token + row / GROUP) * job.ldq + (head * GROUP + row % GROUP) * D + column;
    };
    if (Q_HELD) {
        UNROLL
        for (int step = 0; step < (Q_HELD ? VECTOR_STEPS : 0); step++)
            UNROLL
            for (int r = 0; r < 4; r++) {
                int row = row0 + lane / 4 + r % 2 * 8, column = step * 16 + lane % 4 * 2 + r / 2 * 8;
                held[step][r] = row < span.rows ? *(const u32*)query(row, column) : 0;
            }
    } else {
        for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
            int row = i / (D / 8), column = i % (D / 8) * 8;
            uint4 v = row < span.rows ? *(const uint4*)query(row, column) : uint4{0, 0, 0, 0};
            *(uint4*)(queries + row * STRIDE + column * 2) = v;
        }
    }

    RowSums now, total;
    now.reset();
    total.reset();
    for (int key0 = begin; key0 < end; key0 += KEYS) {
        copies_wait<1>();
        __syncthreads();  // keys are there

        float scores[8][4];
        UNROLL
        for (int n = 0; n < 8; n++)
            UNROLL
            for (int j = 0; j < 4; j++) scores[n][j] = 0.f;
        UNROLL
        for (int step = 0; step < VECTOR_STEPS; step++) {
            u32 a[4];
            if (Q_HELD) {
                UNROLL
                for (int r = 0; r < 4; r++) a[r] = held[Q_HELD ? step : 0][r];
            } else load_matrices(a, shared_address(queries) + (row0 + lane % 16) * STRIDE + step * 32 + lane / 16 * 16);
            UNROLL
            for (int n = 0; n < KEY_TILES; n += 2) {
                u32 b[4];
                int key = (share * KEY_TILES + n) * 8 + lane % 8 + lane / 16 * 8;
                load_matrices(b, keys + key * STRIDE + step * 32 + lane / 8 % 2 * 16);
                Kept::mma(scores[n], a, b[0], b[1]);
                Kept::mma(scores[n + 1], a, b[2], b[3]);
            }
        }
        UNROLL
        for (int n = 0; n < KEY_TILES; n++)
            UNROLL
            for (int j = 0; j < 4; j++) {
                int key = key0 + (share * KEY_TILES + n) * 8 + lane % 4 * 2 + j % 2;
                int row = row0 + lane / 4 + j / 2 * 8, position = span.first_position + row / GROUP;
                scores[n][j] = seen_score(scores[n][j], key, position, job.scale, job.softcap, job.window);
                if (SHARERS > 1) exchanged[row * SCORE_STRIDE + key - key0] = scores[n][j];
            }
        __syncthreads();  // keys are used, scores are exchanged
        if (key0 + KEYS < end) fetch(keys, job, span, head, 0, key0 + KEYS);
        copies_commit();
        if (SHARERS > 1) {
            UNROLL
            for (int n = 0; n < 8; n++)
                UNROLL
                for (int j = 0; j < 4; j++)
                    scores[n][j] = exchanged[(row0 + lane / 4 + j / 2 * 8) * SCORE_STRIDE + n * 8 + lane % 4 * 2 + j % 2];
        }

        UNROLL
        for (int h = 0; h < 2; h++) {
            float top = now.m[h];
            UNROLL
            for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
            top = quad_max(top);
            float kept = exp2_of(now.m[h] - top);
            now.m[h] = top;
            now.sum[h] *= kept;
            UNROLL
            for (int i = 0; i < MINE * 2; i++) now.o[i][2 * h] *= kept, now.o[i][2 * h + 1] *= kept;
        }
        u32 weights[8][2];
        UNROLL
        for (int n = 0; n < 8; n++)
            UNROLL
            for (int h = 0; h < 2; h++) {
                float low = scores[n][2 * h] == NEVER ? 0.f : exp2_of(scores[n][2 * h] - now.m[h]);
                float high = scores[n][2 * h + 1] == NEVER ? 0.f : exp2_of(scores[n][2 * h + 1] - now.m[h]);
                now.sum[h] += low + high;
                weights[n][h] = Kept::pair(low, high);
            }

        copies_wait<1>();
        __syncthreads();  // values are there
        UNROLL
        for (int n = 0; n < 4; n++) {
            u32 a[4] = {weights[2 * n][0], weights[2 * n][1], weights[2 * n + 1][0], weights[2 * n + 1][1]};
            UNROLL
            for (int i = 0; i < MINE; i++) {
                int step = share * MINE + i;
                if (step >= VECTOR_STEPS) break;
                u32 b[4];
                load_matrices_turned(b, values + (n * 16 + lane % 16) * STRIDE + step * 32 + lane / 16 * 16);
                Kept::mma(now.o[2 * i], a, b[0], b[1]);
                Kept::mma(now.o[2 * i + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();  // values are used
        if (key0 + KEYS < end) fetch(values, job, span, head, 1, key0 + KEYS);
        copies_commit();

        if ((key0 + KEYS) % SPLIT == 0 || key0 + KEYS >= end) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                Merge f = merge(total.m[h], total.sum[h], now.m[h], quad_sum(now.sum[h]));
                UNROLL
                for (int i = 0; i < MINE * 2; i++)
                    UNROLL
                    for (int j = 2 * h; j < 2 * h + 2; j++) total.o[i][j] = merged(total.o[i][j], now.o[i][j], f);
            }
            now.reset();
        }
    }
    copies_wait<0>();

    if (job.splits > 1) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            int row = row0 + lane / 4 + h * 8;
            if (row >= span.rows) continue;
            float* part = partial_of(job.partial, span.first_token + row / GROUP, H, head * GROUP + row % GROUP, job.splits, blockIdx.z);
            UNROLL
            for (int i = 0; i < MINE * 2; i++) {
                int column = share * MINE * 16 + i * 8 + lane % 4 * 2;
                if (column < D) *(float2*)(part + column) = {total.o[i][2 * h], total.o[i][2 * h + 1]};
            }
            if (share == 0 && lane % 4 == 0) *(float2*)(part + D) = {total.m[h], total.sum[h]};
        }
        return;
    }
    float* finished = (float*)room;  // [ROWS][D + 4]
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
        for (int i = 0; i < MINE * 2; i++) {
            int row = row0 + lane / 4 + h * 8, column = share * MINE * 16 + i * 8 + lane % 4 * 2;
            if (column < D)
                *(float2*)(finished + row * (D + 4) + column) = {__fdividef(total.o[i][2 * h], total.sum[h]),
                                                                 __fdividef(total.o[i][2 * h + 1], total.sum[h])};
        }
    __syncthreads();
    for (int row = warp; row < span.rows; row += THREADS / 32)
        write_head(finished + row * (D + 4), job.out, job.form, span.first_token + row / GROUP, head * GROUP + row % GROUP, H, job.ldo);
}
