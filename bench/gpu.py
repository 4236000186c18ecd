"""What the CUDA backend does on a real GPU, in one command: `python -m bench.gpu [--json FILE]`, some minutes.

In this order: whether the kernels are right on this chip (tiny models against float64), what the memory and, where torch
is installed, its matrix product reach, each kernel with the part of these it reaches, and whole models with random weights:
what the host spends on a step, tokens a second, and the part of the memory's bandwidth that is. Times are medians of events
around graphs; weights rotate over more memory than the cache holds. `--smoke` is the same with nothing worth measuring.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import instructions
from imp.cuda.driver import Device, Event, Stream
from imp.cuda.layouts import Packed, Piece
from imp.cuda.loaded import ALIGNMENT
from imp.cuda.memory import Uploader
from imp.cuda.modules import Modules
from imp.cuda.ops import CudaBackend
from imp.cuda.program import Place, lifetimes
from imp.cuda.record import Recorder
from imp.cuda.step import Sections, Shape
from imp.model.buffers import place
from imp.model.inputs import StepInputs, packed, prompt_inputs
from imp.model.kv import FORMATS as KV_FORMATS
from imp.model.layers import Block, Decoder, GatedMlp, Mixture, SelfAttention
from imp.model.ops import Attention, Experts, Linear, Norm, StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.rope import plain_frequencies, table
from imp.types import DeviceError
from imp.weights.checkpoint import Weight
from tests.cpu.harness import weight
from tests.gpu import tiny as tiny_models
from tests.model import tiny

GB = 1e9


@dataclass(frozen=True)
class Sizes:
    """Of a model; a published one's shapes."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0  # of each layer; `inner` is one's
    chosen: int = 0


MODELS = (
    Sizes("1B (Llama 3.2)", 16, 2048, 8192, 32, 8, 64, 128256),
    Sizes("30B-A3B (Qwen 3)", 48, 2048, 768, 32, 4, 128, 151936, experts=128, chosen=8),
    Sizes("8B (Llama 3.1)", 32, 4096, 14336, 32, 8, 128, 128256),
)
SMOKE = (Sizes("smoke of experts", 1, 128, 64, 4, 2, 32, 320, experts=4, chosen=2), Sizes("smoke", 2, 128, 128, 4, 2, 32, 320))


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    models: tuple[Sizes, ...]
    formats: tuple[str, ...]
    tokens: tuple[int, ...]  # of products
    batches: tuple[int, ...]
    context: int
    rotated_bytes: int  # more than the cache holds
    repeats: int
    copied_bytes: int


FULL = Scale(
    MODELS, ("BF16", "F16", "Q8_0", "Q4_K", "Q4_0"), (1, 8, 32, 512, 2048), (1, 8, 32, 128, 256), 2048, 256 << 20, 50, 1 << 30
)
LITTLE = Scale(SMOKE, ("F16", "Q4_0"), (1, 40), (1, 3), 40, 1 << 16, 3, 1 << 20)


@dataclass(frozen=True)
class Line:
    """A measurement: `part` is of the ceiling."""

    what: str
    value: float
    unit: str
    part: float | None = None

    def __str__(self) -> str:
        share = "" if self.part is None else f"  {100 * self.part:5.1f} %"
        return f"  {self.what:58} {self.value:10.2f} {self.unit:8}{share}"


# -- right -------------------------------------------------------------------------------------------------------------


def conformance(cache: Path, scale: Scale) -> Iterator[Line]:
    """Tiny models of every kind of weights and of keys against float64: the norm of the error over that of the logits."""
    limits = StepLimits(tokens=40, rows=1, logit_rows=40, context=128, blocks=8)
    cases = [("llama", form, "auto") for form in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1")]
    cases += [("gemma3", "F32", "auto"), ("qwen3-moe", "F32", "auto"), *(("llama", "F16", kv) for kv in KV_FORMATS if kv != "fp32")]
    for name, form, kv in cases if scale is FULL else cases[1:2]:
        backend, judge = CudaBackend(cache_dir=cache, kv_dtype=kv), ReferenceBackend(np.float64, kv)
        for each in (backend, judge):
            each.load(tiny_models.model(name, form), limits)
            each.centre_keys(tiny.prompt(name, 48)[::-1])
        step = prompt_inputs(tiny.prompt(name), 0, 40, 16, wanted=range(40))
        found, expected = np.array(backend.run(step)), judge.run(step)
        backend.close()
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        yield Line(f"{name}, weights {form}, keys {kv}", 1e3 * float(error), "10^-3")


# -- ceilings ----------------------------------------------------------------------------------------------------------


def seconds(stream: Stream, work: Callable[[], None], repeats: int, inner: int = 1) -> float:
    """Of one of the `inner` things a graph of `work` does: the median."""
    work()
    stream.synchronize()
    with stream.capturing() as captured:
        work()
    first, last = Event(timed=True), Event(timed=True)
    found = []
    for _ in range(repeats):
        stream.record(first)
        stream.replay(captured[0])
        stream.record(last)
        last.wait()
        found.append(last.since(first) / inner)
    captured[0].destroy()
    return max(statistics.median(found), 1e-9)


def copying(device: Device, scale: Scale) -> float:
    """Bytes a second, read and written, of a copy within the device."""
    stream, size = device.stream(), scale.copied_bytes
    source, target = device.alloc(size), device.alloc(size)
    took = seconds(stream, lambda: stream.copy(target.address, source.address, size), scale.repeats)
    source.free()
    target.free()
    return 2 * size / took


def torch_product(scale: Scale) -> float | None:
    """Floating-point operations a second of torch's bfloat16 product, 8192 cubed; None without torch or its CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if scale is not FULL or not torch.cuda.is_available():
        return None
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    took = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.matmul(a, b)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return 2 * 8192**3 / statistics.median(took)


# -- kernels -----------------------------------------------------------------------------------------------------------


class Products:
    """x by several copies of one random matrix, so that none of them is in the cache when it is read."""

    def __init__(self, backend: CudaBackend, form: str, outputs: int, inputs: int, tokens: int, rotated: int) -> None:
        matrix = weight(form, outputs, inputs, np.random.default_rng(1))
        self.bytes, self.operations = matrix.data.nbytes, 2 * outputs * inputs * tokens
        self.copies = max(2, min(-(-rotated // matrix.data.nbytes), 64))
        limits = StepLimits(tokens, 1, 1, tokens, 1)
        recorder = Recorder(limits, KV_FORMATS["fp16"], [])
        given = recorder._floats(inputs, "given")
        for i in range(self.copies):
            own = Weight(f"{form} {i}", matrix.data, matrix.format, matrix.shape)
            recorder.linear(given, Linear((own,)))
        device, self.stream = backend.device, backend._stream
        lives = lifetimes(recorder.ops, [given.floats])
        sizes = [size for each in recorder.weights.values() for size in each.sizes]
        self._memory = [device.alloc(place(lives, ALIGNMENT)), device.alloc(sum(s + ALIGNMENT for s in sizes)), device.alloc(4096)]
        work, weights, words = self._memory
        for buffer in lives:
            buffer.address += work.address
        self.stream.fill(work.address, 0, work.size_bytes)
        self._fill(device, recorder.weights.values(), weights.address)
        counts = np.array([tokens] * 8, np.int32)
        self.stream.upload(words.address, counts.ctypes.data, counts.nbytes)
        shape = Shape(tokens, 1, 1, 1, 1, 1, 16, 1)
        launches = [op.launch(Place(words.address, Sections.of(shape), shape)) for op in recorder.ops]
        kernels = Modules(backend.compiler, device, dict.fromkeys(each.entry for each in launches)).kernels
        self._launches = [(kernels[each.entry], each.grid, each.arguments) for each in launches]

    def _fill(self, device: Device, weights: Any, address: int) -> None:
        with Uploader(device, self.stream) as uploader:
            packed: Packed
            for packed in weights:
                address = packed.place(address, ALIGNMENT)
                uploader.weight(packed)

    def run(self) -> None:
        for kernel, grid, arguments in self._launches:
            kernel.launch(self.stream, grid, *arguments)

    def free(self) -> None:
        for memory in self._memory:
            memory.free()


def products(backend: CudaBackend, scale: Scale, bandwidth: float, flops: float | None) -> Iterator[Line]:
    """The widest matrix of the largest model: few tokens by bytes a second of its weights, many by operations."""
    sizes = scale.models[-1]
    for form in scale.formats:
        for tokens in scale.tokens:
            bench = Products(backend, form, sizes.inner, sizes.hidden, tokens, scale.rotated_bytes)
            took = seconds(backend._stream, bench.run, scale.repeats, bench.copies)
            bench.free()
            what = f"product {form} {sizes.inner} x {sizes.hidden}, {tokens} tokens"
            if tokens <= 64:
                yield Line(what, bench.bytes / took / GB, "GB/s", bench.bytes / took / bandwidth)
            else:
                yield Line(what, bench.operations / took / 1e12, "TFLOP/s", bench.operations / took / flops if flops else None)


# -- whole models ------------------------------------------------------------------------------------------------------


def decoder(sizes: Sizes, form: str, context: int) -> Decoder:
    """A model of these shapes; all layers have the bytes of one, which the device gets a copy of for each."""
    rng = np.random.default_rng(0)
    columns, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {"q": (columns, sizes.hidden), "k": (kv, sizes.hidden), "v": (kv, sizes.hidden), "o": (sizes.hidden, columns)}
    shapes |= {"gate": (sizes.inner, sizes.hidden), "up": (sizes.inner, sizes.hidden), "down": (sizes.hidden, sizes.inner)}
    shapes |= {"router": (sizes.experts, sizes.hidden)} if sizes.experts else {}
    made = {name: weight(form, *shape, rng) for name, shape in shapes.items()}
    head = weight(form, sizes.vocab, sizes.hidden, rng)
    rope = table(plain_frequencies(5e5, sizes.head_dim), context)

    def copy(name: str) -> Weight:
        return Weight(name, made[name].data, made[name].format, made[name].shape)

    def linear(*names: str) -> Linear:
        return Linear(tuple(map(copy, names)))

    def mlp() -> GatedMlp | Mixture:
        if not sizes.experts:
            return GatedMlp(linear("gate", "up"), linear("down"), "silu")
        gate, up, down = (tuple(copy(name) for _ in range(sizes.experts)) for name in ("gate", "up", "down"))
        return Mixture(linear("router"), Experts(gate, up, down, sizes.chosen, True, "silu"))

    def norm() -> Norm:
        return Norm(np.ones(sizes.hidden, np.float32), 1e-5)

    def block(i: int) -> Block:
        a = Attention(i, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim**-0.5, rope)
        return Block(norm(), SelfAttention(linear("q", "k", "v"), linear("o"), a), norm(), mlp())

    blocks = tuple(block(i) for i in range(sizes.layers))
    return Decoder(head, blocks, norm(), Linear((head,)), sizes.hidden, sizes.vocab, context)


def touched(model: Decoder, batch: int) -> float:
    """The part of the experts' bytes that a step of so many tokens reads, where all are as likely."""
    experts = next((block.mlp.experts for block in model.blocks if isinstance(block.mlp, Mixture)), None)
    return 1.0 if experts is None else 1 - (1 - experts.chosen / experts.count) ** batch


def experts_bytes(model: Decoder) -> int:
    mixtures = [block.mlp.experts for block in model.blocks if isinstance(block.mlp, Mixture)]
    return sum(weight.data.nbytes for experts in mixtures for weight in experts.weights)


@contextmanager
def arranged_once() -> Iterator[None]:
    """Matrices of the same bytes are brought into the kernels' order once: all experts of a model here are."""
    own, found = Packed.parts, {}

    def parts(packed: Packed) -> Iterator[Piece]:
        key = id(packed.weight.data)
        if key not in found:
            found[key] = packed.weight.data, list(own(packed))
        return iter(found[key][1])

    Packed.parts = parts
    try:
        yield
    finally:
        Packed.parts = own


def decoding(batch: int, context: int) -> StepInputs:
    """The next token of each of so many sequences, which have all of `context` but it."""
    own = -(-context // 16)
    return StepInputs(
        tokens=packed(range(batch)),
        positions=packed([context - 1] * batch),
        slots=packed([b * own * 16 + context - 1 for b in range(batch)]),
        row_starts=packed(range(batch + 1)),
        contexts=packed([context] * batch),
        table_starts=packed(range(0, (batch + 1) * own, own)),
        table=packed(range(batch * own)),
        wanted=packed(range(batch)),
    )


def whole(backend: CudaBackend, sizes: Sizes, form: str, scale: Scale, bandwidth: float) -> Iterator[Line]:
    """Decoding at several batches and reading a prompt: a step's time by the clock, with what the host does."""
    model, context = decoder(sizes, form, scale.context), scale.context
    most = max(scale.batches)
    limits = StepLimits(max(512, most), most, most, context, most * -(-context // 16))
    room = backend.room(model, limits)
    fits = room.free_bytes - room.weights_bytes - room.work_bytes
    blocks = min(limits.blocks, int(0.95 * fits) // backend.kv_block_bytes(model, 16))
    with arranged_once():
        backend.load(model, replace(limits, blocks=blocks))
    for batch in scale.batches:
        length = min(context, blocks * 16 // batch // 16 * 16)
        step = decoding(batch, length)
        took, host = _timed(backend, step, scale.repeats)
        cache = batch * length * backend.kv_block_bytes(model, 16) // 16
        weights = room.weights_bytes - (1 - touched(model, batch)) * experts_bytes(model)
        read = (weights + cache) / bandwidth
        what = f"{sizes.name} {form}: decoding {batch} rows of {length}"
        yield Line(what, batch / took, "tok/s", read / took)
        yield Line(f"{what}, the host's part of a step", host * 1e6, "us")
    prompt = min(512, limits.tokens, context)
    took, _ = _timed(backend, prompt_inputs([1] * prompt, 0, prompt, 16, wanted=(prompt - 1,)), scale.repeats)
    yield Line(f"{sizes.name} {form}: a prompt of {prompt}", prompt / took, "tok/s")
    backend.close()


def _timed(backend: CudaBackend, step: StepInputs, repeats: int) -> tuple[float, float]:
    """Seconds of a step until it is done, and until the host is free again."""
    backend.run(step)
    backend._stream.synchronize()
    took, host = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        backend.run(step)
        host.append(time.perf_counter() - began)
        backend._stream.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took), statistics.median(host)


# -- the program -------------------------------------------------------------------------------------------------------


def single_instructions(device: Device, scale: Scale) -> Iterator[Line]:
    """How many do what their definitions say, and the first difference of each that does not."""
    stream = device.stream()
    chosen = instructions.cases(device, 1 if scale is FULL else 40)
    found = {case.name: instructions.wrong(case, device, stream) for case in chosen}
    for name, difference in found.items():
        if difference:
            yield Line(f"WRONG: {name}: {difference}", 0, "")
    yield Line("right", sum(not difference for difference in found.values()), f"of {len(found)}")


def measure(scale: Scale, cache: Path) -> Iterator[tuple[str, Iterator[Line]]]:
    """Sections of lines, measured as they are asked for."""
    backend = CudaBackend(cache_dir=cache)
    yield f"conformance on {backend.describe()}", conformance(cache, scale)
    yield "single instructions", single_instructions(backend.device, scale)
    bandwidth, flops = copying(backend.device, scale), torch_product(scale)
    ceilings = [Line("copying within the device", bandwidth / GB, "GB/s")]
    ceilings += [Line("torch, bfloat16 product", flops / 1e12, "TFLOP/s")] if flops else []
    yield "ceilings", iter(ceilings)
    yield "products (part of the ceiling)", products(backend, scale, bandwidth, flops)
    for sizes in scale.models:
        for form in ("BF16", "Q4_K") if scale is FULL else scale.formats[:1]:
            yield f"{sizes.name}, {form} (part of what reading it takes)", whole(backend, sizes, form, scale, bandwidth)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure the CUDA backend on this GPU.")
    parser.add_argument("--json", type=Path, help="write the lines to this file, too")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/imp"), help="where compiled kernels are kept")
    parser.add_argument("--smoke", action="store_true", help="small shapes: whether it runs, not how fast")
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    try:
        for title, section in measure(LITTLE if given.smoke else FULL, given.cache.expanduser()):
            print(title, flush=True)
            for line in section:
                print(line, flush=True)
                lines.append({"section": title, **vars(line)})
    except DeviceError as error:
        print(f"nothing can be measured here: {error}")
        return 3
    if given.json:
        given.json.write_text(json.dumps(lines, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
