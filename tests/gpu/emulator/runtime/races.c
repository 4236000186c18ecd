// Races, by vector clocks of warps. A warp's own clock counts what it released: barriers, arrivals, __syncwarp; who meets it
// there learns its clock. Two accesses to a byte of shared memory are in order where the later warp knows the clock of the
// earlier access, and within a warp where a __syncwarp (or a matrix load or store, which is aligned) lies between.
// Global memory: the same within a block, but that reads are not remembered; no two blocks write a byte, and none reads what
// another wrote unless it has used an atomic before.

enum { ASYNC_AGENT = MAX_WARPS, AGENTS = MAX_WARPS + 1, MANY_LANES = 255 };

typedef struct { u32 stamp; u8 agent, lane, atomic; } LastWrite;
typedef struct { u32 of[AGENTS]; } Clock;
typedef struct { u32 block, stamp; u8 warp, lane; } GlobalWrite;    // block: its number + 1, 0 for none

struct Shadow {
    u32 size, agents, next;             // bytes of shared memory; warps and the agent of bulk copies; next fresh stamp
    Clock known[AGENTS];                // known[a].of[b]: how much of b's past a has seen
    u8 *parted;                         // [size / 4] whether a word's bytes are told apart; else its first stands for it
    LastWrite *writes;                  // [size]
    u32 *reads;                         // [size, agents] stamps
    u8 *readers;                        // [size, agents] lanes
    Clock *barriers;                    // [size / 8] of mbarriers, by their place
    GlobalWrite **global_writes;        // per range, of each byte; null where nothing was written
};

static u32 agent_index(u32 agent, const Shadow *s) { return agent == ASYNC_AGENT ? s->agents - 1 : agent; }

static Shadow *shadow_new(u32 shared_size, u32 warps) {
    Shadow *s = calloc(1, sizeof *s);
    s->size = shared_size;
    s->agents = warps + 1;
    s->next = 1;
    s->parted = calloc(shared_size / 4 + 1, 1);
    s->writes = calloc(shared_size + 4, sizeof *s->writes);
    s->reads = calloc((size_t)(shared_size + 4) * s->agents, 4);
    s->readers = calloc((size_t)(shared_size + 4) * s->agents, 1);
    s->barriers = calloc(shared_size / 8 + 1, sizeof *s->barriers);
    s->global_writes = calloc(launch->range_count + 1, sizeof *s->global_writes);
    return s;
}

static void shadow_free(Shadow *s) {
    if (!s) return;
    for (u32 i = 0; i < launch->range_count; i++) free(s->global_writes[i]);
    free(s->global_writes); free(s->parted); free(s->writes); free(s->reads); free(s->readers); free(s->barriers); free(s);
}

// A new block has seen all that came before it, so nothing needs to be cleared.
static void shadow_start_block(Shadow *s) {
    for (u32 a = 0; a < AGENTS; a++)
        for (u32 c = 0; c < AGENTS; c++) {
            if (s->known[c].of[c] >= s->next) s->next = s->known[c].of[c] + 1;
        }
    for (u32 a = 0; a < AGENTS; a++)
        for (u32 c = 0; c < AGENTS; c++) s->known[a].of[c] = s->next - (a != c);
}

static void clock_join(Clock *into, const Clock *from) {
    for (u32 i = 0; i < AGENTS; i++) if (from->of[i] > into->of[i]) into->of[i] = from->of[i];
}

static void clock_tick(Shadow *s, u32 agent) { s->known[agent].of[agent]++; }

static int seen(const Shadow *s, u32 agent, u32 lane, u32 by, u32 by_lane, u32 stamp) {
    if (agent == by) return (lane == by_lane && lane != MANY_LANES) || stamp < s->known[agent].of[agent];
    return s->known[agent].of[by] >= stamp;
}

static void shadow_byte(Block *b, Thread *t, u32 agent, u32 lane, u32 at, u32 size, int access) {
    Shadow *s = b->shadow;
    LastWrite *w = &s->writes[at];
    if (w->stamp && !(w->atomic && access == ATOMIC) && !seen(s, agent, lane, w->agent, w->lane, w->stamp))
        fail(b, t, access == READ ? "race: read of a shared byte that is written without synchronisation"
                                  : "race: two writes to a shared byte without synchronisation", at, size);
    u32 *reads = s->reads + (size_t)at * s->agents;
    u8 *readers = s->readers + (size_t)at * s->agents;
    if (access == READ) {
        u32 k = agent_index(agent, s), now = s->known[agent].of[agent];
        readers[k] = reads[k] == now && readers[k] != lane ? MANY_LANES : (u8)lane;
        reads[k] = now;
        return;
    }
    for (u32 k = 0; k < s->agents; k++) {
        u32 by = k == s->agents - 1 ? ASYNC_AGENT : k;
        if (reads[k] && !seen(s, agent, lane, by, readers[k], reads[k]))
            fail(b, t, "race: write over a shared byte that is read without synchronisation", at, size);
    }
    *w = (LastWrite){s->known[agent].of[agent], (u8)agent, (u8)lane, access == ATOMIC};
}

static void word_part(Shadow *s, u32 word) {
    if (s->parted[word]) return;
    s->parted[word] = 1;
    for (u32 i = word * 4 + 1; i < word * 4 + 4; i++) {
        s->writes[i] = s->writes[word * 4];
        memcpy(s->reads + (size_t)i * s->agents, s->reads + (size_t)word * 4 * s->agents, s->agents * sizeof *s->reads);
        memcpy(s->readers + (size_t)i * s->agents, s->readers + (size_t)word * 4 * s->agents, s->agents);
    }
}

static void shadow_access(Block *b, Thread *t, u32 agent, u32 lane, u32 offset, u32 size, int access) {
    for (u32 i = offset; i < offset + size;) {
        if (i % 4 == 0 && offset + size - i >= 4 && !b->shadow->parted[i / 4]) {
            shadow_byte(b, t, agent, lane, i, size, access);
            i += 4;
            continue;
        }
        word_part(b->shadow, i / 4);
        shadow_byte(b, t, agent, lane, i++, size, access);
    }
}

static void shadow_shared(Block *b, Thread *t, u32 offset, u32 size, int access) {
    shadow_access(b, t, t->warp, t->lane, offset, size, access);
}

static void shadow_global(Block *b, Thread *t, u64 address, u32 size, int access) {
    Shadow *s = b->shadow;
    if (access == ATOMIC) { b->used_global_atomics = 1; return; }
    u32 k = 0;
    while (k < launch->range_count && !(address >= launch->ranges[k].low && address < launch->ranges[k].high)) k++;
    if (k == launch->range_count) return;       // a variable of the module
    const Range *r = &launch->ranges[k];
    if (!s->global_writes[k]) {
        if (access == READ) return;
        s->global_writes[k] = calloc(r->high - r->low, sizeof **s->global_writes);
    }
    for (u32 i = 0; i < size; i++) {
        GlobalWrite *w = &s->global_writes[k][address - r->low + i];
        if (w->block == b->number + 1 && !seen(s, t->warp, t->lane, w->warp, w->lane, w->stamp))
            fail(b, t, access == READ ? "race: read of global memory that is written without synchronisation"
                                      : "race: two writes to global memory without synchronisation", address, size);
        if (w->block && w->block != b->number + 1 && !b->used_global_atomics)
            fail(b, t, access == READ ? "race: read of what another block writes" : "race: two blocks write the same memory",
                 address, size);
        if (access == WRITE) *w = (GlobalWrite){b->number + 1, s->known[t->warp].of[t->warp], (u8)t->warp, (u8)t->lane};
    }
}
