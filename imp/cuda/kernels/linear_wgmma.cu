// The product of linear.cu for many tokens on Hopper: wgmma, fed by TMA. -DFMT. For sm_90a alone.
//
// Weights come from memory straight into the registers of wgmma's A, as for mma.m16n8k16: the four warps of a group have
// four neighbouring tiles of 16 rows. Activations are its B, 64 tokens and 64 columns at a time, which one warp has TMA
// bring into a ring of shared memory; two groups of warps multiply, each its own 64 rows.
//
// B's columns lie as the instruction wants them, and those of packed weights are in our order (weights.cuh), so activations
// are brought into that order first, by `in_order`.
//
// The four partial sums are those of linear.cu, with an accumulator each.
#include "weights.cuh"

constexpr int TOKENS = 64, COLUMNS = 64, STAGES = 4, STAGE_BYTES = TOKENS * COLUMNS * 2, GROUPS = 2, ROWS = 64;

struct __align__(64) TensorMap {
    u64 words[16];
};

// -- barriers and copies of shared memory (PTX ISA: mbarrier, cp.async.bulk.tensor) ------------------------------------------

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\n"
        "DONE:\n}" ::"r"(barrier), "r"(parity)
        : "memory");
}
DEVICE void fetch_box(u32 target, const TensorMap* map, u32 barrier, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

// -- wgmma ----------------------------------------------------------------------------------------------------------------

// of a box of 128-byte rows, swizzled by 128 bytes: 8 rows are 1024 bytes apart from the next 8
DEVICE u64 descriptor(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
#define EIGHT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA(TYPE)                                                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                            \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
                 "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"                                                 \
                 : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// D[64, 64] += A[64, 16] B[16, 64]; lane registers of A and D as mma's, D in tiles of 8 tokens
template <class Act> DEVICE void wgmma(float (&d)[32], const u32 (&a)[4], u64 b) {
    if constexpr (Act::HALF) WGMMA("f16");
    else WGMMA("bf16");
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// -- entries --------------------------------------------------------------------------------------------------------------

// x [tokens, ld] of 16 bits to out, alike: of every 16 columns the pair (4t + 2h, 4t + 2h + 1) goes to 2t + 8h, for t < 4,
// h < 2. grid (tokens, at most), 128 threads
KERNEL(128, 8) in_order(const uint4* x, uint4* out, const int* counts, int word, int ld) {
    if (blockIdx.x >= counts[word]) return;
    for (int i = threadIdx.x; i < ld / STEP; i += 128) {
        size_t at = (size_t)blockIdx.x * (ld / 8) + 2 * i;
        uint4 low = x[at], high = x[at + 1];
        out[at] = {low.x, low.z, high.x, high.z};
        out[at + 1] = {low.y, low.w, high.y, high.w};
    }
}

// Parameters as linear.cu's, but for x: the map of what in_order made, [tokens, ldx], boxes of 64 x 64, swizzle 128.
// grid (ceil(rows / 128), ceil(tokens / 64)), 384 threads, 33792 bytes of shared memory
KERNEL(384, 1) linear_wgmma(const uint4* codes, const u8* scales, const float* row_scales, const __grid_constant__ TensorMap x,
                            const float* xscale, const float* bias, float* y, const int* counts, int word, int rows,
                            int columns, int ldy, int add) {
    typedef Weights<FMT> W;
    static_assert(!W::NESTED, "nested sums are of linear.cu alone");
    constexpr int RECORD = W::STEPS * STEP, EACH = COLUMNS / RECORD;  // records of a stage
    extern __shared__ __align__(1024) u8 ring[];
    __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
    int token0 = blockIdx.y * TOKENS, stages = columns / COLUMNS, group = threadIdx.x / 128;
    if (token0 >= counts[word]) return;
    u32 base = (shared_address(ring) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(full + i), 1), barrier_init(shared_address(empty + i), GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 0) return;
        for (int stage = 0; stage < stages; stage++) {
            int slot = stage % STAGES;
            if (stage >= STAGES) barrier_wait(shared_address(empty + slot), (stage / STAGES - 1) & 1);
            barrier_expect(shared_address(full + slot), STAGE_BYTES);
            fetch_box(base + slot * STAGE_BYTES, &x, shared_address(full + slot), stage * COLUMNS, token0);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, tiles = (rows + TILE - 1) / TILE;
    int tile = (blockIdx.x * GROUPS + group - 1) * (ROWS / TILE) + warp;
    size_t first = (size_t)min(tile, tiles - 1) * (columns / RECORD);
    struct Record {
        uint4 codes;
        W::Scales low, high;
    };
    auto load = [&](int record) -> Record {
        size_t at = first + record;
        return {load_once(codes + at * 32 + lane), W::read(scales, at, lane / 4), W::read(scales, at, lane / 4 + 8)};
    };
    int records = columns / RECORD;
    float sums[4][32];
    UNROLL
    for (int part = 0; part < 4; part++)
        UNROLL
        for (int i = 0; i < 32; i++) sums[part][i] = 0.f;
    Record ahead[4];
    UNROLL
    for (int part = 0; part < 4; part++)
        if (part < records) ahead[part] = load(part);
    for (int record0 = 0; record0 < records; record0 += 4) {
        UNROLL
        for (int part = 0; part < 4; part++) {
            int record = record0 + part, stage = record / EACH, slot = stage % STAGES;
            if (record >= records) break;
            u32 a[W::STEPS][4];
            UNROLL
            for (int step = 0; step < W::STEPS; step++)
                UNROLL
                for (int r = 0; r < 4; r++)
                    a[step][r] = W::fragment(ahead[part].codes, r % 2 ? ahead[part].high : ahead[part].low, step, r);
            if (record + 4 < records) ahead[part] = load(record + 4);
            if (record % EACH == 0) barrier_wait(shared_address(full + slot), stage / STAGES & 1);
            u32 box = base + slot * STAGE_BYTES + record % EACH * (RECORD * 2);
            wgmma_fence();
            UNROLL
            for (int step = 0; step < W::STEPS; step++) wgmma<W::Act>(sums[part], a[step], descriptor(box + step * (STEP * 2)));
            wgmma_commit();
            wgmma_wait<0>();
            if (record % EACH == EACH - 1 && threadIdx.x % 128 == 0) barrier_arrive(shared_address(empty + slot));
        }
    }
    UNROLL
    for (int i = 0; i < 32; i++) {
        int row = tile * TILE + lane / 4 + i / 2 % 2 * 8, token = token0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token >= counts[word] || row >= rows) continue;
        float sum = sums[0][i] + sums[1][i];
        sum += sums[2][i];
        sum += sums[3][i];
        if (W::ROW_SCALED) sum *= row_scales[row];
        if (xscale) sum *= xscale[token];
        if (bias) sum += bias[row];
        float* target = y + (size_t)token * ldy + row;
        *target = add ? *target + sum : sum;
    }
}
