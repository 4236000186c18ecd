// The device: its memory, the error that killed it, and what was done on it. One lock holds all of it.
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "types.h"

static std::recursive_mutex lock;
#define LOCKED std::lock_guard<std::recursive_mutex> guard(lock)

struct Counters {
    u64 launches, graph_launches, allocations, frees, copies, synchronizations, loads, unloads;
};

static u64 from_environment(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 0) : otherwise;
}

// Allocations by address. Device memory is the host's, filled with 0xff as far as `poisoned`.
class Memory {
  public:
    void *allocate(u64 size, u64 poisoned) {
        u64 mapped = (size + 4095) / 4096 * 4096;
        void *at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return nullptr;
        memset(at, 0xff, std::min(size, poisoned));
        sizes[(u64)at] = size;
        used += size;
        return at;
    }
    bool release(u64 at) {
        auto found = sizes.find(at);
        if (found == sizes.end()) return false;
        munmap((void *)at, (found->second + 4095) / 4096 * 4096);
        used -= found->second;
        sizes.erase(found);
        return true;
    }
    bool contains(u64 at, u64 size) const {
        auto next = sizes.upper_bound(at);
        if (next == sizes.begin()) return false;
        auto found = std::prev(next);
        return at + size <= found->first + found->second;
    }
    std::map<u64, u64> sizes;
    u64 used = 0;
};

struct Device {
    Memory memory, pinned;
    u64 total = from_environment("FAKE_CUDA_TOTAL_BYTES", 8ull << 30);
    u64 poisoned = from_environment("FAKE_CUDA_POISONED_BYTES", 64ull << 20);
    u64 fault_after = from_environment("FAKE_CUDA_FAULT_AFTER", 0);     // this launch kills the context
    u32 capability = (u32)from_environment("FAKE_CUDA_CAPABILITY", 90);
    u32 seed = (u32)from_environment("FAKE_CUDA_SEED", 0);
    bool runs_kernels = !from_environment("FAKE_CUDA_NOP", 0);
    bool initialized = false;
    Counters counters = {};
    Result fault = SUCCESS;             // sticky
    std::string fault_text = "the fake driver's own fault";

    Result killed(Result why, const std::string &text) {
        if (!fault) { fault = why; fault_text = text; }
        return fault;
    }
    std::vector<Range> ranges() const {
        std::vector<Range> all;
        for (auto *m : {&memory, &pinned})
            for (auto &[at, size] : m->sizes) all.push_back({at, at + size, 1});
        std::sort(all.begin(), all.end(), [](const Range &a, const Range &b) { return a.low < b.low; });
        return all;
    }
};
static Device device;
#endif
