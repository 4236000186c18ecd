"""The kernels of a loaded model: compiled side by side, loaded into the device, ready to launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from .compile import Compiler, Source
from .driver import Device, Module
from .entries import Entry
from .kernel import Kernel

WORKERS = 8  # NVRTC holds no lock of ours while it compiles

Progress = Callable[[int, int], None]  # (ready, wanted)


class Modules:
    """`kernels` by entry. All are loaded here, because loading is not possible while a graph is captured."""

    def __init__(
        self, compiler: Compiler, device: Device, entries: Iterable[Entry], progress: Progress | None = None
    ) -> None:
        """Raises CompileError, driver.CudaError."""
        entries = list(entries)
        sources = list(dict.fromkeys(entry.source for entry in entries))
        modules: dict[Source, Module] = {}
        with ThreadPoolExecutor(WORKERS) as pool:
            for source, compiled in zip(sources, pool.map(compiler.compile, sources), strict=True):
                modules[source] = device.load(compiled.cubin)
                if progress:
                    progress(len(modules), len(sources))
        self._modules = list(modules.values())
        self.kernels = {
            entry: Kernel(modules[entry.source], entry.name, entry.signature, entry.threads, entry.shared_bytes)
            for entry in entries
        }

    def unload(self) -> None:
        """Nothing may run or be captured any more."""
        for module in self._modules:
            module.unload()
        self._modules.clear()
        self.kernels.clear()
