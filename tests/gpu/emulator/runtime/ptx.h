// What translated kernels and the runtime share: threads, blocks, and the operations that PTX instructions become.
// Registers hold raw bits in unsigned integers; every operation says itself how it reads them.
#ifndef PTX_H
#define PTX_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;

// Why a thread stopped running. It goes on at Thread.resume once the scheduler makes it RUNNABLE again.
enum { EXITED, RUNNABLE, AT_BARRIER, AT_COLLECTIVE, AT_MBARRIER, AT_WGMMA };
enum { SYNC, SHUFFLE, VOTE, REDUX, MATCH_ANY, MATCH_ALL, ELECT, LDMATRIX, STMATRIX, MMA };   // warp collectives
enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, SHUFFLE_INDEX };
enum { VOTE_BALLOT, VOTE_ANY, VOTE_ALL, VOTE_UNIFORM };
enum { REDUX_ADD, REDUX_MIN_U, REDUX_MAX_U, REDUX_MIN_S, REDUX_MAX_S, REDUX_AND, REDUX_OR, REDUX_XOR };
enum { ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_E4M3, ELEMENT_E5M2, ELEMENT_S8, ELEMENT_U8 };
enum { ACCUMULATE_F32, ACCUMULATE_S32, ACCUMULATE_F16 };
enum { READ, WRITE, ATOMIC };
enum { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_AND, BARRIER_OR, BARRIER_POPC };
enum { MAX_THREADS = 1024, MAX_WARPS = 32, MAX_BARRIERS = 16 };

typedef struct CopyGroups CopyGroups;
typedef struct Shadow Shadow;

typedef struct {
    u32 resume, tid[3], lane, warp, index, state;
    u32 location;               // of the CUDA line being executed, in LOCATIONS
    u32 operation, variant, mask;   // of the collective or barrier it waits at
    u32 carry;
    u64 in[16], out[8];         // operands of the collective, and its results
    u64 accumulators[128];      // of wgmma
    u64 unused;                 // where results named _ go
    u64 loops;                  // backward branches taken
    u32 bulk_groups;            // committed so far
    CopyGroups *copies;
    u8 *local;
    void *registers;
} Thread;

typedef struct {
    u32 ctaid[3], nctaid[3], ntid[3], thread_count;
    u8 *shared;
    u32 shared_size, dynamic_offset, local_size;
    const u8 *parameters;
    u32 parameters_size;
    const char *kernel;
    Thread *threads;
    Shadow *shadow;             // null where races are not looked for
    u32 number;                 // of the block in the launch
    u32 used_global_atomics;
} Block;

typedef struct {
    u64 low, high, writable;
} Range;

typedef struct {
    u32 grid[3], block[3], dynamic_shared, range_count;
    const u8 *parameters;
    const Range *ranges;        // of global memory, sorted
    u32 seed;                   // 0: everything in order; otherwise warps, lanes and blocks are shuffled by it
    u32 check_races;
    u32 late;                   // asynchronous copies arrive as late as the program allows; otherwise at once
    u32 step_limit;             // backward branches a thread may take, in millions
    char *error;                // 1024 bytes
} Launch;

typedef struct {
    const char *name;
    int (*run)(Thread *, Block *);
    u32 shared_size, dynamic_alignment, local_size, registers_size, max_threads, parameters_size, parameter_count;
    const u32 *parameters;      // offset and size of each
} Kernel;

typedef struct {
    const char *name;
    void *address;
    u64 size, writable;
} Variable;

// defined by the translated module
extern const Kernel KERNELS[];
extern const u32 KERNEL_COUNT;
extern const Variable VARIABLES[];
extern const u32 VARIABLE_COUNT;
extern const char *const LOCATIONS[];

// Shared addresses start here, so that a null pointer taken for one is caught.
#define SHARED_BASE 0x400u

_Noreturn void fail(const Block *b, const Thread *t, const char *what, u64 address, u32 size);
void *global_at(Block *b, Thread *t, u64 address, u32 size, int access);
void *shared_at(Block *b, Thread *t, u64 address, u32 size, int access);
void *local_at(Block *b, Thread *t, u64 address, u32 size, int access);
void *generic_at(Block *b, Thread *t, u64 address, u32 size, int access);
void *constant_at(Block *b, Thread *t, u64 address, u32 size, int access);
void *parameter_at(Block *b, Thread *t, u64 address, u32 size, int access);
int in_shared(const Block *b, u64 address);
int in_local(const Block *b, const Thread *t, u64 address);

void copy_async(Block *b, Thread *t, u32 destination, u64 source, u32 size, u32 source_size);
void copy_commit(Thread *t);
void copy_wait(Block *b, Thread *t, u32 pending);
void copy_arrive(Block *b, Thread *t, u64 mbarrier, int increments);
void mbarrier_use(Block *b, Thread *t, u64 address);
void mbarrier_init(Block *b, Thread *t, u64 address, u32 count);
u64 mbarrier_arrive(Block *b, Thread *t, u64 address, u32 count, u32 bytes);
void mbarrier_expect(Block *b, Thread *t, u64 address, u32 bytes);
void bulk_load(Block *b, Thread *t, u32 destination, u64 source, u32 size, u64 mbarrier);
void bulk_store(Block *b, Thread *t, u64 destination, u32 source, u32 size);
void tensor_load(Block *b, Thread *t, u32 destination, u64 map, u64 mbarrier, const s32 *at);
void tensor_store(Block *b, Thread *t, u64 map, u32 source, const s32 *at);
void barrier_arrive(Block *b, Thread *t, u32 number);
void bulk_wait(Block *b, Thread *t, u32 pending);

static inline void count_loop(Block *b, Thread *t, u64 limit) {
    if (__builtin_expect(++t->loops > limit, 0)) fail(b, t, "a loop does not end", 0, 0);
}
extern u64 loop_limit;

#include "numbers.h"
#endif
