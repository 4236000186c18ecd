// Blocks one after another; in a block every thread runs until it has to wait. With a seed, blocks, warps and lanes take turns
// in another order, which no correct kernel notices.

static u32 random_state;
static u32 random_next(void) { return (random_state = random_state * 1664525u + 1013904223u) >> 8; }

static void thread_run(const Kernel *kernel, Block *b, Thread *t) {
    t->state = kernel->run(t, b);
    if (t->state == EXITED) copies_drop(t);
}

static int warp_run(const Kernel *kernel, Block *b, u32 warp) {
    int progress = 0;
    u32 turn = launch->seed ? random_next() % 32 : 0;
    for (u32 k = 0; k < 32; k++) {
        u32 i = warp * 32 + (launch->seed ? (k * 11 + turn) % 32 : k);
        if (i >= b->thread_count || b->threads[i].state != RUNNABLE) continue;
        thread_run(kernel, b, b->threads + i);
        progress = 1;
    }
    return progress;
}

// bar.sync is .aligned: the lanes of a warp are at one and the same instruction (PTX ISA, bar).
static void barrier_aligned(Block *b, u32 number) {
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i, *head = b->threads + i / 32 * 32;
        if (t->state == EXITED) continue;
        while (head->state == EXITED) head++;               // t itself at the latest
        int head_here = head->state == AT_BARRIER && head->variant == number;
        int here = t->state == AT_BARRIER && t->variant == number && t->resume == head->resume;
        if (head_here && !here)
            fail(b, t, "divergent barrier: the lanes of a warp are not at the same one", 0, 0);
    }
}

typedef struct { u32 arrived; Clock clock; } Arrivals;      // of threads that did not wait (bar.arrive)
static Arrivals arrivals[MAX_BARRIERS];

void barrier_arrive(Block *b, Thread *t, u32 number) {
    if (number >= MAX_BARRIERS) fail(b, t, "there are 16 barriers", 0, 0);
    arrivals[number].arrived++;
    if (!b->shadow) return;
    clock_join(&arrivals[number].clock, &b->shadow->known[t->warp]);
    if (t->lane == 31) clock_tick(b->shadow, t->warp);
}

// variant: barrier number; mask: threads expected, 0 for all of the block; in[0]: predicate, operation: what to make of it
static int barrier_try(Block *b, u32 number, u32 alive) {
    u32 waiting = 0, expected = 0, predicates = 0, warps = 0;
    Clock joined = arrivals[number].clock;
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        if (t->state != AT_BARRIER || t->variant != number) continue;
        if (waiting && t->mask != expected) fail(b, t, "threads at a barrier expect different numbers of threads", 0, 0);
        expected = t->mask;
        waiting++;
        predicates += t->in[0] != 0;
        warps |= 1u << t->warp;
    }
    if (!waiting) return 0;
    u32 all = waiting + arrivals[number].arrived;
    if (expected && all > expected) fail(b, b->threads, "more threads at a barrier than it expects", 0, 0);
    if (all != (expected ? expected : alive)) return 0;
    barrier_aligned(b, number);
    for (u32 w = 0; b->shadow && w < MAX_WARPS; w++) if (warps >> w & 1) clock_join(&joined, &b->shadow->known[w]);
    for (u32 w = 0; b->shadow && w < MAX_WARPS; w++)
        if (warps >> w & 1) { clock_join(&b->shadow->known[w], &joined); clock_tick(b->shadow, w); }
    memset(&arrivals[number], 0, sizeof arrivals[number]);
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        if (t->state != AT_BARRIER || t->variant != number) continue;
        t->out[0] = t->operation == BARRIER_AND ? predicates == waiting : t->operation == BARRIER_OR ? predicates > 0 : predicates;
        t->state = RUNNABLE;
    }
    return 1;
}

static u32 count_alive(const Block *b) {
    u32 alive = 0;
    for (u32 i = 0; i < b->thread_count; i++) alive += b->threads[i].state != EXITED;
    return alive;
}

static _Noreturn void deadlocked(Block *b) {
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        if (t->state == AT_MBARRIER) fail(b, t, "deadlock: the phase of an mbarrier never ends", t->in[0], 8);
    }
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        if (t->state == AT_BARRIER) fail(b, t, "deadlock: divergent barrier, not all threads come to it", 0, 0);
        if (t->state == AT_COLLECTIVE) fail(b, t, "deadlock: divergent collective, not all lanes of its mask come to it", 0, 0);
        if (t->state == AT_WGMMA) fail(b, t, "deadlock: not the whole warpgroup comes to a wgmma", 0, 0);
    }
    abort();
}

static void block_run(const Kernel *kernel, Block *b) {
    u32 warps = (b->thread_count + 31) / 32, order[MAX_WARPS];
    for (u32 w = 0; w < warps; w++) order[w] = w;
    for (;;) {
        int progress = 0;
        for (u32 w = warps - 1; launch->seed && w > 0; w--) {
            u32 other = random_next() % (w + 1), kept = order[w];
            order[w] = order[other];
            order[other] = kept;
        }
        for (u32 w = 0; w < warps; w++) {
            progress |= warp_run(kernel, b, order[w]);
            while (warp_try(b, order[w])) { progress = 1; if (!warp_run(kernel, b, order[w])) break; }
        }
        u32 alive = count_alive(b);
        if (!alive) break;
        for (u32 n = 0; n < MAX_BARRIERS; n++) progress |= barrier_try(b, n, alive);
        for (u32 g = 0; g < warps / 4; g++) progress |= warpgroup_try(b, g);
        progress |= mbarriers_try(b);
        if (!progress && transfers_land_one(b)) { mbarriers_try(b); progress = 1; }
        if (!progress) {
            for (u32 i = 0; i < b->thread_count; i++) progress |= b->threads[i].state == RUNNABLE;   // it polls
            if (!progress) deadlocked(b);
        }
    }
    while (transfers_land_one(b)) {}
}

static void block_start(const Kernel *kernel, Block *b, u64 number, u8 *registers, u8 *local) {
    b->number = (u32)number;
    b->used_global_atomics = 0;
    b->ctaid[0] = number % b->nctaid[0];
    b->ctaid[1] = number / b->nctaid[0] % b->nctaid[1];
    b->ctaid[2] = number / b->nctaid[0] / b->nctaid[1];
    memset(b->shared, 0xff, b->shared_size);
    memset(registers, 0xcd, (size_t)b->thread_count * kernel->registers_size);
    if (local) memset(local, 0xff, (size_t)b->thread_count * kernel->local_size);
    memset(arrivals, 0, sizeof arrivals);
    if (b->shadow) shadow_start_block(b->shadow);
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        memset(t, 0, sizeof *t);
        t->tid[0] = i % b->ntid[0];
        t->tid[1] = i / b->ntid[0] % b->ntid[1];
        t->tid[2] = i / b->ntid[0] / b->ntid[1];
        t->lane = i & 31;
        t->warp = i >> 5;
        t->index = i;
        t->state = RUNNABLE;
        t->registers = registers + (size_t)i * kernel->registers_size;
        t->local = local ? local + (size_t)i * kernel->local_size : NULL;
    }
}

static u64 greatest_common(u64 a, u64 b) { while (b) { u64 rest = a % b; a = b; b = rest; } return a; }

static u64 block_at(u64 turn, u64 blocks) {      // a permutation of the blocks
    if (!launch->seed) return turn;
    u64 step = blocks / 2 | 1;
    while (greatest_common(step, blocks) != 1) step++;
    return (turn * step + launch->seed) % blocks;
}

static int grid_run(const Kernel *kernel, Block *b, u8 *registers, u8 *local) {
    u64 blocks = (u64)b->nctaid[0] * b->nctaid[1] * b->nctaid[2];
    if (setjmp(failed)) return 1;
    for (u64 turn = 0; turn < blocks; turn++) {
        block_start(kernel, b, block_at(turn, blocks), registers, local);
        block_run(kernel, b);
    }
    return 0;
}

static void *zeroed(size_t size) { return calloc(1, size + 64); }

// Runs a kernel of this module. Returns 0, or 1 with the reason in the launch's error.
int emu_launch(u32 index, const Launch *what) {
    const Kernel *kernel = &KERNELS[index];
    launch = what;
    last_hit = (Range){0, 0, 0};
    loop_limit = (u64)what->step_limit << 20;
    random_state = what->seed;
    Block b = {.kernel = kernel->name, .parameters = what->parameters, .parameters_size = kernel->parameters_size};
    memcpy(b.nctaid, what->grid, sizeof b.nctaid);
    memcpy(b.ntid, what->block, sizeof b.ntid);
    b.thread_count = b.ntid[0] * b.ntid[1] * b.ntid[2];
    b.local_size = kernel->local_size;
    b.dynamic_offset = (kernel->shared_size + kernel->dynamic_alignment - 1) / kernel->dynamic_alignment * kernel->dynamic_alignment;
    b.shared_size = b.dynamic_offset + what->dynamic_shared;
    b.shared = aligned_alloc(1024, (b.shared_size + 2047) / 1024 * 1024);
    b.threads = zeroed(b.thread_count * sizeof(Thread));
    if (what->check_races) b.shadow = shadow_new(b.shared_size, (b.thread_count + 31) / 32);
    u8 *registers = zeroed((size_t)b.thread_count * kernel->registers_size);
    u8 *local = kernel->local_size ? zeroed((size_t)b.thread_count * kernel->local_size) : NULL;
    int wrong = grid_run(kernel, &b, registers, local);
    for (u32 i = 0; i < b.thread_count; i++) copies_drop(b.threads + i);
    transfers_drop();
    shadow_free(b.shadow);
    free(b.shared); free(b.threads); free(registers); free(local);
    return wrong;
}

u32 emu_kernels(const Kernel **kernels) { *kernels = KERNELS; return KERNEL_COUNT; }
u32 emu_variables(const Variable **variables) { *variables = VARIABLES; return VARIABLE_COUNT; }
