// One token for each row of logits, and what is reported of it: steps 5 to 13 and 1 of imp/model/sampling.py, which
// defines the order of operations. Steps 2 to 4 are edit.py's.
//
// A block of 512 threads has a row. The tokens that are left are bits in shared memory, 32 to a word; every filter clears
// some. Nothing is sorted: "the shortest prefix in falling order whose weights reach a sum" is found digit by digit of the
// logits' bits, 8 at a time, from a histogram of the weights of what is left.
//
// Weights are exp((x - largest x) / temperature) as integers of 2^-44: sums are exact, so it does not matter in which order
// threads add, and a draw is the same bits always.
#include "prelude.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32, MOST_REPORTED = 1024;
constexpr float GREEDY_BELOW = 1e-5f, LARGEST = 3.402823466e38f;
constexpr double UNIT = 17592186044416.;  // 2^44

// rows of `floats` and `ints`
enum { TEMPERATURE, TOP_P, MIN_P, TYPICAL_P, REPETITION, FREQUENCY, PRESENCE, XTC_PROBABILITY, XTC_THRESHOLD, TAU, ETA, MU };
enum { TOP_K, MIROSTAT, TOP_LOGPROBS, TARGETS, MASK_ROWS };

struct Room {
    u64 histogram[256], sums[WARPS], sum;
    u32 counts[WARPS], number;
    double doubles[WARPS];
};

// order of floats as unsigned integers; the two zeros are equal
DEVICE u32 ordered(float x) {
    u32 raw = x == 0.f ? 0 : __float_as_uint(x);
    return raw & 0x80000000 ? ~raw : raw | 0x80000000;
}
DEVICE float unordered(u32 key) { return __uint_as_float(key & 0x80000000 ? key & 0x7fffffff : ~key); }

// A row and the tokens of it that are left. Each warp has neighbouring words, a lane a token of each.
struct Row {
    const float* x;
    u32* left;  // shared
    Room* room;
    int vocab, first, last;  // words of this warp
    float top, rate;         // the largest logit; log2(e) / temperature

    __device__ __forceinline__ u64 weight(float v) const { return (u64)((double)exp2_of((v - top) * rate) * UNIT); }
    __device__ __forceinline__ float log_weight(float v) const { return __fmul_rn(__fmul_rn(v - top, rate), 0.6931471805599453f); }

    // f(token, logit) for every token that is left
    template <class F> __device__ __forceinline__ void each(F f) const {
        int lane = threadIdx.x % 32;
        for (int word = first; word < last; word++)
            if (left[word] >> lane & 1) f(word * 32 + lane, x[word * 32 + lane]);
    }
    // clears tokens for which f is false
    template <class F> __device__ __forceinline__ void keep(F f) {
        int lane = threadIdx.x % 32;
        for (int word = first; word < last; word++) {
            bool stays = (left[word] >> lane & 1) && f(word * 32 + lane, x[word * 32 + lane]);
            u32 bits = __ballot_sync(~0u, stays);
            __syncwarp();
            if (lane == 0) left[word] = bits;
        }
        __syncthreads();
    }
};

// -- sums over a block, for all its threads ------------------------------------------------------------------------------

DEVICE u64 warp_total(u64 x) {
    UNROLL
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
DEVICE u64 block_total(u64 x, Room* room) {
    x = warp_total(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room->sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++) x += room->sums[warp];
    return x;
}
DEVICE double block_total(double x, Room* room) {
    UNROLL
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room->doubles[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++) x += room->doubles[warp];
    return x;
}
DEVICE u32 block_largest(u32 x, Room* room) {
    x = __reduce_max_sync(~0u, x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room->counts[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++) x = max(x, room->counts[warp]);
    return x;
}
DEVICE u64 total_weight(const Row& row) {
    u64 sum = 0;
    row.each([&](int, float x) { sum += row.weight(x); });
    return block_total(sum, row.room);
}

// -- filters --------------------------------------------------------------------------------------------------------------

// Keeps the shortest prefix in falling order of key(x), equals in order of tokens, whose weights reach `target`; all, if
// they do not. key: u32.   weight: u64.
template <class Key, class Weight> DEVICE void keep_prefix(Row& row, Key key, Weight weight, u64 target) {
    Room* room = row.room;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 found = 0;  // the digits of the boundary's key so far
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) room->histogram[i] = 0;
        __syncthreads();
        row.each([&](int, float x) {
            u32 k = key(x);
            if (shift == 24 || k >> (shift + 8) == found) atomicAdd(&room->histogram[k >> shift & 255], weight(x));
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            u64 sum = above;
            while (digit > 0 && sum + room->histogram[digit] < target) sum += room->histogram[digit--];
            room->number = digit;
            room->sum = sum;
        }
        __syncthreads();
        found = found << 8 | room->number;
        above = room->sum;
        __syncthreads();
    }
    // of those with the boundary's key, in order of tokens, the ones before which the sum is not reached
    u64 equal = 0;
    row.each([&](int, float x) { equal += key(x) == found ? weight(x) : 0; });
    equal = warp_total(equal);
    __syncthreads();
    if (lane == 0) room->sums[warp] = equal;
    __syncthreads();
    for (int before = 0; before < warp; before++) above += room->sums[before];
    for (int word = row.first; word < row.last; word++) {
        bool here = row.left[word] >> lane & 1;
        float x = here ? row.x[word * 32 + lane] : 0.f;
        u32 k = here ? key(x) : 0;
        u64 mine = here && k == found ? weight(x) : 0, sum = mine;
        if (__any_sync(~0u, here && k == found)) {
            UNROLL
            for (int step = 1; step < 32; step *= 2) {
                u64 other = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += other;
            }
        }
        bool stays = here && (k > found || (k == found && above + sum - mine < target));
        above += __shfl_sync(~0u, sum, 31);
        u32 bits = __ballot_sync(~0u, stays);
        __syncwarp();
        if (lane == 0) row.left[word] = bits;
    }
    __syncthreads();
}
DEVICE void keep_largest(Row& row, u64 count) {
    keep_prefix(row, ordered, [](float) { return (u64)1; }, count);
}
DEVICE void keep_probable(Row& row, double share) {
    u64 target = (u64)(share * (double)total_weight(row));
    keep_prefix(row, ordered, [&](float x) { return row.weight(x); }, target > 0 ? target : 1);
}
// by how far surprise is from its mean (Meister et al. 2022)
DEVICE void keep_typical(Row& row, double share) {
    double total = (double)total_weight(row), products = 0.;
    row.each([&](int, float x) { products += (double)row.weight(x) * (double)row.log_weight(x); });
    float mean = (float)(block_total(products, row.room) / total);  // of log weights, which surprises differ from by a constant
    u64 target = (u64)(share * total);
    keep_prefix(
        row, [&](float x) { return ~__float_as_uint(fabsf(__fsub_rn(row.log_weight(x), mean))); },
        [&](float x) { return row.weight(x); }, target > 0 ? target : 1);
}
DEVICE u32 largest_left(const Row& row) {
    u32 key = 0;
    row.each([&](int, float x) { key = max(key, ordered(x)); });
    return block_largest(key, row.room);
}
DEVICE void keep_likely(Row& row, double share) {
    double bound = share * (double)row.weight(unordered(largest_left(row)));
    row.keep([&](int, float x) { return (double)row.weight(x) >= bound; });
}
// of the tokens with at least this probability all but the least likely go; of equals the first
DEVICE void exclude_top(Row& row, double threshold) {
    double bound = threshold * (double)total_weight(row);
    u32 least = 0;  // keys upside down: the largest is the least likely's
    row.each([&](int, float x) { if ((double)row.weight(x) >= bound) least = max(least, ~ordered(x)); });
    least = ~block_largest(least, row.room);
    u32 stays = 0;  // 1 + the last token with that key
    row.each([&](int token, float x) { if ((double)row.weight(x) >= bound && ordered(x) == least) stays = max(stays, token + 1u); });
    stays = block_largest(stays, row.room);
    row.keep([&](int token, float x) { return (double)row.weight(x) < bound || token + 1u == stays; });
}

// The token, in order of ids, where the running sum of weights passes u * total; for all threads
DEVICE int pick(const Row& row, double u) {
    Room* room = row.room;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = 0, total = 0, before = 0;
    row.each([&](int, float x) { sum += row.weight(x); });
    sum = warp_total(sum);
    __syncthreads();
    if (lane == 0) room->sums[warp] = sum;
    if (threadIdx.x == 0) room->number = 0;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) total += room->sums[i];
    for (int i = 0; i < warp; i++) before += room->sums[i];
    u64 target = (u64)(u * (double)total);
    if (target >= total) target = total - 1;
    if (before <= target && target < before + sum)
        for (int word = row.first; word < row.last; word++) {
            bool here = row.left[word] >> lane & 1;
            u64 mine = here ? row.weight(row.x[word * 32 + lane]) : 0, running = mine;
            UNROLL
            for (int step = 1; step < 32; step *= 2) {
                u64 other = __shfl_up_sync(~0u, running, step);
                if (lane >= step) running += other;
            }
            if (mine && before + running - mine <= target && target < before + running) room->number = word * 32 + lane;
            before += __shfl_sync(~0u, running, 31);
        }
    __syncthreads();
    int token = room->number;
    __syncthreads();
    return token;
}

// -- mirostat (Basu et al. 2020) ------------------------------------------------------------------------------------------

// The logits of the tokens that are left, at most `most`, in falling order, and their tokens; returns how many. Equals: lower
// tokens first.
DEVICE int gather(const Row& row, float* values, int* tokens, u32* keys, int most) {
    Room* room = row.room;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 mine = 0;
    row.each([&](int, float) { mine++; });
    mine = __reduce_add_sync(~0u, mine);
    __syncthreads();
    if (lane == 0) room->counts[warp] = mine;
    __syncthreads();
    int at = 0, count = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i < warp) at += room->counts[i];
        count += room->counts[i];
    }
    for (int word = row.first; word < row.last; word++) {
        u32 bits = row.left[word];
        int place = at + __popc(bits & ((1u << lane) - 1));
        if ((bits >> lane & 1) && place < most) {
            keys[place] = ordered(row.x[word * 32 + lane]);
            tokens[place] = word * 32 + lane;
        }
        at += __popc(bits);
    }
    __syncthreads();
    count = min(count, most);
    // in order of tokens as they are: the place of each is how many come before it
    for (int first = 0; first < count; first += THREADS) {
        int i = first + threadIdx.x, place = 0;
        for (int j = 0; i < count && j < count; j++) place += keys[j] > keys[i] || (keys[j] == keys[i] && j < i);
        if (i < count) values[place] = unordered(keys[i]), tokens[most + place] = tokens[i];
    }
    __syncthreads();
    return count;
}

// how many tokens version 1 keeps, by the Zipf exponent of the likeliest hundred
DEVICE double mirostat_count(const float* values, int count, const Row& row, double temperature, double mu, double total) {
    double products = 0., squares = 0., nothing = log(total / UNIT) - 745.13;  // exp of less is 0 in float64
    for (int i = 0; i + 1 < count && ((double)values[i + 1] - (double)row.top) / temperature >= nothing; i++) {
        double t = log((i + 2.) / (i + 1.));
        products += t * (((double)values[i] - (double)values[i + 1]) / temperature);
        squares += t * t;
    }
    double s = squares > 0. ? products / squares : 1., e = s - 1.;
    if (s == 0. || e == 0.) return 1.;
    double k = exp(log(e * exp2(mu) / (1. - exp(-e * log((double)row.vocab)))) / s);  // pow would be a call
    return k == k ? fmin(fmax(k, 1.), (double)row.vocab) : (double)row.vocab;
}

struct Likeliest {  // shared memory
    float values[101];
    int tokens[202];
    u32 keys[101];
};
// How many tokens mirostat keeps, in falling order; 0: it has cleared those that go. total: the weight of all tokens
DEVICE int mirostat(Row& row, int version, double temperature, double mu, double total, Likeliest& likeliest) {
    if (version == 1) {
        Row copy = row;
        int words = (row.vocab + 31) / 32;
        copy.left = row.left + words;
        for (int word = threadIdx.x; word < words; word += THREADS) copy.left[word] = row.left[word];
        __syncthreads();
        keep_largest(copy, 101);
        int count = gather(copy, likeliest.values, likeliest.tokens, likeliest.keys, 101);
        return (int)mirostat_count(likeliest.values, count, row, temperature, mu, total);
    }
    double bound = total * exp2(-mu);
    if (bound > UNIT) return 1;  // not even the likeliest, whose weight is 1
    row.keep([&](int, float x) { return (double)row.weight(x) >= bound; });
    return 0;
}

// -- entries --------------------------------------------------------------------------------------------------------------

// A row with all its tokens that `keep` lets, and the first of the largest logits in `best`
template <class F> DEVICE Row row_of(const float* x, int vocab, u32* left, Room* room, float temperature, F there, int& best) {
    int words = (vocab + 31) / 32, each = (words + WARPS - 1) / WARPS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Row row = {x, left, room, vocab, min(words, warp * each), min(words, (warp + 1) * each)};
    u32 key = 0;
    for (int word = row.first; word < row.last; word++) {
        int token = word * 32 + lane;
        float v = token < vocab ? x[token] : 0.f;
        u32 bits = __ballot_sync(~0u, token < vocab && there(v));
        if (lane == 0) left[word] = bits;
        if (token < vocab) key = max(key, ordered(v));
    }
    key = block_largest(key, room);
    u32 last = 0;  // tokens upside down: the largest is the first token's
    for (int word = row.first; word < row.last; word++) {
        int token = word * 32 + lane;
        if (token < vocab && ordered(x[token]) == key) last = max(last, ~(u32)token);
    }
    best = (int)~block_largest(last, room);
    row.top = unordered(key);
    row.rate = LOG2E / temperature;
    return row;
}

// tokens[r] = what is drawn, or targets[r] where that is no draw. Shared memory: 2 * 4 * ceil(vocab / 32) bytes.
KERNEL(THREADS, 1) draw(const float* raw, const float* edited, float* floats, const int* ints, const double* uniform,
                        const int* bias_starts, const int* seen_starts, int* tokens, int rows, int ld, int vocab) {
    extern __shared__ u32 left[];
    __shared__ Room room;
    __shared__ Likeliest likeliest;
    int r = blockIdx.x;
    auto number = [&](int name) { return floats[name * rows + r]; };
    if (ints[TARGETS * rows + r] >= 0) {
        if (threadIdx.x == 0) tokens[r] = ints[TARGETS * rows + r];
        return;
    }
    bool changed = bias_starts[r] < bias_starts[r + 1] || seen_starts[r] < seen_starts[r + 1] || ints[MASK_ROWS * rows + r] >= 0;
    float temperature = number(TEMPERATURE);
    int token;
    Row row = row_of((changed ? edited : raw) + (size_t)r * ld, vocab, left, &room, temperature,
                     [](float x) { return x >= -LARGEST; }, token);
    if (temperature > GREEDY_BELOW && fabsf(row.top) <= LARGEST) {
        int k = ints[TOP_K * rows + r], version = ints[MIROSTAT * rows + r];
        float mu = number(MU);
        double total = version ? (double)total_weight(row) : 0.;
        if (version) k = mirostat(row, version, temperature, mu, total, likeliest);
        if (k > 0 && k < vocab) keep_largest(row, k);
        if (!version) {
            if (number(TYPICAL_P) < 1.f) keep_typical(row, number(TYPICAL_P));
            if (number(TOP_P) < 1.f) keep_probable(row, number(TOP_P));
            if (number(MIN_P) > 0.f) keep_likely(row, fminf(number(MIN_P), 1.f));
            if (number(XTC_PROBABILITY) > 0.f && uniform[2 * r + 1] < (double)number(XTC_PROBABILITY))
                exclude_top(row, number(XTC_THRESHOLD));
        }
        token = pick(row, uniform[2 * r]);
        if (version && threadIdx.x == 0) {
            double surprise = (log(total) - log((double)row.weight(row.x[token]))) * 1.4426950408889634;  // before truncation
            floats[MU * rows + r] = (float)((double)mu - (double)number(ETA) * (surprise - (double)number(TAU)));
        }
    }
    if (threadIdx.x == 0) tokens[r] = token;
}

// Of rows with top_logprobs >= 0, from raw logits: the log-probability of tokens[r], its rank, and the likeliest tokens.
// Shared memory: 4 * ceil(vocab / 32) bytes.
KERNEL(THREADS, 1) report(const float* raw, const int* ints, const int* tokens, float* logprobs, int* ranks, int* top_tokens,
                          float* top_values, int rows, int ld, int vocab, int width) {
    extern __shared__ u32 left[];
    __shared__ Room room;
    __shared__ float values[MOST_REPORTED];
    __shared__ int likeliest[2 * MOST_REPORTED];
    __shared__ u32 keys[MOST_REPORTED];
    int r = blockIdx.x, wanted = min(min(ints[TOP_LOGPROBS * rows + r], vocab), MOST_REPORTED);
    if (wanted < 0) return;
    int best;
    Row row = row_of(raw + (size_t)r * ld, vocab, left, &room, 1.f, [](float) { return true; }, best);
    double normaliser = (double)row.top + log((double)total_weight(row) / UNIT);
    float value = row.x[tokens[r]];
    u64 larger = 0;
    row.each([&](int, float x) { larger += x > value; });
    larger = block_total(larger, &room);
    if (threadIdx.x == 0) {
        logprobs[r] = (float)((double)value - normaliser);
        ranks[r] = 1 + (int)larger;
    }
    if (wanted == 0) return;
    keep_largest(row, wanted);
    int count = gather(row, values, likeliest, keys, MOST_REPORTED);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        top_tokens[(size_t)r * width + i] = likeliest[MOST_REPORTED + i];
        top_values[(size_t)r * width + i] = (float)((double)values[i] - normaliser);
    }
}
