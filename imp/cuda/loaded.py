"""A model on the device: its memory, its programs, its steps. Small steps replay a graph, captured once for each bucket
of tokens and of splits; larger ones are launched op by op. Nothing is allocated after it is made but graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..model import centring
from ..model.buffers import Buffer, place
from ..model.inputs import StepInputs
from ..model.kv import KVFormat
from ..model.ops import Attention, Model, StepLimits
from ..model.sampling import Drawn, SamplingPlan
from ..weights.checkpoint import UnsupportedModel
from . import warp_groups
from .adapters import Adapters
from .compile import Compiler
from .driver import Buffer as DeviceBuffer
from .driver import Device, Event, Graph, Pinned, Stream
from .entries import WGMMA_FROM, Entry, in_warp_groups, tile_rows
from .memory import PIECE_BYTES, Uploader
from .modules import Modules, Progress
from .program import Launch, Place, lifetimes, padded
from .record import Recorder
from .repack import Repacker
from .sampler import DeviceLogits, Sampler
from .step import BUCKETS, Sections, Shape, bucket_of, splits_bucket, splits_of, words_needed, write

KV_BLOCK = 16  # positions of a KV block
ALIGNMENT = 256  # of whatever has an address of its own
LARGEST_GROUP = 64  # heads that share keys
LARGEST_HEAD = 256
ROPE_SAMPLE = 4  # positions
GRAPHS_BYTES = 128 << 20  # what the driver takes for kernels and graphs, generously


class LoadedModel:
    """Belongs to the thread in which the device's context is current."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        compiler: Compiler,
        model: Model,
        limits: StepLimits,
        kv: KVFormat,
        progress: Progress | None = None,
    ) -> None:
        """Raises UnsupportedModel, compile.CompileError, driver.CudaOutOfMemory."""
        self.device, self.stream = device, stream
        self.limits, self.kv, self.layers, self.columns = limits, kv, model.kv_layers, model.hidden
        self.recorder = recorded(model, limits, kv, warp_groups.possible(device, limits))
        self.planes, self.ops = self.recorder.planes, self.recorder.ops
        self.head_dim, self.group = _attention_shape(self.recorder.attentions, limits)
        self._memory: list[DeviceBuffer | Pinned] = []
        self._graphs: dict[tuple[int, int, bool], Graph] = {}
        self.adapters: Adapters | None = None
        self._modules: Modules | None = None
        self._sampler: Sampler | None = None
        try:
            self._place()
            self._upload(compiler)
            self.warp_groups = self._warp_groups(compiler)
            self._modules = Modules(compiler, device, self._entries(), progress)
            self._sampler = Sampler(device, stream, compiler, limits.logit_rows, self._vocab)
            for bucket in BUCKETS:
                if bucket <= limits.tokens:
                    self._graph(bucket, 1, False)
        except BaseException:
            self.free()
            raise

    # -- memory ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give everything its memory on the device, and on the host what is copied to and from it."""
        cache = sum(_aligned(plane.size) for plane, _ in self.planes)
        self._cache = self._alloc(cache)
        _spread([plane for plane, _ in self.planes], self._cache.address)
        self.stream.fill(self._cache.address, 0, cache)
        lives = lifetimes(self.ops, [self.recorder.logits_out, self.recorder.hidden_out])
        work = self._alloc(place(lives, ALIGNMENT))
        for buffer in lives:
            buffer.address += work.address
        sites = self.recorder.sites
        sites.address = self._alloc(sites.bytes).address
        self.stream.fill(sites.address, 0, max(sites.bytes, 1))
        self.adapters = Adapters(self.device, sites)
        words = words_needed(self.limits)
        self._words = self._alloc(4 * words)
        self._staged = [_Staged(self._pin(4 * words)) for _ in range(2)]
        self._turn = 0
        logits, hidden = self.recorder.logits_out, self.recorder.hidden_out
        assert logits and hidden
        self._vocab = logits.size // 4 // self.limits.logit_rows
        self._hidden = self._pin(hidden.size).bytes.view(np.float32).reshape(-1, padded(self.columns))
        self._pooled = 0
        self._done = Event()

    def _upload(self, compiler: Compiler) -> None:
        weights, constants = self.recorder.weights.values(), self.recorder.constants
        self._weights = self._alloc(_weights_bytes(self.recorder))
        at = self._weights.address
        repacker = Repacker(self.device, self.stream, compiler, weights, PIECE_BYTES)
        try:
            with Uploader(self.device, self.stream, repacker) as uploader:
                for packed in weights:
                    at = packed.place(at, ALIGNMENT)
                    uploader.weight(packed)
                for constant in constants:
                    constant.address, at = at, at + _aligned(constant.values.nbytes)
                    uploader.array(constant.address, constant.values)
        finally:
            repacker.free()

    def _alloc(self, size_bytes: int) -> DeviceBuffer:
        buffer = self.device.alloc(max(size_bytes, ALIGNMENT))
        self._memory.append(buffer)
        return buffer

    def _pin(self, size_bytes: int) -> Pinned:
        pinned = self.device.pinned(max(size_bytes, ALIGNMENT))
        self._memory.append(pinned)
        return pinned

    def free(self) -> None:
        for graph in self._graphs.values():
            graph.destroy()
        self._graphs.clear()
        for memory in self._memory:
            memory.free()
        self._memory.clear()
        if self._sampler is not None:
            self._sampler.free()
            self._sampler = None
        if self.adapters is not None:
            self.adapters.free()
            self.adapters = None
        if self._modules is not None:
            self._modules.unload()
            self._modules = None

    # -- programs --------------------------------------------------------------------------------

    def _warp_groups(self, compiler: Compiler) -> bool | None:
        """Whether large products are theirs; None where the device has none, or the model no use for them."""
        kinds = {packed.kind for packed in self.recorder.weights.values() if in_warp_groups(packed.layout)}
        if not (kinds and self.recorder.warp_groups):
            return None
        return warp_groups.same_bits(
            self.device, self.stream, compiler, {"bf16" if kind == "bf16" else "f16" for kind in kinds}
        )

    def _entries(self) -> list[Entry]:
        """Every kernel that some step of this model takes."""
        most = min(self.limits.tokens, BUCKETS[-1])
        shapes = [self._shape(tokens, tokens, tokens, 2) for tokens in range(1, most + 1)]
        more = [1 << i for i in range(most.bit_length(), self.limits.tokens.bit_length())]  # of experts' products
        shapes += [self._shape(tokens, 1, 1, 1) for tokens in more]
        shapes += [self._shape(self.limits.tokens, wanted, 1, 1) for wanted in range(1, self.limits.logit_rows + 1)]
        shapes.append(self._shape(1, 1, 0, 1, adapted=True))
        launches = (launch for shape in shapes for launch in self._launches(shape))
        return list(dict.fromkeys(launch.entry for launch in launches))

    def _shape(
        self, tokens: int, wanted: int, pooled: int, splits: int, rows: int = 0, adapted: bool = False
    ) -> Shape:
        """rows: 0 for as many as there may be."""
        size = tile_rows(self.head_dim, self.group, tokens)
        wanted, tile_tokens = min(wanted, self.limits.logit_rows), max(1, size // self.group)
        grouped = bool(self.warp_groups) and tokens >= WGMMA_FROM
        return Shape(tokens, wanted, pooled, rows or tokens, tokens, splits, size, tile_tokens, adapted, grouped)

    def _launches(self, shape: Shape) -> list[Launch]:
        where = Place(self._words.address, Sections.of(shape), shape)
        launches = [op.launch(where) for op in self.ops]
        return [launch for launch in launches if all(launch.grid)]

    def _launch(self, shape: Shape) -> None:
        assert self._modules
        for launch in self._launches(shape):
            self._modules.kernels[launch.entry].launch(self.stream, launch.grid, *launch.arguments)

    def _graph(self, bucket: int, splits: int, adapted: bool) -> tuple[Graph, Shape]:
        shape, key = self._shape(bucket, bucket, 0, splits, adapted=adapted), (bucket, splits, adapted)
        if key not in self._graphs:
            with self.stream.capturing() as captured:
                self._launch(shape)
            (self._graphs[key],) = captured
        return self._graphs[key], shape

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """KV of all layers from block to block, in this order."""
        for plane, size in self.planes:
            for source, target in copies:
                self.stream.copy(plane.address + target * size, plane.address + source * size, size)

    def read_block(self, block: int) -> np.ndarray:
        """A copy of a block's KV of all layers, uint8."""
        content = np.empty(sum(size for _, size in self.planes), np.uint8)
        for plane, size, part in self._parts(content):
            self.stream.download(part.ctypes.data, plane.address + block * size, size)
        self.stream.synchronize()
        return content

    def write_block(self, block: int, content: np.ndarray) -> None:
        """Put back what `read_block` gave."""
        for plane, size, part in self._parts(content):
            self.stream.upload(plane.address + block * size, part.ctypes.data, size)

    def _parts(self, content: np.ndarray) -> Iterator[tuple[Buffer, int, np.ndarray]]:
        """Of a block's content, what belongs to each plane."""
        start = 0
        for plane, size in self.planes:
            yield plane, size, content[start : start + size]
            start += size

    def fingerprint(self) -> bytes:
        """The format of keys and values, what was measured for it, and a few positions of rope, which say all of it."""
        ropes = (attention.rope for attention in self.recorder.attentions)
        tables = [table[:ROPE_SAMPLE] for rope in ropes if rope for table in (rope.cos, rope.sin)]
        centres = [centre.values for centre in self.recorder.centres.values()]
        return self.kv.name.encode() + b"".join(map(np.ndarray.tobytes, [*centres, *tables]))

    # -- steps -----------------------------------------------------------------------------------

    def run(self, inputs: StepInputs) -> DeviceLogits:
        """As model.ops.Backend.run."""
        tokens, wanted, pooled = len(inputs.tokens), len(inputs.wanted), len(inputs.pooled)
        limits = self.limits
        assert tokens <= limits.tokens and wanted <= limits.logit_rows, "the step is too large"
        adapted, bucket = len(inputs.adapted) > 0, None if pooled else bucket_of(tokens)
        if bucket is not None and bucket <= limits.tokens:
            graph, shape = self._graph(bucket, splits_bucket(splits_of(inputs), bucket), adapted)
            self._send(inputs, shape)
            self.stream.replay(graph)
        else:
            shape = self._shape(tokens, wanted, pooled, 1, len(inputs.contexts), adapted)
            self._send(inputs, shape)
            self._launch(shape)
        self._pooled = pooled
        if pooled:
            hidden = self.recorder.hidden_out
            assert hidden
            self.stream.download(self._hidden.ctypes.data, hidden.address, pooled * self._hidden.shape[1] * 4)
            self.stream.record(self._done)
            self._done.wait()
        return DeviceLogits(wanted, self._vocab, self._fetch)

    def _fetch(self, rows: int) -> np.ndarray:
        """The last run's logits, float32 [rows, vocab]."""
        logits = self.recorder.logits_out
        assert logits
        values = np.empty((rows, self._vocab), np.float32)
        if rows:
            self.stream.download(values.ctypes.data, logits.address, values.nbytes)
            self.stream.synchronize()
        return values

    def sample(self, logits: DeviceLogits, plan: SamplingPlan) -> Drawn:
        """As model.ops.Backend.sample, of the last run's logits."""
        assert self._sampler and self.recorder.logits_out and len(logits) == len(plan.temperature)
        return self._sampler.sample(self.recorder.logits_out.address, plan)

    def _send(self, inputs: StepInputs, shape: Shape) -> None:
        """Upload the step. Two pieces of host memory take turns: the device reads one when it gets to it."""
        staged = self._staged[self._turn]
        self._turn ^= 1
        used = write(inputs, shape, Sections.of(shape), staged.ready())
        self.stream.upload(self._words.address, staged.address, 4 * used)
        self.stream.record(staged.read)

    def hidden(self) -> np.ndarray:
        return self._hidden[: self._pooled, : self.columns]

    def centre_keys(self, tokens: Sequence[int]) -> None:
        if not self.kv.turns:
            return
        read = 0
        for inputs in centring.steps(tokens, self.limits):
            self.run(inputs)
            read = int(inputs.contexts[0])
        self.stream.synchronize()
        used = -(-read // KV_BLOCK)
        for i, (layer, (plane, size)) in enumerate(zip(self.layers, self.planes, strict=True)):
            blocks = np.empty((used, size), np.uint8)
            if read:
                self.stream.download(blocks.ctypes.data, plane.address, blocks.nbytes)
                self.stream.synchronize()
                keys = self._keys(blocks, layer.kv_heads, layer.head_dim)[:read]
                centre = centring.centre(keys, self.recorder.attentions[i].rope).astype(np.float32)
                self.recorder.centres[i].values = centre
                self.stream.upload(self.recorder.centres[i].address, centre.ctypes.data, centre.nbytes)
            self.stream.fill(plane.address, 0, max(blocks.nbytes, 1))
        self.stream.synchronize()

    def _keys(self, blocks: np.ndarray, kv_heads: int, d: int) -> np.ndarray:
        """float32 [positions, kv heads, d] of blocks of a plane: of a head, codes of 16 keys, then their scales."""
        halves = blocks.reshape(len(blocks), kv_heads, 2, -1)[:, :, 0]
        codes, scales = np.split(halves, [KV_BLOCK * d * self.kv.bits // 8], axis=-1)
        parts = [each.reshape(*each.shape[:-1], KV_BLOCK, -1) for each in (codes, scales)]
        records = np.moveaxis(np.concatenate(parts, axis=-1), 2, 1).reshape(-1, kv_heads, self.kv.record_bytes(d))
        return self.kv.unpacked(np.ascontiguousarray(records), d)


class _Staged:
    """A step's words in memory of the host, and whether the device has read them."""

    def __init__(self, pinned: Pinned) -> None:
        self.address, self.words = pinned.address, pinned.bytes.view(np.int32)
        self.read = Event()
        self._used = False

    def ready(self) -> np.ndarray:
        """To write into; waits until the device has read what was there."""
        if self._used:
            self.read.wait()
        self._used = True
        return self.words


def recorded(model: Model, limits: StepLimits, kv: KVFormat, warp_groups: bool = False) -> Recorder:
    """The model's forward. warp_groups: whether products may be theirs."""
    planes = [(Buffer(limits.blocks * size, f"layer {i}"), size) for i, size in enumerate(block_bytes(model, kv))]
    recorder = Recorder(limits, kv, planes, warp_groups)
    model.forward(recorder)
    return recorder


def needs(model: Model, limits: StepLimits, kv: KVFormat, warp_groups: bool = False) -> tuple[int, int]:
    """Bytes of the device that weights take, and that all but weights and KV cache does."""
    recorder = recorded(model, limits, kv, warp_groups)
    lives = lifetimes(recorder.ops, [recorder.logits_out, recorder.hidden_out])
    edited = limits.logit_rows * model.vocab * 4  # logits as the sampler changes them
    beside = 4 * words_needed(limits) + edited + recorder.sites.bytes + GRAPHS_BYTES
    return _weights_bytes(recorder), place(lives, ALIGNMENT) + beside


def _weights_bytes(recorder: Recorder) -> int:
    sizes = [size for each in recorder.weights.values() for size in each.sizes]
    return sum(map(_aligned, [*sizes, *(each.values.nbytes for each in recorder.constants)]))


def block_bytes(model: Model, kv: KVFormat) -> list[int]:
    """Of each layer: keys and values of one block."""
    return [2 * KV_BLOCK * layer.kv_heads * kv.record_bytes(layer.head_dim) for layer in model.kv_layers]


def _attention_shape(attentions: Sequence[Attention], limits: StepLimits) -> tuple[int, int]:
    """(largest head size, query heads that share a key head). Raises UnsupportedModel where a layer is none that the
    kernels do."""
    if limits.block_size != KV_BLOCK:
        raise ValueError(f"the CUDA backend keeps {KV_BLOCK} positions in a KV block, not {limits.block_size}")
    groups = {each.heads // each.kv_heads for each in attentions}
    if len(groups) != 1 or max(groups) > LARGEST_GROUP:
        raise UnsupportedModel(
            f"keys are shared by {sorted(groups)} query heads; on a GPU that is one number, up to {LARGEST_GROUP}"
        )
    for each in attentions:
        if each.head_dim % 16 or each.head_dim > LARGEST_HEAD:
            what = f"layer {each.layer} has heads of {each.head_dim}"
            raise UnsupportedModel(f"{what}; on a GPU that has to be a multiple of 16, up to {LARGEST_HEAD}")
    return max(each.head_dim for each in attentions), max(groups)


def _spread(buffers: Sequence[Buffer], address: int) -> None:
    for buffer in buffers:
        buffer.address = address
        address += _aligned(buffer.size)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
