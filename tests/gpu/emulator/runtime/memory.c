// Every access is looked up: global ones in the table of allocations, shared and local ones against the block's sizes.
#include <setjmp.h>

static const Launch *launch;
static Range last_hit;
static jmp_buf failed;
u64 loop_limit;

_Noreturn void fail(const Block *b, const Thread *t, const char *what, u64 address, u32 size) {
    int n = snprintf(launch->error, 1024, "%s: kernel %s block (%u,%u,%u) thread (%u,%u,%u) at %s", what, b->kernel,
                     b->ctaid[0], b->ctaid[1], b->ctaid[2], t->tid[0], t->tid[1], t->tid[2], LOCATIONS[t->location]);
    if (size) snprintf(launch->error + n, 1024 - n, ", %u bytes at 0x%llx", size, (unsigned long long)address);
    longjmp(failed, 1);
}

static void aligned(Block *b, Thread *t, const char *what, u64 address, u32 size) {
    if (address & (size - 1)) fail(b, t, what, address, size);
}

static int variable_range(u64 address, u32 size, Range *found) {
    for (u32 i = 0; i < VARIABLE_COUNT; i++) {
        u64 low = (u64)VARIABLES[i].address;
        if (address >= low && address + size <= low + VARIABLES[i].size) {
            *found = (Range){low, low + VARIABLES[i].size, VARIABLES[i].writable};
            return 1;
        }
    }
    return 0;
}

static int allocation(u64 address, u32 size, Range *found) {
    u32 low = 0, high = launch->range_count;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (launch->ranges[middle].high <= address) low = middle + 1; else high = middle;
    }
    if (low < launch->range_count && address >= launch->ranges[low].low && address + size <= launch->ranges[low].high) {
        *found = launch->ranges[low];
        return 1;
    }
    return variable_range(address, size, found);
}

// size bytes of global memory, without regard to alignment
static void *global_bytes(Block *b, Thread *t, u64 address, u32 size, int access) {
    if (!(address >= last_hit.low && address + size <= last_hit.high)) {
        Range found;
        if (!allocation(address, size, &found)) fail(b, t, "global access outside every allocation", address, size);
        last_hit = found;
    }
    if (access != READ && !last_hit.writable) fail(b, t, "write to memory that is only to be read", address, size);
    if (b->shadow) shadow_global(b, t, address, size, access);
    return (void *)address;
}

void *global_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    aligned(b, t, "misaligned global access", address, size);
    return global_bytes(b, t, address, size, access);
}

static u8 *shared_bytes(Block *b, Thread *t, u64 address, u32 size, int access) {
    u64 offset = (u32)address - (u64)SHARED_BASE;
    if (offset > b->shared_size || offset + size > b->shared_size) fail(b, t, "shared access out of bounds", address, size);
    if (b->shadow) shadow_shared(b, t, (u32)offset, size, access);
    return b->shared + offset;
}

void *shared_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    aligned(b, t, "misaligned shared access", (u32)address, size);
    return shared_bytes(b, t, address, size, access);
}

void *local_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    (void)access;
    aligned(b, t, "misaligned local access", address, size);
    if (address > b->local_size || address + size > b->local_size) fail(b, t, "local access out of bounds", address, size);
    return t->local + address;
}

int in_shared(const Block *b, u64 address) {
    return address >= (u64)b->shared && address < (u64)b->shared + b->shared_size;
}

int in_local(const Block *b, const Thread *t, u64 address) {
    return t->local && address >= (u64)t->local && address < (u64)t->local + b->local_size;
}

void *parameter_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    u64 low = (u64)b->parameters;
    if (access != READ) fail(b, t, "write to a parameter", address, size);
    if (address < low || address + size > low + b->parameters_size) fail(b, t, "parameter out of bounds", address, size);
    return (void *)address;
}

void *constant_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    Range found;
    aligned(b, t, "misaligned constant access", address, size);
    if (access != READ) fail(b, t, "write to constant memory", address, size);
    if (!variable_range(address, size, &found)) fail(b, t, "constant access outside every variable", address, size);
    return (void *)address;
}

// Generic addresses are the host's: shared and local memory are windows of them.
void *generic_at(Block *b, Thread *t, u64 address, u32 size, int access) {
    if (in_shared(b, address)) return shared_at(b, t, address - (u64)b->shared + SHARED_BASE, size, access);
    if (in_local(b, t, address)) return local_at(b, t, address - (u64)t->local, size, access);
    if (address >= (u64)b->parameters && address < (u64)b->parameters + b->parameters_size)
        return parameter_at(b, t, address, size, access);
    return global_at(b, t, address, size, access);
}
