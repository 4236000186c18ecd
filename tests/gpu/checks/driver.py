"""imp.cuda.driver and kernel on the fake driver: run by test_driver.py, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from imp.cuda import compile as compiling
from imp.cuda.compile import Compiler, Source
from imp.cuda.driver import CudaError, CudaFault, CudaOutOfMemory, Device, Event, NoDevice, Stream
from imp.cuda.kernel import Kernel
from imp.types import DeviceLost
from tests.gpu import fake

FOLDER = Path(os.environ["FAKE_CUDA_CUBINS"].split(os.pathsep)[0])
TEXT = """
extern "C" __global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
extern "C" __global__ void echo(double* out, int a, long long b, float c, const int* d, int e) {
    out[0] = a, out[1] = (double)b, out[2] = c, out[3] = *d, out[4] = e;
}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


@pytest.fixture
def stream(device) -> Stream:
    fake.reset()
    return device.stream()


@pytest.fixture(scope="module")
def module(device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "twice.cu").write_text(TEXT)
    before, compiling.KERNELS = compiling.KERNELS, folder
    compiling._headers.cache_clear()
    yield device.load(Compiler(FOLDER, device.architecture).compile(Source("twice.cu")).cubin)
    compiling.KERNELS = before
    compiling._headers.cache_clear()


@pytest.fixture
def twice(module) -> Kernel:
    return Kernel(module, "twice", "Pi", 32)


def up(device: Device, stream: Stream, values: np.ndarray):
    buffer = device.alloc(values.nbytes)
    stream.upload(buffer.address, values.ctypes.data, values.nbytes)
    return buffer


def down(stream: Stream, buffer, count: int, dtype: type = np.float32) -> np.ndarray:
    out = np.empty(count, dtype)
    stream.download(out.ctypes.data, buffer.address, out.nbytes)
    stream.synchronize()
    return out


def test_a_device_says_what_it_is(device):
    assert device.name and device.architecture == "sm_90a"
    assert device.processors > 0 and device.shared_bytes >= 99 << 10
    free, total = device.memory()
    assert 0 < free <= total


def test_there_are_no_more_devices_than_the_driver_says():
    with pytest.raises(NoDevice, match="no CUDA device 7"):
        Device(7)


def test_memory_is_accounted_for(device):
    before = device.usage(5 << 30)
    small, large = device.alloc(1000), device.alloc(1 << 20)
    during = device.usage()
    assert during.own_bytes == before.own_bytes + 1000 + (1 << 20)
    assert during.free_bytes <= before.free_bytes - 1000 - (1 << 20)
    large.free()
    large.free()
    small.free()
    after = device.usage()
    assert after.own_bytes == before.own_bytes and after.own_peak_bytes >= during.own_bytes
    assert after.free_bytes == before.free_bytes
    assert before.budget_bytes == 5 << 30 and after.budget_bytes == device.memory()[1]


def test_too_much_is_out_of_memory_and_nothing_is_lost(device):
    before = device.usage()
    with pytest.raises(CudaOutOfMemory) as caught:
        device.alloc(1 << 50)
    assert isinstance(caught.value, MemoryError) and not isinstance(caught.value, DeviceLost)
    assert device.usage() == before
    device.alloc(100).free()


def test_arguments_arrive_as_they_were_given(device, stream, module):
    number, out = up(device, stream, np.array([-7], np.int32)), device.alloc(40)
    echo = Kernel(module, "echo", "PiqfPi", 1)
    echo.launch(stream, (1, 1, 1), out.address, -3, -(1 << 40), 0.25, number.address, 1 << 30)
    assert down(stream, out, 5, np.float64).tolist() == [-3, -(1 << 40), 0.25, -7, 1 << 30]


def test_an_unknown_kernel_is_an_error(module):
    with pytest.raises(CudaError):
        Kernel(module, "thrice", "P", 32)


def test_pinned_memory_is_read_when_the_stream_gets_there(device, stream, twice):
    pinned, x = device.pinned(128), device.alloc(128)
    values = pinned.bytes.view(np.float32)
    values[:] = 1
    stream.upload(x.address, pinned.address, 128)
    values[:] = 5
    assert down(stream, x, 32).tolist() == [5] * 32, "so whoever fills it again has to wait"
    read = Event()
    values[:] = 1
    stream.upload(x.address, pinned.address, 128)
    stream.record(read)
    read.wait()
    values[:] = 5
    assert down(stream, x, 32).tolist() == [1] * 32
    pinned.free()
    pinned.free()


def test_a_graph_does_again_what_was_captured_on_what_is_there_now(device, stream, twice):
    x = up(device, stream, np.full(32, 3, np.float32))
    with stream.capturing() as captured:
        twice.launch(stream, (1, 1, 1), x.address, 16)
    (graph,) = captured
    assert down(stream, x, 32).tolist() == [3] * 32, "capturing does nothing"
    stream.replay(graph)
    stream.replay(graph)
    assert down(stream, x, 32).tolist() == [12] * 16 + [3] * 16
    graph.destroy()


@pytest.mark.parametrize("forbidden", ["alloc", "synchronize"])
def test_what_a_capture_forbids_is_an_error_and_the_stream_goes_on(device, stream, twice, forbidden):
    x = up(device, stream, np.full(32, 3, np.float32))
    stream.synchronize()
    with pytest.raises(CudaError), stream.capturing():
        twice.launch(stream, (1, 1, 1), x.address, 32)
        stream.synchronize() if forbidden == "synchronize" else device.alloc(100)
    twice.launch(stream, (1, 1, 1), x.address, 32)
    assert down(stream, x, 32).tolist() == [6] * 32


def test_streams_wait_for_each_others_events(device, stream, twice):
    other, done = device.stream(), Event()
    x = up(device, stream, np.full(32, 1, np.float32))
    twice.launch(stream, (1, 1, 1), x.address, 32)
    stream.record(done)
    other.follow(done)
    twice.launch(other, (1, 1, 1), x.address, 32)
    assert down(other, x, 32).tolist() == [4] * 32
    other.destroy()


def test_time_between_events_is_measured(device, stream, twice):
    first, last = Event(timed=True), Event(timed=True)
    x = up(device, stream, np.full(32, 1, np.float32))
    stream.record(first)
    twice.launch(stream, (1, 1, 1), x.address, 32)
    stream.record(last)
    last.wait()
    assert last.since(first) >= 0


def test_memory_is_filled_and_copied_within_the_device(device, stream):
    x, y = device.alloc(64), device.alloc(64)
    stream.fill(x.address, 7, 64)
    stream.copy(y.address + 4, x.address, 8)
    stream.fill(y.address, 1, 4)
    assert down(stream, y, 12, np.uint8).tolist() == [1] * 4 + [7] * 8


def test_a_kernel_that_dies_is_told_later_and_ends_the_device(device, stream, twice):
    x = up(device, stream, np.full(32, 1, np.float32))
    stream.synchronize()
    twice.launch(stream, (1 << 20, 1, 1), x.address, 1 << 24)  # far past the end of x
    with pytest.raises(CudaFault) as caught:
        stream.synchronize()
    assert isinstance(caught.value, DeviceLost)
    with pytest.raises(CudaFault):
        twice.launch(stream, (1, 1, 1), x.address, 32)
        stream.synchronize()
    fake.reset()
