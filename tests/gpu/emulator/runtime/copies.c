// Copies that are under way while the program goes on: cp.async, bulk copies, tensor copies, and the mbarriers that say when
// they are there. In late mode what is copied to is poison until the last moment the program allows.

typedef struct Copy {
    u32 destination, size, source_size;
    u64 source;
    struct Copy *next;
} Copy;

enum { MAX_COPY_GROUPS = 64 };
struct CopyGroups {
    u32 count;                              // committed, not yet waited for
    Copy *open, *groups[MAX_COPY_GROUPS];
};

static void copy_land(Block *b, Thread *t, u32 destination, u64 source, u32 size, u32 source_size) {
    u8 *to = shared_bytes(b, t, destination, size, WRITE);
    memcpy(to, (void *)source, source_size);
    memset(to + source_size, 0, size - source_size);
}

void copy_async(Block *b, Thread *t, u32 destination, u64 source, u32 size, u32 source_size) {
    if (source_size > size) fail(b, t, "cp.async reads more than it writes", source, source_size);
    if (source & (size - 1)) fail(b, t, "misaligned cp.async source", source, size);
    u8 *to = shared_at(b, t, destination, size, WRITE);
    if (source_size) global_bytes(b, t, source, source_size, READ);
    if (!t->copies) t->copies = calloc(1, sizeof *t->copies);
    memset(to, 0xff, size);
    Copy *c = malloc(sizeof *c);
    *c = (Copy){destination, size, source_size, source, t->copies->open};
    t->copies->open = c;
    if (!launch->late) copy_land(b, t, destination, source, size, source_size);
}

void copy_commit(Thread *t) {
    if (!t->copies) t->copies = calloc(1, sizeof *t->copies);
    CopyGroups *g = t->copies;
    if (g->count == MAX_COPY_GROUPS) abort();
    g->groups[g->count++] = g->open;
    g->open = NULL;
}

static void group_land(Block *b, Thread *t, Copy *c) {
    while (c) {
        Copy *next = c->next;
        if (b) copy_land(b, t, c->destination, c->source, c->size, c->source_size);
        free(c);
        c = next;
    }
}

void copy_wait(Block *b, Thread *t, u32 pending) {
    CopyGroups *g = t->copies;
    if (!g || g->count <= pending) return;
    u32 done = g->count - pending;
    for (u32 i = 0; i < done; i++) group_land(b, t, g->groups[i]);
    memmove(g->groups, g->groups + done, pending * sizeof *g->groups);
    g->count = pending;
}

static void copies_drop(Thread *t) {
    if (!t->copies) return;
    for (u32 i = 0; i < t->copies->count; i++) group_land(NULL, t, t->copies->groups[i]);
    group_land(NULL, t, t->copies->open);
    free(t->copies);
    t->copies = NULL;
}

// The 64 opaque bits of an mbarrier (PTX ISA, mbarrier).
enum { MBARRIER_MAGIC = 0x2a };
typedef struct {
    s32 bytes;                              // expected by transactions, less those that arrived
    u32 pending : 12, count : 12, phase : 1, magic : 7;
} Mbarrier;

static Mbarrier *mbarrier_at(Block *b, Thread *t, u64 address) {
    if (address & 7) fail(b, t, "misaligned mbarrier", address, 8);
    u64 offset = (u32)address - (u64)SHARED_BASE;
    if (offset + 8 > b->shared_size) fail(b, t, "mbarrier out of shared memory", address, 8);
    Mbarrier *m = (Mbarrier *)(b->shared + offset);
    if (m->magic != MBARRIER_MAGIC) fail(b, t, "mbarrier that was not initialised", address, 8);
    return m;
}

// An mbarrier that a thread uses, which has to know of its initialisation; uses among each other are atomic.
static Mbarrier *mbarrier_of(Block *b, Thread *t, u64 address) {
    Mbarrier *m = mbarrier_at(b, t, address);
    if (b->shadow) shadow_shared(b, t, (u32)address - SHARED_BASE, 8, ATOMIC);
    return m;
}
void mbarrier_use(Block *b, Thread *t, u64 address) { mbarrier_of(b, t, address); }

static Clock *mbarrier_clock(Block *b, u64 address) { return &b->shadow->barriers[((u32)address - SHARED_BASE) / 8]; }

void mbarrier_init(Block *b, Thread *t, u64 address, u32 count) {
    u8 *at = shared_at(b, t, address, 8, WRITE);
    if (!count || count > 4095) fail(b, t, "mbarrier for no arrivals, or for more than there are threads", address, 8);
    Mbarrier m = {0, count, count, 0, MBARRIER_MAGIC};
    memcpy(at, &m, 8);
    if (b->shadow) memset(mbarrier_clock(b, address), 0, sizeof(Clock));
}

static void mbarrier_complete(Mbarrier *m) {
    if (m->pending || m->bytes) return;
    m->phase ^= 1;
    m->pending = m->count;
}

void mbarrier_expect(Block *b, Thread *t, u64 address, u32 bytes) { mbarrier_of(b, t, address)->bytes += bytes; }

// Returns the state: the phase that this arrival belongs to.
u64 mbarrier_arrive(Block *b, Thread *t, u64 address, u32 count, u32 bytes) {
    Mbarrier *m = mbarrier_of(b, t, address);
    u64 phase = m->phase;
    m->bytes += bytes;
    if (m->pending < count) fail(b, t, "more arrivals at an mbarrier than it expects", address, 8);
    m->pending -= count;
    if (b->shadow) {
        clock_join(mbarrier_clock(b, address), &b->shadow->known[t->warp]);
        clock_tick(b->shadow, t->warp);
    }
    mbarrier_complete(m);
    return phase;
}

// Makes runnable those whose phase has ended. in[0]: address, in[1]: parity or state of the phase, in[2]: wait for it.
static int mbarriers_try(Block *b) {
    int progress = 0;
    for (u32 i = 0; i < b->thread_count; i++) {
        Thread *t = b->threads + i;
        if (t->state != AT_MBARRIER) continue;
        int ended = mbarrier_at(b, t, t->in[0])->phase != (t->in[1] & 1);
        if (!ended && t->in[2]) continue;
        if (ended && b->shadow) clock_join(&b->shadow->known[t->warp], mbarrier_clock(b, t->in[0]));
        t->out[0] = ended;
        t->state = RUNNABLE;
        progress |= ended;
    }
    return progress;
}

void copy_arrive(Block *b, Thread *t, u64 mbarrier, int increments) {
    if (t->copies) { copy_commit(t); copy_wait(b, t, 0); }
    if (increments) {
        Mbarrier *m = mbarrier_of(b, t, mbarrier);
        m->pending++;
    }
    mbarrier_arrive(b, t, mbarrier, 1, 0);
}

// A tensor map, as the fake driver and tensor_map() in module.py write it.
enum { TENSOR_MAP_MAGIC = 0x7a7a, MAX_DIMENSIONS = 5 };
typedef struct {
    u64 address, strides[MAX_DIMENSIONS];                   // in bytes; strides[0] is the element's size
    u32 sizes[MAX_DIMENSIONS], box[MAX_DIMENSIONS];         // in elements, innermost first
    u16 dimensions, swizzle, magic, unused;                 // swizzle: bytes of a row, 0 for none
} TensorMap;

typedef struct Transfer {
    int loads, whole;                   // into shared memory; a plain range of bytes
    u32 shared, size, owner, group;
    u64 global, map, mbarrier;
    s32 at[MAX_DIMENSIONS];
    struct Transfer *next;
} Transfer;
static Transfer *transfers;             // last issued first

static const TensorMap *tensor_map_at(Block *b, Thread *t, u64 address) {
    const TensorMap *m = (const TensorMap *)address;
    int in_parameters = address >= (u64)b->parameters && address + sizeof *m <= (u64)b->parameters + b->parameters_size;
    if (!in_parameters) global_bytes(b, t, address, sizeof *m, READ);
    if (m->magic != TENSOR_MAP_MAGIC) fail(b, t, "this is no tensor map", address, 128);
    if (address & 63) fail(b, t, "misaligned tensor map", address, 128);
    return m;
}

static u32 box_bytes(const TensorMap *m) {
    u32 n = (u32)m->strides[0];
    for (int d = 0; d < m->dimensions; d++) n *= m->box[d];
    return n;
}

static u32 swizzled(u32 offset, u32 swizzle) {      // PTX ISA, Swizzling modes: 16-byte chunks change places in a row
    if (swizzle == 128) return offset ^ (offset >> 7 & 7) << 4;
    if (swizzle == 64) return offset ^ (offset >> 7 & 3) << 4;
    if (swizzle == 32) return offset ^ (offset >> 7 & 1) << 4;
    return offset;
}

static void tensor_move(Block *b, Thread *t, const Transfer *x) {
    const TensorMap *m = (const TensorMap *)x->map;
    u32 element = (u32)m->strides[0], count = x->size / element;
    for (u32 i = 0; i < count; i++) {
        u64 global = m->address;
        u32 rest = i;
        int inside = 1;
        for (int d = 0; d < m->dimensions; d++) {
            s64 at = (s64)x->at[d] + rest % m->box[d];
            rest /= m->box[d];
            inside &= at >= 0 && at < m->sizes[d];
            global += at * m->strides[d];
        }
        u8 *shared = b->shared + swizzled(x->shared + i * element, m->swizzle) - SHARED_BASE;
        if (!inside) { if (x->loads) memset(shared, 0, element); continue; }
        void *address = global_bytes(b, t, global, element, x->loads ? READ : WRITE);
        if (x->loads) memcpy(shared, address, element); else memcpy(address, shared, element);
    }
}

static void transfer_land(Block *b, Transfer *x) {
    Thread *t = b->threads + x->owner;
    if (b->shadow) shadow_access(b, t, ASYNC_AGENT, 0, x->shared - SHARED_BASE, x->size, x->loads ? WRITE : READ);
    u8 *shared = b->shared + x->shared - SHARED_BASE;
    if (!x->whole) tensor_move(b, t, x);
    else if (x->loads) memcpy(shared, global_bytes(b, t, x->global, x->size, READ), x->size);
    else memcpy(global_bytes(b, t, x->global, x->size, WRITE), shared, x->size);
    if (x->loads) {
        Mbarrier *m = mbarrier_at(b, t, x->mbarrier);
        m->bytes -= x->size;
        if (b->shadow) clock_join(mbarrier_clock(b, x->mbarrier), &b->shadow->known[ASYNC_AGENT]);
        mbarrier_complete(m);
    }
    if (b->shadow) clock_tick(b->shadow, ASYNC_AGENT);
}

static void transfer_start(Block *b, Thread *t, Transfer x) {
    u64 offset = x.shared - (u64)SHARED_BASE;
    if (offset + x.size > b->shared_size) fail(b, t, "bulk copy out of shared memory", x.shared, x.size);
    x.owner = t->index;
    x.group = t->bulk_groups;
    if (b->shadow) {
        clock_join(&b->shadow->known[ASYNC_AGENT], &b->shadow->known[t->warp]);
        clock_tick(b->shadow, t->warp);
        shadow_access(b, t, ASYNC_AGENT, 0, (u32)offset, x.size, x.loads ? WRITE : READ);
    }
    if (x.loads) { mbarrier_of(b, t, x.mbarrier); memset(b->shared + offset, 0xff, x.size); }
    Transfer *kept = malloc(sizeof *kept);
    *kept = x;
    kept->next = transfers;
    transfers = kept;
    if (!launch->late) { transfers = kept->next; transfer_land(b, kept); free(kept); }
}

static void bulk_aligned(Block *b, Thread *t, u32 shared, u64 global, u32 size) {
    if (shared & 15 || global & 15 || size & 15) fail(b, t, "bulk copy that is not in 16-byte pieces", global, size);
}

void bulk_load(Block *b, Thread *t, u32 destination, u64 source, u32 size, u64 mbarrier) {
    bulk_aligned(b, t, destination, source, size);
    global_bytes(b, t, source, size, READ);
    transfer_start(b, t, (Transfer){.loads = 1, .whole = 1, .shared = destination, .size = size, .global = source, .mbarrier = mbarrier});
}

void bulk_store(Block *b, Thread *t, u64 destination, u32 source, u32 size) {
    bulk_aligned(b, t, source, destination, size);
    global_bytes(b, t, destination, size, WRITE);
    transfer_start(b, t, (Transfer){.whole = 1, .shared = source, .size = size, .global = destination});
}

static Transfer tensor_transfer(Block *b, Thread *t, u32 shared, u64 map, const s32 *at) {
    const TensorMap *m = tensor_map_at(b, t, map);
    u32 alignment = m->swizzle ? m->swizzle * 8 : 128;
    if (shared & (alignment - 1)) fail(b, t, "misaligned shared memory of a tensor copy", shared, box_bytes(m));
    Transfer x = {.shared = shared, .size = box_bytes(m), .map = map};
    memcpy(x.at, at, m->dimensions * sizeof *at);
    return x;
}

void tensor_load(Block *b, Thread *t, u32 destination, u64 map, u64 mbarrier, const s32 *at) {
    Transfer x = tensor_transfer(b, t, destination, map, at);
    x.loads = 1;
    x.mbarrier = mbarrier;
    transfer_start(b, t, x);
}

void tensor_store(Block *b, Thread *t, u64 map, u32 source, const s32 *at) {
    transfer_start(b, t, tensor_transfer(b, t, source, map, at));
}

// Lands the stores of this thread but for those of its last groups.
void bulk_wait(Block *b, Thread *t, u32 pending) {
    for (Transfer **link = &transfers; *link;) {
        Transfer *x = *link;
        if (x->loads || x->owner != t->index || x->group + pending >= t->bulk_groups) { link = &x->next; continue; }
        *link = x->next;
        transfer_land(b, x);
        free(x);
    }
    if (b->shadow) clock_join(&b->shadow->known[t->warp], &b->shadow->known[ASYNC_AGENT]);
}

static int transfers_land_one(Block *b) {
    if (!transfers) return 0;
    Transfer *x = transfers;
    transfers = x->next;
    transfer_land(b, x);
    free(x);
    return 1;
}

static void transfers_drop(void) {
    while (transfers) { Transfer *x = transfers; transfers = x->next; free(x); }
}
