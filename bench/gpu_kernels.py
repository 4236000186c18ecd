"""The kernels of the CUDA backend one by one, on a real GPU: what memory and torch reach there, and which part of that."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator

import numpy as np

from bench.gpu_lines import FULL, GB, Line, Scale, Sizes, seconds
from imp.cuda.driver import Buffer as DeviceBuffer
from imp.cuda.driver import Device, Stream
from imp.cuda.entries import F16, WGMMA_ARCHITECTURE, tile_rows
from imp.cuda.loaded import ALIGNMENT
from imp.cuda.memory import Uploader
from imp.cuda.modules import Modules
from imp.cuda.ops import CudaBackend
from imp.cuda.program import Place, lifetimes
from imp.cuda.record import Recorder
from imp.cuda.sampler import Sampler
from imp.cuda.step import Sections, Shape, splits_bucket, splits_of, words_needed, write
from imp.model.buffers import Buffer, place
from imp.model.inputs import StepInputs, packed, prompt_inputs
from imp.model.kv import FORMATS as KV_FORMATS
from imp.model.ops import Attention, Linear, StepLimits
from imp.weights.checkpoint import Weight
from tests.cpu.harness import weight
from tests.cpu.test_sample import make_plan
from tests.gpu.tiny import SMALL_FLOATS

SKINNY, LARGE = 32, 128  # tokens up to which weights are what is read, and from which on sums are what is done
WIDE = ("BF16", "F16")
BYTES = ("Q8_0", "FP8")
# parts of the ceiling, by what a weight takes: of the memory's, and of torch's product
OF_BANDWIDTH = {16: (0.75, 0.85), 8: (0.70, 0.82), 4: (0.60, 0.75)}
OF_PRODUCTS = {16: (0.61, 0.82), 8: (0.45, 0.60), 4: (0.45, 0.60)}
OF_ATTENTION, OF_PROMPTS = (0.70, 0.82), (250.0, 450.0)  # TFLOP/s
SAMPLING_US = (40.0, 20.0)
SAMPLED = (1, 64)  # rows


# -- ceilings ----------------------------------------------------------------------------------------------------------


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


def torch_at(shape: tuple[int, int], tokens: int, scale: Scale) -> float | None:
    """Seconds of torch's bfloat16 product of this matrix, of which several take turns; None where it cannot be had."""
    try:
        import torch
    except ImportError:
        return None
    if scale is not FULL or not torch.cuda.is_available():
        return None
    copies = max(2, min(-(-scale.rotated_bytes // (2 * shape[0] * shape[1])), 64))
    matrices = [torch.randn(shape[1], shape[0], device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    x, took = torch.randn(tokens, shape[1], device="cuda", dtype=torch.bfloat16), []
    for _ in range(scale.repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for matrix in matrices:
            torch.matmul(x, matrix)
        last.record()
        last.synchronize()
        took.append(first.elapsed_time(last) / 1000 / copies)
    return statistics.median(took)


# -- products ----------------------------------------------------------------------------------------------------------


def random_matrix(form: str, outputs: int, inputs: int) -> Weight:
    rng = np.random.default_rng(1)
    if form in SMALL_FLOATS:
        return SMALL_FLOATS[form](form, rng.standard_normal((outputs, inputs), np.float32))
    return weight(form, outputs, inputs, rng)


class Launches:
    """Recorded ops as what they are for one shape of step, over memory of their own with random numbers in it: zeros would
    make the matrix units faster than they are."""

    def __init__(self, backend: CudaBackend, recorder: Recorder, shape: Shape, words: np.ndarray, lasting: Iterable[Buffer]) -> None:
        device, self.stream = backend.device, backend._stream
        lives = lifetimes(recorder.ops, list(lasting))
        sizes = [size for each in recorder.weights.values() for size in each.sizes]
        needed = place(lives, ALIGNMENT), sum(s + ALIGNMENT for s in sizes), words.nbytes
        self._memory = [device.alloc(max(size, ALIGNMENT)) for size in needed]
        work, weights, self._words = self._memory
        for buffer in lives:
            buffer.address += work.address
        randomise(self.stream, work)
        address = weights.address
        with Uploader(device, self.stream) as uploader:
            for each in recorder.weights.values():
                address = each.place(address, ALIGNMENT)
                uploader.weight(each)
            uploader.array(self._words.address, words)
        self._shape = shape
        where = Place(self._words.address, Sections.of(shape), shape)
        launches = [launch for op in recorder.ops if all((launch := op.launch(where)).grid)]
        self._modules = Modules(backend.compiler, device, dict.fromkeys(each.entry for each in launches))
        self._launches = launches

    def run(self, *names: str) -> None:
        """Those of these kernels; without names all."""
        for each in self._launches:
            if not names or each.entry.name in names:
                self._modules.kernels[each.entry].launch(self.stream, each.grid, *each.arguments)

    def free(self) -> None:
        for memory in self._memory:
            memory.free()
        self._modules.unload()


def randomise(stream: Stream, memory: DeviceBuffer) -> None:
    """Fill it with float16 and float32 numbers of about 1."""
    bits = np.random.default_rng(0).integers(0x3800, 0x4000, 1 << 20).astype(np.uint16)
    stream.upload(memory.address, bits.ctypes.data, min(bits.nbytes, memory.size_bytes))
    stream.synchronize()
    done = bits.nbytes
    while done < memory.size_bytes:
        size = min(done, memory.size_bytes - done)
        stream.copy(memory.address + done, memory.address, size)
        done += size


class Products:
    """x by several copies of one random matrix, so that none of them is in the cache when it is read."""

    NAMES = ("linear", "linear_tiled", "linear_wgmma")

    def __init__(self, backend: CudaBackend, matrix: Weight, tokens: int, scale: Scale, warp_groups: bool) -> None:
        outputs, inputs = matrix.shape
        self.operations, self.warp_groups = 2 * outputs * inputs * tokens, warp_groups
        self.copies = max(2, min(-(-scale.rotated_bytes // matrix.data.nbytes), 64))
        recorder = Recorder(StepLimits(tokens, 1, 1, tokens, 1), KV_FORMATS["fp16"], [], warp_groups)
        given = recorder._floats(inputs, "given")
        assert given.floats
        for _ in range(self.copies):
            own = Weight(matrix.name, matrix.data, matrix.format, matrix.shape, matrix.scales)
            recorder.linear(given, Linear((own,)))
        self.bytes = sum(next(iter(recorder.weights.values())).sizes)
        shape = Shape(tokens, 1, 1, 1, 1, 1, 16, 1, warp_groups=warp_groups)
        self._launches = Launches(backend, recorder, shape, np.full(8, tokens, np.int32), [given.floats])
        self._launches.run()

    def run(self) -> None:
        self._launches.run(*self.NAMES)

    def free(self) -> None:
        self._launches.free()


def products(backend: CudaBackend, scale: Scale, bandwidth: float, flops: float | None) -> Iterator[Line]:
    """The widest matrix of the largest model: few tokens by bytes a second of its weights, many by operations."""
    sizes = scale.models[-1]
    shape = sizes.inner, sizes.hidden
    for form in scale.formats:
        matrix = random_matrix(form, *shape)
        for tokens in scale.tokens:
            ways = (False, True) if tokens >= LARGE and backend.device.architecture == WGMMA_ARCHITECTURE else (False,)
            for warp_groups in ways if form != "Q4_K" else (False,):
                bench = Products(backend, matrix, tokens, scale, warp_groups)
                took = seconds(backend._stream, bench.run, scale.repeats, bench.copies)
                bench.free()
                yield _product_line(bench, form, shape, tokens, took, bandwidth, flops)
            if form == "BF16" and (theirs := torch_at(shape, tokens, scale)):
                yield Line(f"torch's of these, {tokens} tokens: of ours", theirs * 1e6, "us", theirs / took)


def _product_line(
    bench: Products, form: str, shape: tuple[int, int], tokens: int, took: float, bandwidth: float, flops: float | None
) -> Line:
    bits = 16 if form in WIDE else 8 if form in BYTES else 4
    what = f"product {form} {shape[0]} x {shape[1]}, {tokens} tokens" + ", warp groups" * bench.warp_groups
    if tokens <= SKINNY:
        return Line(what, bench.bytes / took / GB, "GB/s", bench.bytes / took / bandwidth, OF_BANDWIDTH[bits])
    part = bench.operations / took / flops if flops else None
    return Line(what, bench.operations / took / 1e12, "TFLOP/s", part, OF_PRODUCTS[bits] if flops else None)


# -- attention and sampling --------------------------------------------------------------------------------------------


class Attending:
    """One layer's attention of a step, keys and values in float16."""

    NAMES = ("attend", "combine")

    def __init__(self, backend: CudaBackend, sizes: Sizes, step: StepInputs) -> None:
        d, group, tokens = sizes.head_dim, sizes.heads // sizes.kv_heads, len(step.tokens)
        kv, contexts = KV_FORMATS["fp16"], step.contexts
        blocks, of_block = int(step.table.max()) + 1, 2 * 16 * sizes.kv_heads * KV_FORMATS["fp16"].record_bytes(d)
        self.bytes = 2 * int(contexts.sum()) * sizes.kv_heads * kv.record_bytes(d)
        limits = StepLimits(tokens, len(contexts), 1, int(contexts.max()), blocks)
        plane = Buffer(blocks * of_block, "plane")
        recorder = Recorder(limits, kv, [(plane, of_block)])
        qkv = recorder._floats((sizes.heads + 2 * sizes.kv_heads) * d, "qkv")
        a = Attention(0, sizes.heads, sizes.kv_heads, d, d**-0.5, None)
        out, _ = recorder.attend(recorder.rotate_store(qkv, a), a).operand(F16)
        rows = tile_rows(d, group, tokens)
        splits = splits_bucket(splits_of(step), tokens)
        shape = Shape(tokens, max(1, len(step.wanted)), 0, len(contexts), tokens, splits, rows, max(1, rows // group))
        words = np.zeros(words_needed(limits), np.int32)
        write(step, shape, Sections.of(shape), words)
        assert qkv.floats
        self._launches = Launches(backend, recorder, shape, words, [qkv.floats, plane, out])

    def run(self) -> None:
        self._launches.run(*self.NAMES)

    def free(self) -> None:
        self._launches.free()


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


def attention(backend: CudaBackend, scale: Scale, bandwidth: float) -> Iterator[Line]:
    """Decoding by the bytes of keys and values it reads, a prompt by its operations."""
    sizes, context = scale.models[-1], 4 * scale.context
    for batch in scale.batches:
        bench = Attending(backend, sizes, decoding(batch, context))
        took = seconds(backend._stream, bench.run, scale.repeats)
        bench.free()
        what = f"attention, decoding {batch} rows of {context}"
        yield Line(what, bench.bytes / took / GB, "GB/s", bench.bytes / took / bandwidth, OF_ATTENTION)
    bench = Attending(backend, sizes, prompt_inputs([0] * scale.context, 0, scale.context, 16))
    took = seconds(backend._stream, bench.run, scale.repeats)
    bench.free()
    operations = 2 * sizes.heads * sizes.head_dim * scale.context * (scale.context + 1)
    yield Line(f"attention, a prompt of {scale.context}", operations / took / 1e12, "TFLOP/s", None, OF_PROMPTS)


def sampling(backend: CudaBackend, scale: Scale) -> Iterator[Line]:
    """By the clock, so with the plan's way up and the tokens' way down."""
    vocab, rng = scale.models[-1].vocab, np.random.default_rng(0)
    for rows in SAMPLED:
        sampler = Sampler(backend.device, backend._stream, backend.compiler, rows, vocab)
        logits = backend.device.alloc(4 * rows * vocab)
        values = rng.standard_normal((rows, vocab), np.float32) * np.float32(3)
        backend._stream.upload(logits.address, values.ctypes.data, values.nbytes)
        plan = make_plan([{"temperature": 0.8, "top_p": 0.95, "u": float(rng.random())} for _ in range(rows)], vocab)
        took = []
        for _ in range(scale.repeats):
            began = time.perf_counter()
            sampler.sample(logits.address, plan)
            took.append(time.perf_counter() - began)
        logits.free()
        sampler.free()
        yield Line(f"sampling {rows} of {vocab}, with its copies", 1e6 * statistics.median(took), "us", None, SAMPLING_US)
