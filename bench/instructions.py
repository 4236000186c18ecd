"""Whether single PTX instructions do on this chip what the emulator takes them to do: the cases of tests/gpu/micro."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imp.cuda.driver import Device, Stream
from imp.cuda.kernel import Kernel
from tests.gpu.micro import CASES, Case, check


def runs_here(case: Case, capability: tuple[int, int]) -> bool:
    """PTX of an architecture runs on later ones, too, but that of "sm_90a" there alone."""
    number = 10 * capability[0] + capability[1]
    wanted = int(case.arch.removeprefix("sm_").rstrip("a"))
    return number == wanted if case.arch.endswith("a") else number >= wanted


def wrong(case: Case, device: Device, stream: Stream) -> str | None:
    """The first difference, or None."""

    def launch(ptx: str, name: str, threads: int, args: Sequence[object], shared: int) -> None:
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        buffers = [device.alloc(a.nbytes) for a in arrays]
        module = device.load(ptx.encode() + b"\0")
        for buffer, array in zip(buffers, arrays, strict=True):
            stream.upload(buffer.address, array.ctypes.data, array.nbytes)
        Kernel(module, name, "P" * len(arrays), threads, shared).launch(stream, (1, 1, 1), *(b.address for b in buffers))
        stream.download(arrays[-1].ctypes.data, buffers[-1].address, arrays[-1].nbytes)
        stream.synchronize()
        for buffer in buffers:
            buffer.free()
        module.unload()

    try:
        check(case, launch)
    except AssertionError as error:
        return str(error)
    return None


def cases(device: Device, every: int = 1) -> list[Case]:
    """Those that this device can run, or every so many of them."""
    return [case for case in CASES if runs_here(case, device.capability)][::every]
