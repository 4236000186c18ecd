"""Drawing tokens where the logits are: a plan goes up in one copy, what was drawn comes back in another. The kernels
follow the order of operations of model/sampling.py (kernels/edit.py, kernels/sample.cu)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.sampling import Drawn, SamplingPlan
from .compile import Compiler
from .driver import Buffer, Device, Event, Pinned, Stream
from .entries import draw, report
from .kernel import Kernel
from .modules import Modules

FLOATS = (
    *("temperature", "top_p", "min_p", "typical_p", "repetition", "frequency", "presence", "xtc_probability"),
    *("xtc_threshold", "mirostat_tau", "mirostat_eta", "mu"),
)  # rows of the kernels' `floats`
INTS = ("top_k", "mirostat", "top_logprobs", "targets", "mask_rows")  # and of their `ints`
MU = FLOATS.index("mu")
LISTS = ("bias_starts", "bias_tokens", "bias_values", "seen_starts", "seen_tokens", "seen_counts")
EDIT_SIGNATURE = "PPPPPPPPPPPPPiiiiii"
ALIGNMENT = 16


class DeviceLogits:
    """model.ops.Logits that stay on the device until somebody reads one: then all are brought over, once."""

    def __init__(self, rows: int, width: int, fetch: Callable[[int], np.ndarray]) -> None:
        self.shape = rows, width
        self._fetch = fetch
        self._values: np.ndarray | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return self._host()[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._host(), dtype=dtype)

    def _host(self) -> np.ndarray:
        if self._values is None:
            self._values = self._fetch(self.shape[0])
        return self._values


class _Block:
    """Memory on the device and as much on the host, copied as a whole. Grows where it has to: between steps."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self.buffer: Buffer = device.alloc(size_bytes)
        self.pinned: Pinned = device.pinned(size_bytes)

    def reserve(self, size_bytes: int) -> None:
        """What was in it is lost where it grows."""
        if size_bytes > self.buffer.size_bytes:
            larger = 2 * size_bytes
            self.free()
            self.buffer, self.pinned = self._device.alloc(larger), self._device.pinned(larger)

    def free(self) -> None:
        self.buffer.free()
        self.pinned.free()


@dataclass(frozen=True, slots=True)
class _Bits:
    """What the bits of masks stand for, on the device: the same for all plans of a model."""

    tokens: np.ndarray
    memory: Buffer
    aliases_at: int  # bytes from its beginning
    alias_count: int


class Sampler:
    """model.ops.Backend.sample over logits [rows, width] at an address of the device."""

    def __init__(self, device: Device, stream: Stream, compiler: Compiler, rows: int, width: int) -> None:
        from .kernels.edit import EDIT

        self._device, self._stream, self._width = device, stream, width
        self._edited = device.alloc(4 * rows * width)
        self._plan, self._results = (_Block(device, size) for size in (256 * rows, 64 * rows))
        self._bits: _Bits | None = None
        self._done = Event()
        entries = draw(width), report(width)
        self._modules = Modules(compiler, device, entries)
        self._draw, self._report = (self._modules.kernels[entry] for entry in entries)
        compiled = compiler.compile(EDIT)
        self._edit_module = device.load(compiled.cubin)
        self._edit = Kernel(self._edit_module, compiled.entries[0], EDIT_SIGNATURE, EDIT.threads)

    def free(self) -> None:
        self._edited.free()
        self._plan.free()
        self._results.free()
        if self._bits is not None:
            self._bits.memory.free()
        self._modules.unload()
        self._edit_module.unload()

    def sample(self, logits: int, plan: SamplingPlan) -> Drawn:
        """logits: their address. plan.mu is changed as model.sampling says."""
        rows = len(plan.temperature)
        floats = np.stack([getattr(plan, name) for name in FLOATS])
        ints = np.stack([getattr(plan, name) for name in INTS])
        at = self._send([floats, ints, plan.uniform, *(getattr(plan, name) for name in LISTS), plan.masks])
        lists = dict(zip(LISTS, at[3:], strict=False))
        if len(plan.masks) or len(plan.bias_tokens) or len(plan.seen_tokens):
            self._run_edit(logits, plan, at, rows)
        width = max(int(plan.top_logprobs.max(initial=0)), 1)
        sizes = [4 * rows] * 3 + [4 * rows * width] * 2  # tokens, logprobs, ranks; the likeliest, their values
        self._results.reserve(sum(map(_aligned, sizes)))
        tokens, *others = self._places(self._results.buffer.address, sizes)
        used = sum(map(_aligned, sizes))
        self._stream.fill(self._results.buffer.address, 0, used)
        numbers = rows, self._width, plan.vocab
        starts = lists["bias_starts"], lists["seen_starts"]
        self._draw.launch(
            self._stream, (rows, 1, 1), logits, self._edited.address, at[0], at[1], at[2], *starts, tokens, *numbers
        )
        if (plan.top_logprobs >= 0).any():
            self._report.launch(self._stream, (rows, 1, 1), logits, at[1], tokens, *others, *numbers, width)
        self._stream.download(self._results.pinned.address, self._results.buffer.address, used)
        self._finish(plan, at[0], rows)
        return self._drawn(plan, sizes, rows, width)

    def _send(self, arrays: Iterable[np.ndarray]) -> list[int]:
        """Upload them side by side; their addresses."""
        flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
        sizes = [each.nbytes for each in flat]
        self._plan.reserve(sum(map(_aligned, sizes)))
        places = self._places(0, sizes)
        for place, each in zip(places, flat, strict=True):
            self._plan.pinned.bytes[place : place + each.nbytes] = each
        self._stream.upload(self._plan.buffer.address, self._plan.pinned.address, sum(map(_aligned, sizes)))
        return [self._plan.buffer.address + place for place in places]

    def _run_edit(self, logits: int, plan: SamplingPlan, at: list[int], rows: int) -> None:
        bits = self._known_bits(plan)
        constants = bits.memory.address, bits.memory.address + bits.aliases_at
        sizes = rows, self._width, plan.vocab, plan.masks.shape[1], len(plan.mask_tokens), bits.alias_count
        lists, masks = at[3:9], at[9]
        arguments = (logits, self._edited.address, at[0], at[1], *lists, masks, *constants, *sizes)
        self._edit.launch(self._stream, (rows, 1, 1), *arguments)

    def _known_bits(self, plan: SamplingPlan) -> _Bits:
        if self._bits is None or self._bits.tokens is not plan.mask_tokens:
            if self._bits is not None:
                self._bits.memory.free()
            aliases = np.ascontiguousarray(plan.mask_aliases, np.int32)
            start = _aligned(plan.mask_tokens.nbytes)
            memory = self._device.alloc(max(start + aliases.nbytes, ALIGNMENT))
            for address, values in ((memory.address, plan.mask_tokens), (memory.address + start, aliases)):
                if values.nbytes:
                    self._stream.upload(address, values.ctypes.data, values.nbytes)
            self._bits = _Bits(plan.mask_tokens, memory, start, len(aliases))
        return self._bits

    def _finish(self, plan: SamplingPlan, floats: int, rows: int) -> None:
        """Wait for what was drawn, and for what mirostat learnt from it."""
        if (plan.mirostat > 0).any():
            mu = np.empty(rows, np.float32)
            self._stream.download(mu.ctypes.data, floats + 4 * MU * rows, mu.nbytes)
            self._stream.synchronize()
            plan.mu[:] = mu
        self._stream.record(self._done)
        self._done.wait()

    def _drawn(self, plan: SamplingPlan, sizes: list[int], rows: int, width: int) -> Drawn:
        found = self._results.pinned.bytes
        places = self._places(0, sizes)
        kinds = np.int32, np.float32, np.int32, np.int32, np.float32
        parts = zip(places, sizes, kinds, strict=True)
        tokens, logprobs, ranks, top_tokens, top_values = (
            found[place : place + size].view(kind).copy() for place, size, kind in parts
        )
        wanted = max(int(plan.top_logprobs.max(initial=0)), 0)
        tops = (each.reshape(rows, width)[:, :wanted] for each in (top_tokens, top_values))
        return Drawn(tokens, logprobs, ranks, *tops)

    @staticmethod
    def _places(start: int, sizes: list[int]) -> list[int]:
        places = [start]
        for size in sizes[:-1]:
            places.append(places[-1] + _aligned(size))
        return places


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
