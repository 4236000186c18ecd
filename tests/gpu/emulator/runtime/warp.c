// Collectives of a warp: they happen once every lane of the member mask that has not exited is there, at the same instruction.

static int lane_meets(const Thread *lane, const Thread *first) {
    return lane->state == AT_COLLECTIVE && lane->operation == first->operation && lane->resume == first->resume
        && lane->mask == first->mask;
}

#define EACH(k) for (int k = 0; k < lanes_here; k++) if (mask >> k & 1 && lanes[k].state == AT_COLLECTIVE)

static void warp_shuffle(Block *b, Thread *lanes, int lanes_here, u32 mask) {
    EACH(k) {
        u32 by = (u32)lanes[k].in[1], c = (u32)lanes[k].in[2], segment = c >> 8 & 31, clamp = c & 31;
        int highest = (k & segment) | (clamp & ~segment), lowest = k & segment, from = k, in_range = 0;
        switch (lanes[k].variant) {
        case SHUFFLE_UP: from = k - (int)(by & 31); in_range = from >= highest; break;
        case SHUFFLE_DOWN: from = k + (int)(by & 31); in_range = from <= highest; break;
        case SHUFFLE_XOR: from = k ^ (int)(by & 31); in_range = from <= highest; break;
        case SHUFFLE_INDEX: from = lowest | (int)(by & 31 & ~segment); in_range = from <= highest; break;
        }
        if (!in_range) from = k;
        if (!(mask >> from & 1)) fail(b, &lanes[k], "shuffle from a lane that is not in the member mask", 0, 0);
        if (from >= lanes_here || lanes[from].state != AT_COLLECTIVE) fail(b, &lanes[k], "shuffle from a lane that has exited", 0, 0);
        lanes[k].out[0] = lanes[from].in[0];
        lanes[k].out[1] = in_range;
    }
}

static u32 reduced(u32 a, u32 b, u32 how) {
    switch (how) {
    case REDUX_ADD: return a + b;
    case REDUX_MIN_U: return b < a ? b : a;
    case REDUX_MAX_U: return b > a ? b : a;
    case REDUX_MIN_S: return (s32)b < (s32)a ? b : a;
    case REDUX_MAX_S: return (s32)b > (s32)a ? b : a;
    case REDUX_AND: return a & b;
    case REDUX_OR: return a | b;
    default: return a ^ b;
    }
}

static void warp_perform(Block *b, Thread *lanes, int lanes_here, Thread *first) {
    u32 mask = first->mask, present = 0, ballot = 0, result = 0;
    int seen_one = 0;
    EACH(k) present |= 1u << k;
    switch (first->operation) {
    case SHUFFLE: warp_shuffle(b, lanes, lanes_here, mask); break;
    case VOTE:
        EACH(k) if (lanes[k].in[0]) ballot |= 1u << k;
        EACH(k) lanes[k].out[0] = lanes[k].variant == VOTE_BALLOT ? ballot : lanes[k].variant == VOTE_ANY ? ballot != 0
            : lanes[k].variant == VOTE_ALL ? ballot == present : ballot == present || !ballot;
        break;
    case REDUX:
        EACH(k) { result = seen_one ? reduced(result, (u32)lanes[k].in[0], first->variant) : (u32)lanes[k].in[0]; seen_one = 1; }
        EACH(k) lanes[k].out[0] = result;
        break;
    case MATCH_ANY:
        EACH(k) { u32 same = 0; EACH(j) if (lanes[j].in[0] == lanes[k].in[0]) same |= 1u << j; lanes[k].out[0] = same; }
        break;
    case MATCH_ALL:
        result = 1;
        EACH(k) result &= lanes[k].in[0] == first->in[0];
        EACH(k) { lanes[k].out[0] = result ? present : 0; lanes[k].out[1] = result; }
        break;
    case ELECT: EACH(k) { lanes[k].out[0] = __builtin_ctz(present); lanes[k].out[1] = k == __builtin_ctz(present); } break;
    case LDMATRIX: case STMATRIX: case MMA:
        if (present != ~0u) fail(b, first, "a matrix instruction without the whole warp", 0, 0);
        if (first->operation == MMA) warp_mma(lanes);
        else if (first->operation == LDMATRIX) warp_ldmatrix(b, lanes);
        else warp_stmatrix(b, lanes);
        break;
    }
}

static int orders_memory(u32 operation) { return operation == SYNC || operation == LDMATRIX || operation == STMATRIX; }

// Performs every collective of this warp that is complete. Returns whether there was one.
static int warp_try(Block *b, u32 warp) {
    Thread *lanes = b->threads + warp * 32;
    int lanes_here = b->thread_count - warp * 32 < 32 ? (int)(b->thread_count - warp * 32) : 32, progress = 0;
    for (int l = 0; l < lanes_here; l++) {
        Thread *first = &lanes[l];
        if (first->state != AT_COLLECTIVE) continue;
        u32 mask = first->mask;
        int complete = 1;
        if (!(mask >> l & 1)) fail(b, first, "a lane is not in its own member mask", 0, 0);
        for (int k = 0; k < lanes_here; k++)
            if (mask >> k & 1 && lanes[k].state != EXITED && !lane_meets(&lanes[k], first)) complete = 0;
        if (!complete) continue;
        warp_perform(b, lanes, lanes_here, first);
        if (b->shadow && orders_memory(first->operation)) clock_tick(b->shadow, warp);
        EACH(k) lanes[k].state = RUNNABLE;
        progress = 1;
    }
    return progress;
}
