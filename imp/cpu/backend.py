"""The CPU backend: the memory of a loaded model (packed weights, KV cache, logits), and its steps.

What a model's forward becomes is recorded in ops.py; the kernels are in the other files of the package.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..huge_pages import HUGE
from ..model import centring
from ..model.inputs import StepInputs
from ..model.lora import Adapter, Base
from ..model.ops import Model, StepLimits
from ..model.sampling import Drawn, SamplingPlan
from ..model.sparse import ALL, Sparse
from ..weights.checkpoint import UnsupportedModel
from .adapters import Adapters, Sites, layout_for, most_bytes
from .ahead import Ahead
from .aside import CpuAside, Programs
from .cache import CompiledKernels, Progress, compile_all
from .kept import BLOCK as KV_BLOCK
from .kept import Kept
from .kv import kept_for
from .ops import Recorder
from .pack import Arena, Packed
from .pair_products import LARGEST
from .program import LANES, Program, build, fill_header, row_bytes
from .sample import Sampler
from .simd import detect
from .threads import Threads

ROPE_SAMPLE = 16  # positions
ASIDE, ASIDE_ROWS = 128, 8  # positions and sequences of what is computed aside: weights are unpacked for all of them


class CpuBackend:
    """model.ops.Backend on this machine's cores."""

    name = "cpu"

    def __init__(
        self,
        threads: int | None = None,
        cache_dir: Path = Path("~/.cache/imp"),
        features: str | None = None,
        progress: Progress | None = None,
        kv_dtype: str = "auto",
        sparse: Sparse = ALL,
        deterministic: bool = False,
    ) -> None:
        """threads: in all, the caller's included; None: one for each core this process may use. Compiled kernels are
        kept under cache_dir. features: one of variants.variants(); None: the fastest. progress: told of kernels as
        they become ready (ready, wanted). kv_dtype: a name of model.kv.FORMATS, or auto. deterministic: positions of
        prompts are computed in the arithmetic of outputs."""
        self.thread_count = threads or _cores()
        self.features = features or detect()
        self.progress = progress
        self.kv_dtype = kv_dtype
        self.sparse = sparse
        self.deterministic = deterministic
        self.kernels = CompiledKernels(cache_dir.expanduser(), self.features)
        self.aside: CpuAside | None = None
        self._threads: Threads | None = None
        self._sampler: Sampler | None = None

    @property
    def tells_apart(self) -> bool:
        """With AMX, which computes prompts in bfloat16; and where outputs are sparse."""
        return self._has_pairs or bool(self.sparse.top)

    @property
    def _has_pairs(self) -> bool:
        return self.features == "amx" and not self.deterministic

    def describe(self) -> str:
        """One line for people."""
        return f"cpu, {self.thread_count} threads, {self.features}" + (", deterministic" if self.deterministic else "")

    def kv_block_bytes(self, model: Model, block_size: int) -> int:
        kept = kept_for(model, self.kv_dtype)
        return sum(kept.block_bytes(layer, block_size) for layer in model.kv_layers)

    def kv_format(self, model: Model) -> str:
        return kept_for(model, self.kv_dtype).name

    def room(self, model: Model, limits: StepLimits) -> None:
        return None

    def weights_bytes(self, model: Model) -> int:
        return sum(Packed(weight, self.features).size for weight in model.weights)

    def device_memory(self) -> None:
        return None

    def load(self, model: Model, limits: StepLimits) -> None:
        """Record, pack, compile. Raises UnsupportedModel where the model's shapes are outside what the kernels do."""
        kept = kept_for(model, self.kv_dtype)
        _check(model, limits, kept)
        self.close()
        self.limits = limits
        self._kv = np.zeros(self.kv_block_bytes(model, KV_BLOCK) * limits.blocks + HUGE + 64, np.uint8)
        self._logits = np.zeros((limits.logit_rows, model.vocab), np.float32)
        self._hidden = np.zeros((limits.tokens, row_bytes(model.hidden) // 4), np.float32)
        self._columns, self._pooled = model.hidden, 0
        planes, self._blocks = self._planes(model, limits, kept)

        def recorded(
            limits: StepLimits, hidden: np.ndarray, sites: Sites | None = None, beside: Recorder | None = None
        ) -> Recorder:
            own = self.sparse, self.features, self._has_pairs
            recorder = Recorder(limits, self.thread_count, planes, self._logits, kept, hidden, sites, beside, *own)
            model.forward(recorder)
            return recorder

        recorder = recorded(limits, self._hidden)
        sites = Sites(layout_for(model), limits.tokens, self.thread_count)
        adding = recorded(limits, self._hidden, sites, recorder)
        few = replace(limits, tokens=min(ASIDE, limits.tokens), rows=min(ASIDE_ROWS, limits.rows), logit_rows=0)
        few_hidden = np.zeros((few.tokens, self._hidden.shape[1]), np.float32)
        few_sites = Sites(sites.layout, few.tokens, self.thread_count)
        seconds = [recorded(few, few_hidden, each, recorder) for each in (None, few_sites)]
        self._arena = Arena(sum(packed.size for packed in recorder.weights.values()))
        with ThreadPoolExecutor(1, "kernels") as aside:  # Numba compiles while the weights are read and packed
            kernels = [op.kernel for op in (*recorder.ops, *adding.ops)]
            compiled = aside.submit(compile_all, self.kernels, kernels, self.progress)
            for packed in recorder.weights.values():
                self._arena.pack(packed)
        self._apart = self._has_pairs and all(packed.largest < LARGEST for packed in recorder.weights.values())
        addresses = compiled.result()
        self._program: Program = build(recorder.ops, addresses)
        self._adapted_program: Program = build(adding.ops, addresses)
        self._adapters = Adapters(sites)
        self._sampler = Sampler(self.kernels)
        self._threads = Threads(self.thread_count, self.kernels)
        programs = Programs(*[build(second.ops, addresses) for second in seconds])
        self._ahead = Ahead(self._kv, planes, limits.blocks, self.kernels)
        own_hidden = few_hidden[:, : model.hidden]
        self.aside = CpuAside(few, programs, self._threads, self._adapters, own_hidden, self._ahead, self._apart)
        self.centres, self._ropes = recorder.centres, recorder.ropes
        self._kept, self._shapes = kept, model.kv_layers

    def centre_keys(self, tokens: Sequence[int]) -> None:
        if not self._kept.format.turns:
            return
        read = 0
        for inputs in centring.steps(tokens, self.limits):
            self.run(inputs)
            read = int(inputs.contexts[0])
        used = -(-read // KV_BLOCK)
        for layer, (shape, plane) in enumerate(zip(self._shapes, self._blocks, strict=True)):
            blocks = plane[:used].reshape(used, shape.kv_heads, 2, -1, KV_BLOCK)
            records = np.moveaxis(blocks[:, :, 0], 3, 1).reshape(used * KV_BLOCK, shape.kv_heads, -1)
            if read:
                keys = self._kept.format.unpacked(records[:read], shape.head_dim)
                self.centres[layer][:] = centring.centre(keys, self._ropes[layer])
            plane[:used] = 0

    def _planes(self, model: Model, limits: StepLimits, kept: Kept) -> tuple[list[tuple[int, int]], list[np.ndarray]]:
        """Where each layer's part of the KV cache begins, the bytes of a block in it, and the part, [blocks, bytes].

        Memory comes in huge pages, cleared when they are first written: between the parts is a bit of room, or they
        would all enter a new one with the same block, and the step that writes it would take 0.1 s longer."""
        planes, blocks, start = [], [], 0
        apart = HUGE // len(model.kv_layers) // 64 * 64
        for layer in model.kv_layers:
            block_bytes = kept.block_bytes(layer, KV_BLOCK)
            planes.append((self._kv.ctypes.data + start, block_bytes))
            after = start + block_bytes * limits.blocks
            blocks.append(self._kv[start:after].reshape(limits.blocks, block_bytes))
            start = after + apart
        return planes, blocks

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        for plane in self._blocks:
            for source, target in copies:
                plane[target] = plane[source]

    def adapter_bytes(self, base: Base, adapter: Adapter) -> int:
        return most_bytes(base, adapter)

    def add_adapter(self, adapter: Adapter) -> int:
        return self._adapters.add(adapter)

    def drop_adapter(self, slot: int) -> None:
        self._adapters.drop(slot)

    def read_block(self, block: int) -> np.ndarray:
        return np.concatenate([plane[block] for plane in self._blocks])

    def write_block(self, block: int, content: np.ndarray) -> None:
        self._ahead.reached(block + 1)
        start = 0
        for plane in self._blocks:
            end = start + plane.shape[1]
            plane[block] = content[start:end]
            start = end

    def fingerprint(self) -> bytes:
        """The kernels' folder is named by sources, versions and the processor. A few positions say all of rope."""
        tables = [table[:ROPE_SAMPLE] for rope in self._ropes.values() if rope for table in (rope.cos, rope.sin)]
        measured = b"".join(map(np.ndarray.tobytes, [*self.centres.values(), *tables]))
        given = f"{self.kernels.folder.name} {self._kept.name} {self.sparse} {self.deterministic} "
        return given.encode() + measured

    def run(self, inputs: StepInputs) -> np.ndarray:
        assert self._threads, "load comes first"
        limits = self.limits
        tokens, rows, wanted = len(inputs.tokens), len(inputs.contexts), len(inputs.wanted)
        assert tokens <= limits.tokens and rows <= limits.rows and wanted <= limits.logit_rows, "the step is too large"
        self._joined = fill_header(self._threads.step, inputs, self._apart)
        self._ahead.used(inputs)
        self._pooled = len(inputs.pooled)
        if not len(inputs.adapted):
            self._threads.run(self._program)
        else:
            kept = self._adapters.kept  # stays as it is while we hold it
            kept.fill_header(self._threads.step)
            self._threads.run(self._adapted_program)
        return self._logits[:wanted]

    def hidden(self) -> np.ndarray:
        return self._hidden[: self._pooled, : self._columns]

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        assert self._sampler, "load comes first"
        return self._sampler.sample(logits, plan)

    def close(self) -> None:
        if self._threads is None:
            return
        self._threads.close()
        self._ahead.close()
        self._threads = None
        self.aside = None
        del self._program, self._adapted_program, self._arena, self._adapters
        del self._blocks, self._kv, self._logits, self._hidden, self._ahead


def _cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check(model: Model, limits: StepLimits, kept: Kept) -> None:
    if limits.block_size != KV_BLOCK:
        raise ValueError(f"the CPU backend keeps {KV_BLOCK} positions in a KV block, not {limits.block_size}")
    least = 16 if kept.format.bits == 4 else LANES
    for layer, kv in enumerate(model.kv_layers):
        if kv.head_dim % least:
            what = f"layer {layer} has heads of {kv.head_dim}, which is not a multiple of {least}"
            raise UnsupportedModel(f"{what}, as keys and values in {kept.name} have to be")
