// The runtime of translated modules, one translation unit. Each part below may use those above it.
#include "ptx.h"
static void shadow_global(Block *b, Thread *t, u64 address, u32 size, int access);
static void shadow_shared(Block *b, Thread *t, u32 offset, u32 size, int access);
#include "memory.c"
#include "races.c"
#include "copies.c"
#include "matrix.c"
#include "warp.c"
#include "schedule.c"
