"""The CUDA driver: a device, its streams, events, graphs, modules and memory. Every call's result is checked here, in
`check`. Knows no kernel and no model.

Objects belong to the thread that made them, as the device's context is current in one thread at a time; another thread
calls `Device.bind_thread` first. Nothing here allocates but `Device.alloc` and `Device.pinned`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from ..model.ops import DeviceMemory
from ..types import DeviceError, DeviceLost, NoDevice

NAME_BYTES = 128
MAP_BYTES = 128  # of a CUtensorMap
ARCHITECTURE_SPECIFIC = 9  # from this major capability on, code is compiled with the features of that chip alone

# after these the context is dead, and every later call in this process fails alike
STICKY = frozenset(
    (
        cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
        cu.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
        cu.CUresult.CUDA_ERROR_ASSERT,
        cu.CUresult.CUDA_ERROR_HARDWARE_STACK_ERROR,
        cu.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        cu.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
        cu.CUresult.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        cu.CUresult.CUDA_ERROR_INVALID_PC,
        cu.CUresult.CUDA_ERROR_LAUNCH_FAILED,
        cu.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,
        cu.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
    )
)


class CudaError(DeviceError):
    """A call of the driver failed; the device can still be used."""


class CudaOutOfMemory(CudaError, MemoryError):
    """The device has not as much memory left as was asked for."""


class CudaFault(CudaError, DeviceLost):
    """A kernel died and the context with it. It shows at a later call than the one that caused it."""


def check(result: tuple[Any, ...]) -> Any:
    """What a driver call returned beside its status: nothing, one value, or a tuple. Raises CudaError."""
    status = result[0]
    if status:
        raise _error(status)
    return result[1] if len(result) == 2 else result[1:] or None


def _error(status: cu.CUresult) -> CudaError:
    name, text = cu.cuGetErrorName(status)[1], cu.cuGetErrorString(status)[1]
    message = f"{(name or b'unknown error').decode()}: {(text or b'').decode()}"
    if status in STICKY:
        return CudaFault(message)
    return CudaOutOfMemory(message) if status == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY else CudaError(message)


def device_count() -> int:
    """Devices of this machine. Raises NoDevice where there is no driver, or it does not start."""
    try:
        check(cu.cuInit(0))
        count: int = check(cu.cuDeviceGetCount())
    except CudaError as error:
        raise NoDevice(f"the CUDA driver does not start ({error})") from error
    except RuntimeError as error:  # cuda.bindings cannot load libcuda.so.1
        raise NoDevice("there is no CUDA driver (libcuda.so.1)") from error
    return count


class Device:
    """A device with its primary context, current in the thread that makes this."""

    def __init__(self, index: int = 0) -> None:
        """Raises NoDevice."""
        count = device_count()
        if index >= count:
            raise NoDevice(f"there is no CUDA device {index}: the driver has {count}")
        self.index = index
        self._handle = check(cu.cuDeviceGet(index))
        self._context = check(cu.cuDevicePrimaryCtxRetain(self._handle))
        self.bind_thread()
        attributes = cu.CUdevice_attribute
        self.capability = (
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.processors = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_bytes = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.own_bytes = self.own_peak_bytes = 0  # of the memory `alloc` gave out
        self.name = check(cu.cuDeviceGetName(NAME_BYTES, self._handle)).split(b"\0")[0].decode()

    @property
    def architecture(self) -> str:
        """What its code is compiled for, such as "sm_90a"."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= ARCHITECTURE_SPECIFIC else "")

    def _attribute(self, attribute: cu.CUdevice_attribute) -> int:
        value: int = check(cu.cuDeviceGetAttribute(attribute, self._handle))
        return value

    def bind_thread(self) -> None:
        """Make the context current in the calling thread: before its first call there."""
        check(cu.cuCtxSetCurrent(self._context))

    def memory(self) -> tuple[int, int]:
        """Bytes free, and in all. The context must be current."""
        free, total = check(cu.cuMemGetInfo())
        return free, total

    def usage(self, budget_bytes: int = 0) -> DeviceMemory:
        """budget_bytes: what `alloc` may give out; 0: what is there."""
        free, total = self.memory()
        return DeviceMemory(free, budget_bytes or total, self.own_bytes, self.own_peak_bytes)

    def alloc(self, size_bytes: int) -> Buffer:
        """Raises CudaOutOfMemory."""
        buffer = Buffer(self, int(check(cu.cuMemAlloc(size_bytes))), size_bytes)
        self.own_bytes += size_bytes
        self.own_peak_bytes = max(self.own_peak_bytes, self.own_bytes)
        return buffer

    def pinned(self, size_bytes: int) -> Pinned:
        return Pinned(size_bytes)

    def load(self, cubin: bytes) -> Module:
        return Module(cubin)

    def stream(self) -> Stream:
        return Stream()

    def synchronize(self) -> None:
        check(cu.cuCtxSynchronize())

    def close(self) -> None:
        """Let the context go; the last one who held it destroys it."""
        check(cu.cuDevicePrimaryCtxRelease(self._handle))


def tensor_map(address: int, rows: int, columns: int, box: tuple[int, int]) -> bytes:
    """What kernels are told of a matrix of 16-bit numbers, of which the device brings boxes [rows, columns] into shared
    memory by itself, swizzled by 128 bytes. The address and a row's bytes are multiples of 16; outside are zeros."""
    made = check(
        cu.cuTensorMapEncodeTiled(
            cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
            2,
            address,
            [cu.cuuint64_t(columns), cu.cuuint64_t(rows)],
            [cu.cuuint64_t(2 * columns)],
            [cu.cuuint32_t(box[1]), cu.cuuint32_t(box[0])],
            [cu.cuuint32_t(1), cu.cuuint32_t(1)],
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(made.getPtr(), MAP_BYTES)


class Buffer:
    """Memory of the device."""

    __slots__ = ("_device", "address", "size_bytes")

    def __init__(self, device: Device, address: int, size_bytes: int) -> None:
        self._device, self.address, self.size_bytes = device, address, size_bytes

    def free(self) -> None:
        """Waits for what uses it. Idempotent."""
        if self.address:
            check(cu.cuMemFree(self.address))
            self.address = 0
            self._device.own_bytes -= self.size_bytes


class Pinned:
    """Memory of the host that the device copies from and to by itself: such a copy reads and writes it when the stream
    gets there, not when it is asked for."""

    def __init__(self, size_bytes: int) -> None:
        self.address = int(check(cu.cuMemHostAlloc(size_bytes, 0)))
        self.size_bytes = size_bytes
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(self.address))  # uint8 [size]

    def free(self) -> None:
        """Its arrays must not be used afterwards. Idempotent."""
        if self.address:
            self.bytes = np.zeros(0, np.uint8)
            check(cu.cuMemFreeHost(self.address))
            self.address = 0


class Module:
    """Loaded machine code."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = check(cu.cuModuleLoadData(cubin))

    def function(self, name: str, shared_bytes: int = 0) -> Any:
        """The kernel of this name, allowed as much dynamic shared memory. Raises CudaError where there is none."""
        found = check(cu.cuModuleGetFunction(self._handle, name.encode()))
        if shared_bytes > 48 << 10:  # what every kernel may use without asking
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(found, attribute, shared_bytes))
        return found

    def unload(self) -> None:
        check(cu.cuModuleUnload(self._handle))


class Event:
    """A point of a stream. timed: its time can be read."""

    def __init__(self, timed: bool = False) -> None:
        flags = cu.CUevent_flags
        # who waits sleeps: a core that spins is one the event loop does not have
        kind = flags.CU_EVENT_BLOCKING_SYNC if timed else flags.CU_EVENT_BLOCKING_SYNC | flags.CU_EVENT_DISABLE_TIMING
        self.handle = check(cu.cuEventCreate(int(kind)))

    def wait(self) -> None:
        """Until the stream has come this far. Raises CudaFault where something before it died."""
        check(cu.cuEventSynchronize(self.handle))

    def since(self, earlier: Event) -> float:
        """Seconds from `earlier` to this; both are timed and over."""
        milliseconds: float = check(cu.cuEventElapsedTime(earlier.handle, self.handle))
        return milliseconds / 1000

    def destroy(self) -> None:
        check(cu.cuEventDestroy(self.handle))


class Graph:
    """A captured piece of a stream."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def destroy(self) -> None:
        check(cu.cuGraphExecDestroy(self.handle))


class Stream:
    """Work in order, beside other streams and beside the default one."""

    def __init__(self) -> None:
        self.handle = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def upload(self, target: int, source: int, size_bytes: int) -> None:
        """From the host to the device. Pinned memory is read when the stream gets there, other memory now."""
        check(cu.cuMemcpyHtoDAsync(target, source, size_bytes, self.handle))

    def download(self, target: int, source: int, size_bytes: int) -> None:
        """From the device to the host; there once the stream is through."""
        check(cu.cuMemcpyDtoHAsync(target, source, size_bytes, self.handle))

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Within the device."""
        check(cu.cuMemcpyDtoDAsync(target, source, size_bytes, self.handle))

    def fill(self, target: int, value: int, size_bytes: int) -> None:
        check(cu.cuMemsetD8Async(target, value, size_bytes, self.handle))

    def record(self, event: Event) -> None:
        check(cu.cuEventRecord(event.handle, self.handle))

    def follow(self, event: Event) -> None:
        """What comes after waits for the event."""
        check(cu.cuStreamWaitEvent(self.handle, event.handle, 0))

    def synchronize(self) -> None:
        check(cu.cuStreamSynchronize(self.handle))

    def replay(self, graph: Graph) -> None:
        check(cu.cuGraphLaunch(graph.handle, self.handle))

    @contextmanager
    def capturing(self) -> Iterator[list[Graph]]:
        """What is put on the stream inside is not done but captured: the list has the graph after the block. Inside
        there may be no allocation, no synchronisation and no first use of a module."""
        captured: list[Graph] = []
        # of this thread only: others may allocate meanwhile
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cu.cuStreamBeginCapture(self.handle, mode))
        try:
            yield captured
        except BaseException:
            cu.cuStreamEndCapture(self.handle)  # the reason it fails for is on its way already
            raise
        graph = check(cu.cuStreamEndCapture(self.handle))
        captured.append(Graph(check(cu.cuGraphInstantiate(graph, 0))))
        check(cu.cuGraphDestroy(graph))

    def destroy(self) -> None:
        check(cu.cuStreamDestroy(self.handle))
