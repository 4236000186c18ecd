// Modules: machine code stands for the PTX it was compiled from, which the emulator runs.
#ifndef FAKE_MODULES_H
#define FAKE_MODULES_H
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "streams.h"

struct Module {
    void *library;
    int (*launch)(u32, const EmulatedLaunch *);
    const EmulatedKernel *kernels;
    const EmulatedVariable *variables;
    u32 kernel_count, variable_count;
};

struct Function {
    Module *module;
    u32 index;
    const EmulatedKernel *kernel;
    int dynamic_limit = 48 << 10;
};

enum { SHARED_LIMIT = 232448, PATH_SIZE = 4096 };

// Finds the emulated code of an image: writes the path of a shared library, and returns 0.
typedef int (*Translator)(const void *image, u64 size, char *path);
static Translator translator;

static u64 image_size(const void *image) {
    const u8 *p = (const u8 *)image;
    if (memcmp(p, "\177ELF", 4)) return strlen((const char *)image);
    u64 sections, segments;
    uint16_t counts[6];                                 // from e_ehsize: sizes and numbers of headers
    memcpy(&segments, p + 0x20, 8);
    memcpy(&sections, p + 0x28, 8);
    memcpy(counts, p + 0x34, sizeof counts);
    return std::max(segments + counts[1] * counts[2], sections + counts[3] * counts[4]);
}

// Without a translator of this process, by the command in FAKE_CUDA_TRANSLATOR: image in, path out.
static int translate_by_command(const void *image, u64 size, char *path) {
    const char *command = getenv("FAKE_CUDA_TRANSLATOR");
    if (!command) return 1;
    char name[] = "/tmp/fake-cuda-image-XXXXXX";
    int file = mkstemp(name);
    if (file < 0) return 1;
    bool written = write(file, image, size) == (ssize_t)size;
    close(file);
    FILE *answer = written ? popen((std::string(command) + " " + name).c_str(), "r") : nullptr;
    bool read = answer && fgets(path, PATH_SIZE, answer);
    int status = answer ? pclose(answer) : 1;
    unlink(name);
    if (!read || status) return 1;
    path[strcspn(path, "\n")] = 0;
    return 0;
}

// An image is translated once in a process: the command starts a process of its own.
static bool translated(const void *image, char *path) {
    static std::map<std::string, std::string> known;
    u64 size = image_size(image);
    std::string &found = known[std::string((const char *)image, size)];
    if (found.empty()) {
        char fresh[PATH_SIZE] = "";
        if (translator ? translator(image, size, fresh) : translate_by_command(image, size, fresh)) return false;
        found = fresh;
    }
    strcpy(path, found.c_str());
    return true;
}

static Result module_load(Module **out, const void *image) {
    if (!image) return INVALID_VALUE;
    char path[PATH_SIZE] = "";
    if (!translated(image, path)) return INVALID_IMAGE;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return INVALID_IMAGE;
    Module *m = new Module();
    m->library = library;
    m->launch = (decltype(m->launch))dlsym(library, "emu_launch");
    m->kernel_count = ((u32(*)(const EmulatedKernel **))dlsym(library, "emu_kernels"))(&m->kernels);
    m->variable_count = ((u32(*)(const EmulatedVariable **))dlsym(library, "emu_variables"))(&m->variables);
    *out = m;
    return SUCCESS;
}

static Result fault_of(const char *text) {
    struct { const char *part; Result result; } known[] = {
        {"misaligned", MISALIGNED_ADDRESS}, {"outside every allocation", ILLEGAL_ADDRESS}, {"out of bounds", ILLEGAL_ADDRESS},
        {"only to be read", ILLEGAL_ADDRESS}, {"unsupported PTX", ILLEGAL_INSTRUCTION},
    };
    for (auto &k : known) if (strstr(text, k.part)) return k.result;
    return LAUNCH_FAILED;
}

static Result kernel_run(const Function *f, EmulatedLaunch launch, const std::vector<u8> &parameters) {
    if (device.fault_after && device.counters.launches >= device.fault_after)
        return device.killed(ILLEGAL_ADDRESS, "a fault that was asked for");
    if (!device.runs_kernels) return SUCCESS;
    char error[1024] = "";
    std::vector<Range> ranges = device.ranges();
    std::vector<u8> space(parameters.size() + 64);
    u8 *aligned = space.data() + (-(uintptr_t)space.data() & 63);
    memcpy(aligned, parameters.data(), parameters.size());
    launch.parameters = aligned;
    launch.ranges = ranges.data();
    launch.range_count = (u32)ranges.size();
    launch.seed = device.seed;
    launch.late = 1;
    launch.step_limit = 64;
    launch.error = error;
    if (!f->module->launch(f->index, &launch)) return SUCCESS;
    return device.killed(fault_of(error), error);
}

static bool launch_allowed(const Function *f, const unsigned *grid, const unsigned *block, unsigned shared) {
    u64 threads = (u64)block[0] * block[1] * block[2];
    return grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535 && threads && block[2] <= 64
        && threads <= std::min<u64>(1024, f->kernel->max_threads) && (int)shared <= f->dynamic_limit && f->kernel->shared_size + shared <= SHARED_LIMIT;
}

// The arguments as the driver copies them: from an array of pointers, or from one packed buffer.
static bool parameters_copied(const EmulatedKernel *k, void **arguments, void **extra, std::vector<u8> &into) {
    into.assign(std::max(k->parameters_size, 1u), 0);
    if (arguments) {
        for (u32 i = 0; i < k->parameter_count; i++) memcpy(&into[k->parameters[2 * i]], arguments[i], k->parameters[2 * i + 1]);
        return true;
    }
    const void *buffer = nullptr;
    u64 size = 0;
    for (; extra && *extra; extra += 2) {
        if ((u64)*extra == LAUNCH_BUFFER_POINTER) buffer = extra[1];
        if ((u64)*extra == LAUNCH_BUFFER_SIZE) size = *(u64 *)extra[1];
    }
    if (!buffer) return k->parameter_count == 0;
    if (size < k->parameters_size) return false;
    memcpy(into.data(), buffer, k->parameters_size);
    return true;
}
#endif
