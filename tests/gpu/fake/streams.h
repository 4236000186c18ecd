// Streams that do nothing until somebody waits for them, so that a missing synchronisation shows as a missing result.
#ifndef FAKE_STREAMS_H
#define FAKE_STREAMS_H
#include <chrono>
#include <deque>
#include <functional>
#include <set>
#include <thread>

#include "device.h"

struct Event;
struct Operation {
    enum Kind { KERNEL = 0, COPY = 1, FILL = 2, RECORD = 3, WAIT = 4 } kind;
    std::function<Result()> run;            // of a kernel, copy or fill
    Event *event = nullptr;                 // of a record or wait
    u64 generation = 0;
};

struct Graph {
    std::vector<Operation> operations;      // in an order that is one of those allowed
};

struct Capture {
    Graph graph;
    Stream *origin;
    CaptureMode mode;
    std::thread::id thread;
    bool valid = true;
    std::set<Stream *> streams;             // that joined; all but the origin have to come back
};

struct Stream {
    std::deque<Operation> queue;
    Capture *capture = nullptr;
    bool blocking = true;                   // against the default stream
};

struct Event {
    Stream *stream = nullptr;
    u64 recorded = 0, reached = 0;          // generations
    double time = 0;                        // ms
    bool timed = true;
    Capture *capture = nullptr;             // it was recorded in
    Stream *captured_on = nullptr;
};

static Stream default_stream;
static std::set<Stream *> streams = {&default_stream};
static std::set<Capture *> captures;

static double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static Stream *stream_of(Stream *handle) { return (u64)handle <= 2 ? &default_stream : handle; }   // 1, 2: legacy and per-thread

static Result run_until(Stream *s, Event *event, u64 generation);

static Result run_one(Stream *s) {
    Operation o = std::move(s->queue.front());
    s->queue.pop_front();
    if (o.kind == Operation::WAIT) {
        if (o.event->reached < o.generation) run_until(o.event->stream, o.event, o.generation);
    } else if (o.kind == Operation::RECORD) {
        o.event->reached = std::max(o.event->reached, o.generation);
        o.event->time = now_ms();
    } else if (!device.fault) {
        Result r = o.run();
        if (r) device.killed(r, device.fault_text);
    }
    return device.fault;
}

// Everything on the stream, or what lies before the event's generation.
static Result run_until(Stream *s, Event *event = nullptr, u64 generation = 0) {
    while (!s->queue.empty() && !(event && event->reached >= generation)) run_one(s);
    return device.fault;
}

static Result run_all() {
    for (auto *s : streams) run_until(s);
    return device.fault;
}

// What a call that may not happen during a capture does to it. Another thread's calls spoil global captures alone.
static bool forbidden_by_capture() {
    bool forbidden = false;
    for (auto *c : captures) {
        bool concerns = c->mode == CAPTURE_GLOBAL || (c->mode == CAPTURE_THREAD_LOCAL && c->thread == std::this_thread::get_id());
        if (!concerns) continue;
        c->valid = false;
        forbidden = true;
    }
    return forbidden;
}
#define NOT_WHILE_CAPTURING if (forbidden_by_capture()) return CAPTURE_UNSUPPORTED

static Result spoiled(Stream *s, Result why) {
    s->capture->valid = false;
    return why;
}

static Result put(Stream *handle, Operation o) {
    Stream *s = stream_of(handle);
    if (device.fault) return device.fault;
    if (s->capture) {
        if (!s->capture->valid) return CAPTURE_INVALIDATED;
        s->capture->graph.operations.push_back(std::move(o));
        return SUCCESS;
    }
    if (s == &default_stream && (u64)handle != 2)
        for (auto *c : captures)                    // the legacy stream would wait for the capturing one
            if (c->mode != CAPTURE_RELAXED && c->origin->blocking) { c->valid = false; return CAPTURE_IMPLICIT; }
    s->queue.push_back(std::move(o));
    return SUCCESS;
}

// The default stream's work comes after that of all blocking streams.
static Result run_default() {
    for (auto *s : streams) if (s->blocking && !s->capture) run_until(s);
    return device.fault;
}
#endif
