"""The CUDA backend: model.ops.Backend on one device. Owns the device and its context; what it does with a model is in
loaded.py."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..model.inputs import StepInputs
from ..model.kv import FORMATS, KVFormat
from ..model.lora import Adapter, Base
from ..model.ops import DeviceMemory, Model, Room, StepLimits
from ..model.sampling import Drawn, SamplingPlan
from . import warp_groups
from .adapters import adapter_bytes
from .compile import COMPILERS, Compiler, package_version
from .driver import Device
from .layouts import Packed
from .loaded import LoadedModel, block_bytes, needs
from .modules import Progress
from .sampler import DeviceLogits

PRODUCTS = {  # what is said of products by warp groups
    None: "",
    True: ", large products by warp groups",
    False: ", no products by warp groups: their sums are other bits here",
}


class CudaBackend:
    """model.ops.Backend on one GPU."""

    name = "cuda"
    aside = None
    tells_apart = False

    def __init__(
        self,
        index: int = 0,
        cache_dir: Path = Path("~/.cache/imp"),
        kv_dtype: str = "auto",
        budget_bytes: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """index: which device. Compiled kernels are kept under cache_dir. kv_dtype: a name of model.kv.FORMATS, or
        auto. budget_bytes: of the device's memory that may be used; 0: what is free. progress: told of kernels as they
        become ready (ready, wanted). Raises NoDevice."""
        self.device = Device(index)
        self.kv_dtype, self.budget_bytes, self.progress = kv_dtype, budget_bytes, progress
        self.compiler = Compiler(cache_dir.expanduser(), self.device.architecture)
        self._stream = self.device.stream()
        self._loaded: LoadedModel | None = None
        self._thread = threading.get_ident()

    def describe(self) -> str:
        """One line for people. May be called in any thread."""
        self.device.bind_thread()
        free, total = self.device.memory()
        memory = f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} free"
        grouped = None if self._loaded is None else self._loaded.warp_groups
        return f"cuda:{self.device.index}, {self.device.name} ({self.device.architecture}, {memory}{PRODUCTS[grouped]})"

    def kv_format(self, model: Model) -> str:
        return self._kv(model).name

    def kv_block_bytes(self, model: Model, block_size: int) -> int:
        return sum(block_bytes(model, self._kv(model)))

    def _kv(self, model: Model) -> KVFormat:
        """auto: as on the CPU, floats of 32 bits only for models that are float32 throughout."""
        if self.kv_dtype != "auto":
            return FORMATS[self.kv_dtype]
        return FORMATS["fp32" if model.formats == {"F32"} else "fp16"]

    def room(self, model: Model, limits: StepLimits) -> Room:
        self._bind()
        free, _ = self.device.memory()
        if self.budget_bytes:
            free = min(free, self.budget_bytes - self.device.own_bytes)
        weights, work = needs(model, limits, self._kv(model), warp_groups.possible(self.device, limits))
        return Room(free, weights, work)

    def weights_bytes(self, model: Model) -> int:
        return sum(sum(Packed(weight).sizes) for weight in model.weights)

    def device_memory(self) -> DeviceMemory:
        self.device.bind_thread()
        return self.device.usage(self.budget_bytes)

    def load(self, model: Model, limits: StepLimits) -> None:
        """Record, compile, upload. Raises UnsupportedModel where the model's shapes are outside what the kernels do,
        driver.CudaOutOfMemory where it does not fit."""
        self.close()
        self._bind()
        kv = self._kv(model)
        self._loaded = LoadedModel(self.device, self._stream, self.compiler, model, limits, kv, self.progress)

    def _bind(self) -> None:
        """The device's context is current in one thread: in the one that calls."""
        if threading.get_ident() != self._thread:
            self.device.bind_thread()
            self._thread = threading.get_ident()

    @property
    def loaded(self) -> LoadedModel:
        assert self._loaded, "load comes first"
        return self._loaded

    def centre_keys(self, tokens: Sequence[int]) -> None:
        self._bind()
        self.loaded.centre_keys(tokens)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        self._bind()
        self.loaded.copy_blocks(copies)

    def read_block(self, block: int) -> np.ndarray:
        self._bind()
        return self.loaded.read_block(block)

    def write_block(self, block: int, content: np.ndarray) -> None:
        self._bind()
        self.loaded.write_block(block, content)

    def fingerprint(self) -> bytes:
        """The compilers decide what the bits are, and the device what of them runs."""
        versions = " ".join(map(package_version, COMPILERS))
        return f"{self.device.name} {self.device.architecture} {versions} ".encode() + self.loaded.fingerprint()

    def adapter_bytes(self, base: Base, adapter: Adapter) -> int:
        return adapter_bytes(adapter)

    def add_adapter(self, adapter: Adapter) -> int:
        assert self.loaded.adapters
        return self.loaded.adapters.add(adapter)

    def drop_adapter(self, slot: int) -> None:
        assert self.loaded.adapters
        self.loaded.adapters.drop(slot)

    def run(self, inputs: StepInputs) -> DeviceLogits:
        self._bind()
        return self.loaded.run(inputs)

    def hidden(self) -> np.ndarray:
        return self.loaded.hidden()

    def sample(self, logits: DeviceLogits, plan: SamplingPlan) -> Drawn:
        self._bind()
        return self.loaded.sample(logits, plan)

    def close(self) -> None:
        if self._loaded is not None:
            self._bind()
            self._loaded.free()
            self._loaded = None
