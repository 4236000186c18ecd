// The part of the CUDA driver's binary interface that the fake has, declared from its documentation: integers, handles and
// the few structures that callers fill in.
#ifndef FAKE_TYPES_H
#define FAKE_TYPES_H
#include <cstddef>
#include <cstdint>

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;
using Address = u64;                // CUdeviceptr

enum Result {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701, ILLEGAL_INSTRUCTION = 715, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908, UPDATE_FAILURE = 910,
};

enum CaptureMode { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2 };
enum { LAUNCH_BUFFER_POINTER = 1, LAUNCH_BUFFER_SIZE = 2 };
enum DeviceAttribute {
    MAX_THREADS_PER_BLOCK = 1, MAX_SHARED_PER_BLOCK = 8, WARP_SIZE = 10, CLOCK_RATE = 13, MULTIPROCESSORS = 16, UNIFIED_ADDRESSING = 41,
    MEMORY_CLOCK_RATE = 36, BUS_WIDTH = 37, L2_SIZE = 38, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, MAX_SHARED_OPTIN = 97,
};
enum FunctionAttribute { FUNCTION_MAX_THREADS = 0, FUNCTION_SHARED_SIZE = 1, FUNCTION_LOCAL_SIZE = 3, FUNCTION_REGISTERS = 4, FUNCTION_MAX_DYNAMIC_SHARED = 8 };

struct LaunchConfig {               // CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    struct Stream *stream;
    void *attributes;
    unsigned attribute_count;
};
struct ExecUpdateResult {           // CUgraphExecUpdateResultInfo
    int result;
    void *error_node, *error_from_node;
};

// the emulator's modules (runtime/ptx.h)
struct EmulatedKernel {
    const char *name;
    int (*run)(void *, void *);
    u32 shared_size, dynamic_alignment, local_size, registers_size, max_threads, parameters_size, parameter_count;
    const u32 *parameters;
};
struct EmulatedVariable {
    const char *name;
    void *address;
    u64 size, writable;
};
struct Range {
    u64 low, high, writable;
};
struct EmulatedLaunch {
    u32 grid[3], block[3], dynamic_shared, range_count;
    const u8 *parameters;
    const Range *ranges;
    u32 seed, check_races, late, step_limit;
    char *error;
};
struct TensorMap {
    u64 address, strides[5];
    u32 sizes[5], box[5];
    uint16_t dimensions, swizzle, magic, unused;
    u8 rest[128 - 96];
};
static_assert(sizeof(TensorMap) == 128, "a tensor map has 128 bytes");
#endif
