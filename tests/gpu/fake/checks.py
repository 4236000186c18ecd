"""What the fake driver has to show, seen through unmodified cuda.bindings. Run by tests/gpu/test_fake.py in its own process."""

import ctypes
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from cuda.bindings import driver as cu

from tests.gpu import fake
from tests.gpu.micro.case import module

ADD = module(["u64", "u32"], """
    .reg .b32 %x;
    .reg .b64 %at;
    mad.lo.u64 %at, %wide, 4, %arg0;
    ld.global.u32 %x, [%at];
    add.u32 %x, %x, %arg1;
    st.global.u32 [%at], %x;""")
COUNT = 64
SIZE = 4 * COUNT
CAPTURE = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
E = cu.CUresult


def ok(result: tuple) -> object:
    assert result[0] == E.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(0))))))
    fake.reset()
    yield
    fake.reset()
    fake.set_total(8 << 30)


@pytest.fixture
def stream() -> object:
    return ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))


@pytest.fixture
def memory() -> int:
    return int(ok(cu.cuMemAlloc(SIZE)))


def pinned(values: object = None) -> np.ndarray:
    address = int(ok(cu.cuMemHostAlloc(SIZE, 0)))
    array = np.ctypeslib.as_array((ctypes.c_uint32 * COUNT).from_address(address))
    if values is not None:
        array[:] = values
    return array


def upload(to: int, source: np.ndarray, stream: object) -> None:
    ok(cu.cuMemcpyHtoDAsync(to, source.ctypes.data, source.nbytes, stream))


def download(target: np.ndarray, source: int, stream: object) -> None:
    ok(cu.cuMemcpyDtoHAsync(target.ctypes.data, source, target.nbytes, stream))


def kernel() -> object:
    return ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(ADD.encode() + b"\0")), b"micro"))


def add(function: object, stream: object, memory: int, value: int, threads: int = COUNT, grid: int = 1, shared: int = 0) -> object:
    return cu.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, stream, ((memory, value), (ctypes.c_void_p, ctypes.c_uint32)), 0)[0]


def capture(stream: object, body: object) -> object:
    ok(cu.cuStreamBeginCapture(stream, CAPTURE))
    body()
    return cu.cuStreamEndCapture(stream)


# memory and streams

def test_memory_starts_as_poison(memory: int):
    out = np.zeros(COUNT, np.uint32)
    ok(cu.cuMemcpyDtoH(out.ctypes.data, memory, SIZE))
    assert (out == 0xFFFFFFFF).all()


def test_nothing_happens_before_somebody_waits(memory: int, stream: object):
    out = pinned(7)
    upload(memory, pinned(1), stream)
    assert add(kernel(), stream, memory, 4) == E.CUDA_SUCCESS
    download(out, memory, stream)
    assert (out == 7).all()
    ok(cu.cuStreamSynchronize(stream))
    assert (out == 5).all()


def test_a_pinned_buffer_used_again_too_early_gives_wrong_data(memory: int, stream: object):
    source, out = pinned(1), pinned()
    upload(memory, source, stream)
    source[:] = 2
    download(out, memory, stream)
    ok(cu.cuStreamSynchronize(stream))
    assert (out == 2).all()


def test_pageable_memory_is_read_at_once(memory: int, stream: object):
    source, out = np.full(COUNT, 1, np.uint32), np.zeros(COUNT, np.uint32)
    upload(memory, source, stream)
    source[:] = 2
    download(out, memory, stream)           # into pageable memory: waits
    assert (out == 1).all()


def test_another_streams_work_is_not_done_by_waiting_for_this_one(memory: int, stream: object):
    other, out = ok(cu.cuStreamCreate(1)), pinned(0)
    upload(memory, pinned(3), other)
    download(out, memory, stream)
    ok(cu.cuStreamSynchronize(stream))
    assert (out == 0xFFFFFFFF).all()


def test_an_event_orders_two_streams(memory: int, stream: object):
    other, out, event = ok(cu.cuStreamCreate(1)), pinned(0), ok(cu.cuEventCreate(0))
    upload(memory, pinned(3), other)
    ok(cu.cuEventRecord(event, other))
    upload(memory, pinned(9), other)        # after the event: not waited for
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    download(out, memory, stream)
    ok(cu.cuStreamSynchronize(stream))
    assert (out == 3).all()


def test_polling_an_event_gets_there(memory: int, stream: object):
    event = ok(cu.cuEventCreate(0))
    for _ in range(3):
        upload(memory, pinned(3), stream)
    ok(cu.cuEventRecord(event, stream))
    polls = 0
    while cu.cuEventQuery(event)[0] == E.CUDA_ERROR_NOT_READY:
        polls += 1
    assert polls == 3


def test_the_time_between_events_needs_both_to_be_over(stream: object):
    a, b = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(a, stream))
    ok(cu.cuEventRecord(b, stream))
    assert cu.cuEventElapsedTime(a, b)[0] == E.CUDA_ERROR_NOT_READY
    ok(cu.cuEventSynchronize(b))
    assert 0 <= ok(cu.cuEventElapsedTime(a, b)) < 1000
    untimed = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    ok(cu.cuEventRecord(untimed, stream))
    ok(cu.cuEventSynchronize(untimed))
    assert cu.cuEventElapsedTime(a, untimed)[0] == E.CUDA_ERROR_INVALID_HANDLE


def test_memory_runs_out(memory: int):
    fake.set_total(1 << 20)
    used = SIZE + 0
    free, total = ok(cu.cuMemGetInfo())
    assert total == 1 << 20 and free <= total - used
    status, _ = cu.cuMemAlloc(free + 1)
    assert status == E.CUDA_ERROR_OUT_OF_MEMORY
    held = ok(cu.cuMemAlloc(free))
    assert ok(cu.cuMemGetInfo())[0] == 0
    ok(cu.cuMemFree(held))
    assert ok(cu.cuMemGetInfo())[0] == free


def test_copies_stay_within_allocations(memory: int, stream: object):
    source = np.zeros(COUNT + 1, np.uint32)
    assert cu.cuMemcpyHtoDAsync(memory, source.ctypes.data, SIZE + 4, stream)[0] == E.CUDA_ERROR_INVALID_VALUE
    assert cu.cuMemFree(memory + 4)[0] == E.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemFree(memory))
    assert cu.cuMemcpyHtoDAsync(memory, source.ctypes.data, SIZE, stream)[0] == E.CUDA_ERROR_INVALID_VALUE


def test_a_thread_needs_the_context():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(cu.cuMemAlloc(SIZE)[0]))
    thread.start()
    thread.join()
    assert seen == [E.CUDA_ERROR_INVALID_CONTEXT]


# launches

def test_launches_are_checked(memory: int, stream: object):
    function = kernel()
    assert add(function, stream, memory, 1, grid=0) == E.CUDA_ERROR_INVALID_VALUE
    assert add(function, stream, memory, 1, threads=1025) == E.CUDA_ERROR_INVALID_VALUE
    assert add(function, stream, memory, 1, shared=49 << 10) == E.CUDA_ERROR_INVALID_VALUE
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(cu.cuFuncSetAttribute(function, attribute, 49 << 10))
    assert add(function, stream, memory, 1, shared=49 << 10) == E.CUDA_SUCCESS
    assert cu.cuFuncSetAttribute(function, attribute, 228 << 10)[0] == E.CUDA_ERROR_INVALID_VALUE


def test_a_kernel_that_is_not_there():
    loaded = ok(cu.cuModuleLoadData(ADD.encode() + b"\0"))
    assert cu.cuModuleGetFunction(loaded, b"other")[0] == E.CUDA_ERROR_NOT_FOUND


def test_a_fault_comes_late_and_stays(memory: int, stream: object):
    function = kernel()
    assert add(function, stream, memory, 1, threads=COUNT + 1) == E.CUDA_SUCCESS
    assert cu.cuStreamSynchronize(stream)[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS
    text = ok(cu.cuGetErrorString(E.CUDA_ERROR_ILLEGAL_ADDRESS))
    assert b"outside every allocation: kernel micro block (0,0,0) thread (64,0,0)" in text
    assert cu.cuMemAlloc(SIZE)[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS
    assert add(function, stream, memory, 1) == E.CUDA_ERROR_ILLEGAL_ADDRESS


def test_a_fault_can_be_asked_for(memory: int, stream: object):
    function = kernel()
    fake.fault_after(2)
    assert add(function, stream, memory, 1) == E.CUDA_SUCCESS
    ok(cu.cuStreamSynchronize(stream))
    assert add(function, stream, memory, 1) == E.CUDA_SUCCESS
    assert cu.cuStreamSynchronize(stream)[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS


def test_what_was_done_is_counted(memory: int, stream: object):
    function = kernel()
    fake.reset()
    upload(memory, pinned(1), stream)
    for _ in range(3):
        add(function, stream, memory, 1)
    ok(cu.cuStreamSynchronize(stream))
    counted = fake.counters()
    assert (counted.launches, counted.copies, counted.synchronizations, counted.graph_launches) == (3, 1, 1, 0)


# graphs

def test_a_graph_is_captured_replayed_and_reads_its_inputs_each_time(memory: int, stream: object):
    source, out, function = pinned(0), pinned(0), kernel()

    def body() -> None:
        upload(memory, source, stream)
        add(function, stream, memory, 10)
        download(out, memory, stream)

    graph = ok(cu.cuGraphInstantiate(ok(capture(stream, body)), 0))
    assert (out == 0).all()                 # nothing ran while capturing
    for value in (1, 2):
        source[:] = value
        ok(cu.cuGraphLaunch(graph, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert (out == value + 10).all()


def test_arguments_are_baked_in_and_an_update_changes_them(memory: int, stream: object):
    out, function = pinned(0), kernel()
    zeros = pinned(0)

    def graph_of(value: int) -> object:
        def body() -> None:
            upload(memory, zeros, stream)
            add(function, stream, memory, value)
            download(out, memory, stream)
        return ok(capture(stream, body))

    executable = ok(cu.cuGraphInstantiate(graph_of(5), 0))
    ok(cu.cuGraphExecUpdate(executable, graph_of(6)))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (out == 6).all()
    other = ok(capture(stream, lambda: add(function, stream, memory, 1)))
    assert cu.cuGraphExecUpdate(executable, other)[0] == E.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE


@pytest.mark.parametrize("call", [
    lambda s, m: cu.cuStreamSynchronize(s), lambda s, m: cu.cuStreamQuery(s), lambda s, m: cu.cuMemAlloc(64), lambda s, m: cu.cuMemFree(m),
    lambda s, m: cu.cuCtxSynchronize(), lambda s, m: cu.cuMemsetD8(m, 0, 4), lambda s, m: cu.cuModuleLoadData(ADD.encode() + b"\0"),
], ids=["synchronise", "query", "allocate", "free", "synchronise all", "fill at once", "load"])
def test_what_a_capture_does_not_allow_spoils_it(call: object, memory: int, stream: object):
    ok(cu.cuStreamBeginCapture(stream, CAPTURE))
    assert call(stream, memory)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert cu.cuStreamEndCapture(stream)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    ok(cu.cuStreamSynchronize(stream))


def test_another_thread_may_allocate_during_a_capture_of_ones_own(stream: object):
    context, seen = ok(cu.cuCtxGetCurrent()), []

    def allocate() -> None:
        cu.cuCtxSetCurrent(context)
        seen.append(cu.cuMemAlloc(SIZE)[0])

    for mode, expected in ((CAPTURE, E.CUDA_SUCCESS),
                           (cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL, E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)):
        ok(cu.cuStreamBeginCapture(stream, mode))
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        cu.cuStreamEndCapture(stream)
        assert seen.pop() == expected


def test_a_second_stream_joins_a_capture_and_has_to_come_back(memory: int, stream: object):
    other, forked, joined = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    function = kernel()

    def fork() -> None:
        ok(cu.cuEventRecord(forked, stream))
        ok(cu.cuStreamWaitEvent(other, forked, 0))
        add(function, other, memory, 1)

    def fork_and_join() -> None:
        fork()
        ok(cu.cuEventRecord(joined, other))
        ok(cu.cuStreamWaitEvent(stream, joined, 0))

    assert capture(stream, fork)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    ok(capture(stream, fork_and_join))


def test_a_capture_does_not_wait_for_what_is_outside(memory: int, stream: object):
    event, other = ok(cu.cuEventCreate(0)), ok(cu.cuStreamCreate(1))
    ok(cu.cuEventRecord(event, other))
    ok(cu.cuStreamBeginCapture(stream, CAPTURE))
    assert cu.cuStreamWaitEvent(stream, event, 0)[0] == E.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    assert cu.cuStreamEndCapture(stream)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED


def test_the_default_stream_cannot_be_captured():
    assert cu.cuStreamBeginCapture(cu.CUstream(0), CAPTURE)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED


# tensor maps

def test_tensor_maps_are_checked():
    memory = int(ok(cu.cuMemAlloc(1 << 16)))
    kinds, swizzles = cu.CUtensorMapDataType, cu.CUtensorMapSwizzle

    def encode(address: int = memory, stride: int = 128, box: int = 64) -> object:
        return cu.cuTensorMapEncodeTiled(
            kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, address, [cu.cuuint64_t(64), cu.cuuint64_t(32)], [cu.cuuint64_t(stride)],
            [cu.cuuint32_t(box), cu.cuuint32_t(8)], [cu.cuuint32_t(1), cu.cuuint32_t(1)],
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE, cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)[0]

    assert encode() == E.CUDA_SUCCESS
    assert encode(address=memory + 8) == E.CUDA_ERROR_INVALID_VALUE
    assert encode(stride=136) == E.CUDA_ERROR_INVALID_VALUE
    assert encode(box=72) == E.CUDA_ERROR_INVALID_VALUE
