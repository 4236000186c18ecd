// Attention over the paged cache, for prompts, single tokens and guesses alike. -DKV, -DD: see kv.cuh. -DGROUP: query heads
// of a kv head. -DROWS: 16, 32 or 64.
//
// A block has a tile of ROWS rows, the GROUP heads of neighbouring tokens of one sequence, so that keys are read once for
// a group. Keys come in tiles of 64 from position 0 on; every 512 of them, a split, are summed from nothing and then merged
// into the total, in ascending order. One block walks all splits of its tile, or each split has a block and `combine`
// merges: the same numbers in the same order, so bits depend neither on that nor on ROWS, and not on other tokens.
//
// out = softmax(scale * q.k) v over the keys at positions <= the token's own, of the last `window` where that is > 0.
#include "kv.cuh"
#include "rows.cuh"

constexpr int SPLIT = 512, KEYS = 64, THREADS = 128;

struct Job {  // the arguments of `attend`
    const u8* q;
    u8* plane;
    void* out;
    float* partial;
    u64 block_bytes;
    int form, ldq, ldo, G, window, splits;
    float scale, softcap;
};

struct Tile {
    int sequence, token;  // the first token, counted from the sequence's first in this step
};

// What a block needs to know of its tile.
struct Span {
    int first_token;       // of the step: row 0
    int rows;              // that there are, of ROWS
    int first_position;    // of row 0
    int begin, end;        // keys that some row sees; begin is a multiple of KEYS
    const int* blocks;     // of the sequence
};
DEVICE Span span_of(const Tile& tile, const int* table, const int* table_starts, const int* contexts, const int* row_starts,
                    int window) {
    constexpr int TOKENS = ROWS / GROUP > 0 ? ROWS / GROUP : 1;
    int first = row_starts[tile.sequence], count = row_starts[tile.sequence + 1] - first;
    int tokens = min(TOKENS, count - tile.token);
    Span s;
    s.first_token = first + tile.token;
    s.rows = tokens * GROUP;
    s.first_position = contexts[tile.sequence] - count + tile.token;
    s.end = s.first_position + tokens;
    s.begin = window > 0 ? max(0, s.first_position - window + 1) / KEYS * KEYS : 0;
    s.blocks = table + table_starts[tile.sequence];
    return s;
}

// The running softmax of a row: its largest score, in powers of two, and the sum of weights; and what weights of before
// are to be multiplied with when a total takes in a split.
struct Merge {
    float total, split;
};
DEVICE Merge merge(float& m, float& sum, float split_m, float split_sum) {
    float top = fmaxf(m, split_m);
    Merge f = {exp2_of(m - top), exp2_of(split_m - top)};
    m = top;
    sum = __fmaf_rn(sum, f.total, __fmul_rn(split_sum, f.split));
    return f;
}
DEVICE float merged(float total, float split, Merge f) { return __fmaf_rn(total, f.total, __fmul_rn(split, f.split)); }

// what a row's raw score becomes, in powers of two
DEVICE float seen_score(float score, int key, int position, float scale, float softcap, int window) {
    bool seen = key <= position && (window <= 0 || key > position - window);
    score *= scale;
    if (softcap > 0.f) score = capped(score, softcap);
    return seen ? score * LOG2E : NEVER;
}

// [tokens][H][splits] of D sums, the largest score, the sum of weights
DEVICE float* partial_of(float* partial, int token, int H, int head, int splits, int split) {
    return partial + (((size_t)token * H + head) * splits + split) * (D + 2);
}

// D finished numbers of one head, in shared memory, by one warp, to their place in an operand; zeros behind the last head
DEVICE void write_head(float* x, void* out, int form, int token, int head, int H, int ldo) {
    int lane = threadIdx.x % 32;
    if (CODED) turn(x);
    for (int i = lane * 4; i < D; i += 128) write_four(out, form, (size_t)token * ldo + head * D + i, *(float4*)(x + i));
    for (int i = H * D + lane * 4; head == H - 1 && i < ldo; i += 128)
        write_four(out, form, (size_t)token * ldo + i, float4{0.f, 0.f, 0.f, 0.f});
}

#if KV == 0
#include "attend_exact.cuh"
#else
#include "attend_mma.cuh"
#endif

// q [tokens, ldq], H = G * GROUP heads of D, as rotate_store leaves it. tiles: counts[4] of them; counts[5] splits reach
// the longest context. out [tokens, ldo], an operand. grid (G, tiles, splits), 128 threads, shared memory of 256 (D + 8) bytes
// (FP32: 4 (81 D + 1088)). splits > 1: block z has split z, and writes to `partial`.
KERNEL(THREADS, BLOCKS) attend(const u8* q, u8* plane, const int* table, const int* table_starts, const int* contexts,
                               const int* row_starts, const Tile* tiles, const int* counts, void* out, float* partial,
                               long long block_bytes, int form, int ldq, int ldo, int G, float scale, float softcap, int window,
                               int splits) {
    if (blockIdx.y >= counts[4] || (splits > 1 && blockIdx.z >= counts[5])) return;
    Span span = span_of(tiles[blockIdx.y], table, table_starts, contexts, row_starts, window);
    attend_tile({q, plane, out, partial, (u64)block_bytes, form, ldq, ldo, G, window, splits, scale, softcap}, span);
}

// Merges the splits of a head. grid (tokens, H), 32 threads
KERNEL(32, 16) combine(float* partial, const int* counts, void* out, int form, int ldo, int H, int splits) {
    __shared__ __align__(16) float x[D];
    int token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    if (token >= counts[0]) return;
    float m = NEVER, sum = 0.f, o[(D + 31) / 32] = {};
    for (int split = 0; split < min(splits, counts[5]); split++) {
        const float* part = partial_of(partial, token, H, head, splits, split);
        if (part[D + 1] == 0.f) continue;  // nothing that this row sees; its other numbers were not written
        Merge f = merge(m, sum, part[D], part[D + 1]);
        UNROLL
        for (int i = 0; i < (D + 31) / 32; i++)
            if (i * 32 + lane < D) o[i] = merged(o[i], part[i * 32 + lane], f);
    }
    UNROLL
    for (int i = 0; i < (D + 31) / 32; i++)
        if (i * 32 + lane < D) x[i * 32 + lane] = __fdividef(o[i], sum);
    __syncwarp();
    write_head(x, out, form, token, head, H, ldo);
}
