// A libcuda.so.1 without a GPU, for tests: what cuda.bindings calls, with the driver's rules checked. Kernels run in the
// emulator; memory is the host's; streams run when somebody waits for them.
#include "modules.h"

#define API extern "C" __attribute__((visibility("default")))
#define IN_CONTEXT LOCKED; if (!current) return INVALID_CONTEXT; if (device.fault) return device.fault
static thread_local void *current;                      // context of the thread
static void *const CONTEXT = (void *)0x1000;

// initialisation and the device ------------------------------------------------------------------------------------------------

API Result cuInit(unsigned) { LOCKED; device.initialized = true; return from_environment("FAKE_CUDA_NO_DEVICE", 0) ? NO_DEVICE : SUCCESS; }
API Result cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
API Result cuDeviceGetCount(int *count) { if (!device.initialized) return NOT_INITIALIZED; *count = 1; return SUCCESS; }
API Result cuDeviceGet(int *handle, int index) { *handle = 0; return index ? INVALID_DEVICE : SUCCESS; }
API Result cuDeviceGetName(char *name, int size, int) { snprintf(name, size, "emulated device"); return SUCCESS; }
API Result cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = device.total; return SUCCESS; }
API Result cuDeviceGetUuid_v2(char *uuid, int) { memset(uuid, 7, 16); return SUCCESS; }
API Result cuDeviceGetAttribute(int *value, int attribute, int) {
    static const std::map<int, int> values = {
        {MAX_THREADS_PER_BLOCK, 1024}, {MAX_SHARED_PER_BLOCK, 48 << 10}, {WARP_SIZE, 32}, {CLOCK_RATE, 1980000}, {MULTIPROCESSORS, 132},
        {UNIFIED_ADDRESSING, 1}, {MEMORY_CLOCK_RATE, 3201000}, {BUS_WIDTH, 6144}, {L2_SIZE, 60 << 20}, {MAX_SHARED_OPTIN, SHARED_LIMIT},
    };
    auto found = values.find(attribute);
    *value = attribute == CAPABILITY_MAJOR ? device.capability / 10 : attribute == CAPABILITY_MINOR ? device.capability % 10
        : found == values.end() ? 0 : found->second;
    return SUCCESS;
}
API Result cuGetExportTable(const void **table, const void *) { *table = nullptr; return NOT_FOUND; }

API Result cuDevicePrimaryCtxRetain(void **context, int) { *context = CONTEXT; return SUCCESS; }
API Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API Result cuDevicePrimaryCtxReset_v2(int) { LOCKED; device.fault = SUCCESS; return SUCCESS; }
API Result cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return SUCCESS; }
API Result cuCtxSetCurrent(void *context) { current = context; return SUCCESS; }
API Result cuCtxGetCurrent(void **context) { *context = current; return SUCCESS; }
API Result cuCtxPushCurrent_v2(void *context) { current = context; return SUCCESS; }
API Result cuCtxPopCurrent_v2(void **context) { if (context) *context = current; current = nullptr; return SUCCESS; }
API Result cuCtxGetDevice(int *handle) { *handle = 0; return current ? SUCCESS : INVALID_CONTEXT; }
API Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
API Result cuCtxSynchronize() { IN_CONTEXT; NOT_WHILE_CAPTURING; device.counters.synchronizations++; return run_all(); }

// memory -----------------------------------------------------------------------------------------------------------------------

API Result cuMemGetInfo_v2(size_t *free, size_t *total) {
    IN_CONTEXT;
    *total = device.total;
    *free = device.total - device.memory.used;
    return SUCCESS;
}
API Result cuMemAlloc_v2(Address *out, size_t size) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    if (!size) return INVALID_VALUE;
    if (size > device.total - device.memory.used) return OUT_OF_MEMORY;
    *out = (Address)device.memory.allocate(size, device.poisoned);
    device.counters.allocations++;
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
API Result cuMemFree_v2(Address at) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    if (!at) return SUCCESS;
    run_all();
    device.counters.frees++;
    return device.memory.release(at) ? SUCCESS : INVALID_VALUE;
}
API Result cuMemHostAlloc(void **out, size_t size, unsigned) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    *out = size ? device.pinned.allocate(size, size) : nullptr;
    device.counters.allocations++;
    return *out ? SUCCESS : INVALID_VALUE;
}
API Result cuMemFreeHost(void *at) {
    IN_CONTEXT;
    NOT_WHILE_CAPTURING;
    run_all();
    return device.pinned.release((u64)at) ? SUCCESS : INVALID_VALUE;
}
API Result cuMemHostGetDevicePointer_v2(Address *out, void *at, unsigned) { *out = (Address)at; return SUCCESS; }
API Result cuPointerGetAttribute(void *, int, Address) { return NOT_SUPPORTED; }

// Pageable memory is read at once, unless a graph is to read it at every replay; pinned memory when the stream comes to it.
static Result copy(Stream *handle, u64 to, bool to_device, u64 from, bool from_device, size_t size) {
    if ((to_device && !device.memory.contains(to, size)) || (from_device && !device.memory.contains(from, size))) return INVALID_VALUE;
    device.counters.copies++;
    bool later = from_device || device.pinned.contains(from, size) || stream_of(handle)->capture;
    if (later) return put(handle, {Operation::COPY, [=] { memmove((void *)to, (void *)from, size); return SUCCESS; }});
    std::vector<u8> kept((u8 *)from, (u8 *)from + size);
    return put(handle, {Operation::COPY, [=] { memcpy((void *)to, kept.data(), size); return SUCCESS; }});
}
API Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, Stream *s) { IN_CONTEXT; return copy(s, to, true, (u64)from, false, size); }
API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, Stream *s) { IN_CONTEXT; return copy(s, to, true, from, true, size); }
API Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, Stream *s) {
    IN_CONTEXT;
    Result r = copy(s, (u64)to, false, from, true, size);
    bool waits = !device.pinned.contains((u64)to, size) && !stream_of(s)->capture;      // through a staging buffer
    return r || !waits ? r : run_until(stream_of(s));
}
static Result copied(Result put_on_default) { return put_on_default ? put_on_default : run_default(); }
API Result cuMemcpyHtoD_v2(Address to, const void *from, size_t size) { IN_CONTEXT; NOT_WHILE_CAPTURING; return copied(copy(nullptr, to, true, (u64)from, false, size)); }
API Result cuMemcpyDtoH_v2(void *to, Address from, size_t size) { IN_CONTEXT; NOT_WHILE_CAPTURING; return copied(copy(nullptr, (u64)to, false, from, true, size)); }
API Result cuMemcpyDtoD_v2(Address to, Address from, size_t size) { IN_CONTEXT; NOT_WHILE_CAPTURING; return copied(copy(nullptr, to, true, from, true, size)); }

template <typename Word> static Result fill(Address at, Word value, size_t count, Stream *s) {
    if (!device.memory.contains(at, count * sizeof value) || at % sizeof value) return INVALID_VALUE;
    return put(s, {Operation::FILL, [=] { std::fill_n((Word *)at, count, value); return SUCCESS; }});
}
API Result cuMemsetD8Async(Address at, unsigned char value, size_t count, Stream *s) { IN_CONTEXT; return fill<u8>(at, value, count, s); }
API Result cuMemsetD16Async(Address at, unsigned short value, size_t count, Stream *s) { IN_CONTEXT; return fill<uint16_t>(at, value, count, s); }
API Result cuMemsetD32Async(Address at, unsigned value, size_t count, Stream *s) { IN_CONTEXT; return fill<u32>(at, value, count, s); }
API Result cuMemsetD8_v2(Address at, unsigned char value, size_t count) { IN_CONTEXT; NOT_WHILE_CAPTURING; return copied(fill<u8>(at, value, count, nullptr)); }
API Result cuMemsetD32_v2(Address at, unsigned value, size_t count) { IN_CONTEXT; NOT_WHILE_CAPTURING; return copied(fill<u32>(at, value, count, nullptr)); }

// streams and events -----------------------------------------------------------------------------------------------------------

API Result cuStreamCreate(Stream **out, unsigned flags) {
    IN_CONTEXT;
    *out = new Stream();
    (*out)->blocking = !(flags & STREAM_NON_BLOCKING);
    streams.insert(*out);
    return SUCCESS;
}
API Result cuStreamCreateWithPriority(Stream **out, unsigned flags, int) { return cuStreamCreate(out, flags); }
API Result cuStreamDestroy_v2(Stream *s) {
    LOCKED;
    if (!streams.count(s)) return INVALID_HANDLE;
    run_until(s);
    streams.erase(s);
    delete s;
    return SUCCESS;
}
API Result cuStreamSynchronize(Stream *handle) {
    IN_CONTEXT;
    Stream *s = stream_of(handle);
    if (s->capture) return spoiled(s, CAPTURE_UNSUPPORTED);
    device.counters.synchronizations++;
    return s == &default_stream ? run_default() : run_until(s);
}
API Result cuStreamQuery(Stream *handle) {      // some of the work gets done, so that polling ends
    IN_CONTEXT;
    Stream *s = stream_of(handle);
    if (s->capture) return spoiled(s, CAPTURE_UNSUPPORTED);
    if (!s->queue.empty()) run_one(s);
    return device.fault ? device.fault : s->queue.empty() ? SUCCESS : NOT_READY;
}
API Result cuStreamGetPriority(Stream *, int *priority) { *priority = 0; return SUCCESS; }
API Result cuStreamGetFlags(Stream *s, unsigned *flags) { *flags = !stream_of(s)->blocking; return SUCCESS; }
API Result cuStreamGetCtx(Stream *, void **context) { *context = CONTEXT; return SUCCESS; }

API Result cuEventCreate(Event **out, unsigned flags) { IN_CONTEXT; *out = new Event(); (*out)->timed = !(flags & EVENT_DISABLE_TIMING); return SUCCESS; }
API Result cuEventDestroy_v2(Event *event) { LOCKED; run_until(event->stream ? event->stream : &default_stream, event, event->recorded); return SUCCESS; }
API Result cuEventRecord(Event *event, Stream *handle) {
    IN_CONTEXT;
    Stream *s = stream_of(handle);
    if (s->capture) {
        event->capture = s->capture;
        event->captured_on = s;
        return s->capture->valid ? SUCCESS : CAPTURE_INVALIDATED;
    }
    event->capture = nullptr;
    event->stream = s;
    return put(handle, {Operation::RECORD, nullptr, event, ++event->recorded});
}
API Result cuStreamWaitEvent(Stream *handle, Event *event, unsigned) {
    IN_CONTEXT;
    Stream *s = stream_of(handle);
    if (event->capture) {                               // the stream joins the capture, or meets another of its streams
        if (!captures.count(event->capture)) return INVALID_VALUE;
        if (s->capture && s->capture != event->capture) return spoiled(s, CAPTURE_MERGE);
        if (!s->queue.empty() && !s->capture) return CAPTURE_ISOLATION;
        s->capture = event->capture;
        s->capture->streams.insert(s);
        if (s == s->capture->origin) s->capture->streams.erase(event->captured_on);
        return SUCCESS;
    }
    if (s->capture) return spoiled(s, CAPTURE_ISOLATION);
    if (!event->stream) return SUCCESS;
    return put(handle, {Operation::WAIT, nullptr, event, event->recorded});
}
API Result cuEventSynchronize(Event *event) {
    IN_CONTEXT;
    if (event->capture) return CAPTURED_EVENT;
    device.counters.synchronizations++;
    return event->stream ? run_until(event->stream, event, event->recorded) : SUCCESS;
}
API Result cuEventQuery(Event *event) {
    IN_CONTEXT;
    if (event->capture) return CAPTURED_EVENT;
    if (event->reached < event->recorded) run_one(event->stream);
    return device.fault ? device.fault : event->reached < event->recorded ? NOT_READY : SUCCESS;
}
API Result cuEventElapsedTime_v2(float *ms, Event *start, Event *end) {
    IN_CONTEXT;
    if (!start->timed || !end->timed || !start->recorded || !end->recorded) return INVALID_HANDLE;
    if (start->reached < start->recorded || end->reached < end->recorded) return NOT_READY;
    *ms = (float)(end->time - start->time);
    return SUCCESS;
}

// modules and launches ---------------------------------------------------------------------------------------------------------

API Result cuModuleLoadData(Module **out, const void *image) { IN_CONTEXT; NOT_WHILE_CAPTURING; device.counters.loads++; return module_load(out, image); }
API Result cuModuleLoadDataEx(Module **out, const void *image, unsigned, int *, void **) { return cuModuleLoadData(out, image); }
API Result cuModuleUnload(Module *m) { IN_CONTEXT; run_all(); device.counters.unloads++; delete m; return SUCCESS; }
API Result cuModuleGetFunction(Function **out, Module *m, const char *name) {
    IN_CONTEXT;
    for (u32 i = 0; i < m->kernel_count; i++)
        if (!strcmp(m->kernels[i].name, name)) { *out = new Function{m, i, &m->kernels[i]}; return SUCCESS; }
    return NOT_FOUND;
}
API Result cuModuleGetGlobal_v2(Address *out, size_t *size, Module *m, const char *name) {
    IN_CONTEXT;
    for (u32 i = 0; i < m->variable_count; i++)
        if (!strcmp(m->variables[i].name, name)) {
            if (out) *out = (Address)m->variables[i].address;
            if (size) *size = m->variables[i].size;
            return SUCCESS;
        }
    return NOT_FOUND;
}
API Result cuLibraryLoadData(Module **out, const void *image, int *, void **, unsigned, int *, void **, unsigned) { return cuModuleLoadData(out, image); }
API Result cuLibraryUnload(Module *m) { return cuModuleUnload(m); }
API Result cuLibraryGetKernel(Function **out, Module *m, const char *name) { return cuModuleGetFunction(out, m, name); }
API Result cuKernelGetFunction(Function **out, Function *kernel) { *out = kernel; return SUCCESS; }

API Result cuFuncSetAttribute(Function *f, int attribute, int value) {
    IN_CONTEXT;
    if (attribute != FUNCTION_MAX_DYNAMIC_SHARED) return SUCCESS;
    if (value < 0 || (u32)value + f->kernel->shared_size > SHARED_LIMIT) return INVALID_VALUE;
    f->dynamic_limit = value;
    return SUCCESS;
}
API Result cuFuncGetAttribute(int *value, int attribute, Function *f) {
    LOCKED;
    const EmulatedKernel *k = f->kernel;
    *value = attribute == FUNCTION_MAX_THREADS ? (int)std::min(k->max_threads, 1024u) : attribute == FUNCTION_SHARED_SIZE ? (int)k->shared_size
        : attribute == FUNCTION_LOCAL_SIZE ? (int)k->local_size : attribute == FUNCTION_MAX_DYNAMIC_SHARED ? f->dynamic_limit : 0;
    return SUCCESS;
}
API Result cuFuncGetParamInfo(Function *f, size_t index, size_t *offset, size_t *size) {
    LOCKED;
    if (index >= f->kernel->parameter_count) return INVALID_VALUE;
    *offset = f->kernel->parameters[2 * index];
    if (size) *size = f->kernel->parameters[2 * index + 1];
    return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *f, int threads, size_t shared) {
    LOCKED;
    u64 bytes = f->kernel->shared_size + shared + 1024;
    *blocks = (int)std::min<u64>({32, 2048 / (u64)std::max(threads, 1), (u64)(228 << 10) / bytes});
    return SUCCESS;
}

API Result cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream *s,
                          void **arguments, void **extra) {
    IN_CONTEXT;
    EmulatedLaunch launch = {};
    const u32 shape[6] = {gx, gy, gz, bx, by, bz};
    memcpy(launch.grid, shape, sizeof launch.grid);
    memcpy(launch.block, shape + 3, sizeof launch.block);
    launch.dynamic_shared = shared;
    std::vector<u8> parameters;
    if (!launch_allowed(f, launch.grid, launch.block, shared) || !parameters_copied(f->kernel, arguments, extra, parameters)) return INVALID_VALUE;
    device.counters.launches++;
    if (!device.runs_kernels && !stream_of(s)->capture) return SUCCESS;
    return put(s, {Operation::KERNEL, [=] { return kernel_run(f, launch, parameters); }});
}
API Result cuLaunchKernelEx(const LaunchConfig *c, Function *f, void **arguments, void **extra) {
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared_bytes, c->stream, arguments, extra);
}

API Result cuTensorMapEncodeTiled(TensorMap *out, int type, unsigned rank, void *address, const u64 *sizes, const u64 *strides, const u32 *box,
                                  const u32 *steps, int interleave, int swizzle, int, int) {
    static const u32 ELEMENT_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    static const uint16_t ROW_BYTES[] = {0, 32, 64, 128};
    if (type < 0 || type > 12 || rank < 1 || rank > 5 || (u64)address % 16 || interleave || swizzle < 0 || swizzle > 3) return INVALID_VALUE;
    TensorMap m = {};
    m.address = (u64)address;
    m.strides[0] = ELEMENT_BYTES[type];
    for (unsigned d = 0; d < rank; d++) {
        if (!box[d] || box[d] > 256 || steps[d] != 1 || !sizes[d] || (d && strides[d - 1] % 16)) return INVALID_VALUE;
        if (d) m.strides[d] = strides[d - 1];
        m.sizes[d] = (u32)sizes[d];
        m.box[d] = box[d];
    }
    u32 row = box[0] * ELEMENT_BYTES[type];
    if (row % 16 || (swizzle && row > ROW_BYTES[swizzle])) return INVALID_VALUE;
    m.dimensions = (uint16_t)rank;
    m.swizzle = ROW_BYTES[swizzle];
    m.magic = 0x7a7a;
    *out = m;
    return SUCCESS;
}

// graphs -----------------------------------------------------------------------------------------------------------------------

API Result cuStreamBeginCapture_v2(Stream *handle, int mode) {
    IN_CONTEXT;
    Stream *s = stream_of(handle);
    if (s == &default_stream) return CAPTURE_UNSUPPORTED;
    if (s->capture) return ILLEGAL_STATE;
    s->capture = new Capture{{}, s, (CaptureMode)mode, std::this_thread::get_id(), true, {s}};
    captures.insert(s->capture);
    return SUCCESS;
}
API Result cuStreamEndCapture(Stream *s, Graph **out) {
    LOCKED;
    Capture *c = stream_of(s)->capture;
    *out = nullptr;
    if (!c) return ILLEGAL_STATE;
    if (c->origin != s) return CAPTURE_UNMATCHED;
    if (c->mode != CAPTURE_RELAXED && c->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    Result r = !c->valid ? CAPTURE_INVALIDATED : c->streams.size() > 1 ? CAPTURE_UNJOINED : SUCCESS;
    for (auto *each : streams) if (each->capture == c) each->capture = nullptr;
    captures.erase(c);
    if (!r) *out = new Graph(c->graph);
    return r;                                           // c stays, for events that were recorded in it
}
API Result cuStreamIsCapturing(Stream *s, int *status) {
    LOCKED;
    Capture *c = stream_of(s)->capture;
    *status = !c ? 0 : c->valid ? 1 : 2;
    return SUCCESS;
}
API Result cuThreadExchangeStreamCaptureMode(int *mode) { *mode = CAPTURE_GLOBAL; return SUCCESS; }
API Result cuGraphInstantiateWithFlags(Graph **out, Graph *graph, u64) { IN_CONTEXT; *out = new Graph(*graph); return SUCCESS; }
API Result cuGraphUpload(Graph *, Stream *) { return SUCCESS; }
API Result cuGraphLaunch(Graph *executable, Stream *s) {
    IN_CONTEXT;
    if (stream_of(s)->capture) return spoiled(stream_of(s), CAPTURE_UNSUPPORTED);
    device.counters.graph_launches++;
    for (auto &o : executable->operations) {
        if (o.kind == Operation::KERNEL && !device.runs_kernels) continue;
        if (Result r = put(s, o)) return r;
    }
    return SUCCESS;
}
API Result cuGraphExecUpdate_v2(Graph *executable, Graph *graph, ExecUpdateResult *info) {
    IN_CONTEXT;
    auto &old = executable->operations, &fresh = graph->operations;
    bool same = std::equal(old.begin(), old.end(), fresh.begin(), fresh.end(), [](auto &a, auto &b) { return a.kind == b.kind; });
    if (info) *info = {same ? 0 : 2, nullptr, nullptr};
    if (!same) return UPDATE_FAILURE;
    old = fresh;
    return SUCCESS;
}
API Result cuGraphGetNodes(Graph *graph, void **nodes, size_t *count) {
    LOCKED;
    size_t all = graph->operations.size();
    for (size_t i = 0; nodes && i < std::min(*count, all); i++) nodes[i] = &graph->operations[i];
    *count = nodes ? std::min(*count, all) : all;
    return SUCCESS;
}
API Result cuGraphNodeGetType(Operation *node, int *type) { *type = node->kind; return SUCCESS; }
API Result cuGraphDestroy(Graph *graph) { LOCKED; delete graph; return SUCCESS; }
API Result cuGraphExecDestroy(Graph *executable) { LOCKED; delete executable; return SUCCESS; }

// names and entry points -------------------------------------------------------------------------------------------------------

static const std::map<int, const char *> NAMES = {
    {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {400, "CUDA_ERROR_INVALID_HANDLE"}, {401, "CUDA_ERROR_ILLEGAL_STATE"}, {500, "CUDA_ERROR_NOT_FOUND"}, {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"}, {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"}, {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}, {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"}, {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}, {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}, {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"}, {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"}, {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"},
};
API Result cuGetErrorName(int result, const char **name) {
    auto found = NAMES.find(result);
    *name = found == NAMES.end() ? nullptr : found->second;
    return *name ? SUCCESS : INVALID_VALUE;
}
API Result cuGetErrorString(int result, const char **text) {
    Result r = cuGetErrorName(result, text);
    if (result && result == device.fault) *text = device.fault_text.c_str();
    return r;
}
// Callers ask for a name without its version; the newest one is meant.
API Result cuGetProcAddress_v2(const char *name, void **out, int, u64, int *status) {
    static void *self = [] { Dl_info info; dladdr((void *)cuGetErrorName, &info); return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD); }();
    *out = nullptr;
    for (const char *suffix : {"_v4", "_v3", "_v2", "", "WithFlags"})
        if (!*out) *out = dlsym(self, (std::string(name) + suffix).c_str());
    if (status) *status = *out ? 0 : 1;
    return *out ? SUCCESS : NOT_FOUND;
}

// the fake's own ---------------------------------------------------------------------------------------------------------------

API void fake_set_translator(Translator t) { translator = t; }
API void fake_set_total(u64 bytes) { LOCKED; device.total = bytes; }
API void fake_set_runs_kernels(int yes) { LOCKED; device.runs_kernels = yes; }
API void fake_set_fault_after(u64 launches) { LOCKED; device.fault_after = launches ? device.counters.launches + launches : 0; }
API void fake_set_seed(u32 seed) { LOCKED; device.seed = seed; }
API const Counters *fake_counters() { return &device.counters; }
// As if the process had been started anew, but for what is allocated.
API void fake_reset() {
    LOCKED;
    device.fault = SUCCESS;
    device.fault_after = 0;
    device.counters = {};
    for (auto *s : streams) { s->queue.clear(); s->capture = nullptr; }
    captures.clear();
}
