"""Everything that changes when the model changes, loaded together: tokenizer, template, model, backend, scheduler."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from .adapters import Adapters, Shapes, read_named
from .beside import Beside
from .chat.prepare import Adapted, ModelFacts
from .constrain.code import compile_aside
from .encoder import EncoderProcess
from .facts import constraint_compiler, fill, mask_bits, model_facts, template, vectors
from .keeping import below, digest_aside
from .memory import (
    BLOCK_SIZE,
    DEVICE,
    HOST,
    MARGIN,
    ROWS,
    Growth,
    MemoryPlan,
    allocating,
    available_bytes,
    plan,
)
from .model import arch, centring
from .model.drafting import DraftModel
from .model.ops import Backend, DeviceMemory, Model, Room, StepLimits
from .model.plan import MaskBits
from .model.rescaling import Rescaling
from .model.runner import ModelRunner
from .model.sparse import Sparse
from .sched.aside import Aside
from .sched.blocks import BlockPool
from .sched.costs import StepCosts
from .sched.pace import Pace
from .sched.scheduler import Scheduler
from .sched.speculation import Speculation
from .settings import Settings, named_paths
from .speculate.lookup import SuffixLookup
from .text.compare import difference
from .text.decode import TextDecoder
from .text.tokenizer import Tokenizer
from .tiers.below import Below
from .types import DeviceError as DeviceError
from .types import NoDevice, Proposer, Request, Runner
from .weights.checkpoint import Checkpoint, InvalidModel, open_checkpoint

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What clients may know of a loaded model."""

    name: str
    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    trained_context: int
    loaded_at: int  # unix seconds


class Device(Protocol):
    """What is told of where the model runs, and how that ends."""

    @property
    def name(self) -> str: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...


def _none() -> None: ...


@dataclass(frozen=True, slots=True)
class Bundle:
    card: ModelCard
    facts: ModelFacts
    tokenizer: Tokenizer
    backend: Device
    runner: Runner
    scheduler: Scheduler
    memory: MemoryPlan
    draft: Device | None = None  # where its draft model runs
    below: Below | None = None  # KV that is kept elsewhere, too
    adapters: Adapters | None = None  # None: it can have none
    device_memory: Callable[[], DeviceMemory | None] = _none

    def adapted(self, name: str) -> Bundle | None:
        """As requests see it that name this adapter; None where there is none of that name."""
        adapter = None if self.adapters is None else self.adapters.get(name)
        if adapter is None:
            return None
        facts = replace(self.facts, adapter=Adapted(adapter.slot, adapter.digest))
        return replace(self, card=replace(self.card, name=name), facts=facts)

    def close(self) -> None:
        if self.below is not None:
            self.below.close()
        self.backend.close()
        if self.draft is not None:
            self.draft.close()

    def watch_steps(self, watch: Callable[[str], None]) -> None:
        """Let the runner tell what part of a step it begins. One that runs no model has no parts."""
        if isinstance(self.runner, ModelRunner):
            self.runner.watch = watch


def new_backend(settings: Settings, progress: Progress) -> Backend:
    """The only place that imports a backend."""
    if settings.model.device == "reference":
        from .model.reference import ReferenceBackend

        return ReferenceBackend(kv_dtype=settings.kv_cache.dtype, sparse=sparse(settings))
    if settings.model.device != "cpu":
        try:
            return _on_gpu(settings, progress)
        except NoDevice as why:
            if settings.model.device != "auto":
                raise
            progress(f"running on the CPU: {why}")
    from .cpu.backend import CpuBackend

    def ready(count: int, wanted: int) -> None:
        if backend.kernels.compiled:  # nothing to tell where all come from the disk
            progress(f"compiling kernels, once: {count} of {wanted}")

    backend = CpuBackend(
        settings.runtime.threads or None,
        settings.paths.cache,
        progress=ready,
        kv_dtype=settings.kv_cache.dtype,
        sparse=sparse(settings),
        deterministic=settings.runtime.deterministic,
    )
    return backend


def sparse(settings: Settings) -> Sparse:
    """What positions of outputs attend to, by the settings."""
    own = settings.attention
    return Sparse(own.sparse_topk_tokens, own.sparse_sink_tokens, own.sparse_recent_tokens, own.sparse_min_ctx)


def _on_gpu(settings: Settings, progress: Progress) -> Backend:
    """Raises NoDevice."""
    if settings.attention.sparse_topk_tokens:
        raise NoDevice("attention.sparse_topk_tokens is for the CPU alone")
    try:
        ctypes.CDLL("libcuda.so.1")  # first: without it, nobody has to wait for the packages
    except OSError as error:
        raise NoDevice("there is no CUDA driver (libcuda.so.1)") from error
    try:
        from .cuda.ops import CudaBackend
    except ImportError as error:
        raise NoDevice("the packages for GPUs are not installed (imp-server[cuda])") from error

    def ready(count: int, wanted: int) -> None:
        if backend.compiler.compiled:
            progress(f"compiling kernels, once: {count} of {wanted}")

    index = int(settings.model.device.partition(":")[2] or 0)
    budget = settings.runtime.vram_budget << 20
    backend = CudaBackend(index, settings.paths.cache, settings.kv_cache.dtype, budget, ready)
    return backend


def load(
    path: Path, settings: Settings, progress: Progress, draft: Path | None = None, early: Beside | None = None
) -> Bundle:
    """Load a model, and with it the one that guesses what it will say, `draft`. early: the process of its encoder, if
    that was begun before. Raises InvalidModel, UnsupportedModel, ContextTooLong, FileNotFoundError, MemoryError,
    InvalidTokenizer, UnsupportedTokenizer, EncoderGone, FolderError, DeviceError, memory.OutOfMemory."""
    progress(f"reading {path.name}")
    encoder = EncoderProcess(path, early)  # reads its vocabulary while we do the rest
    checkpoint = open_checkpoint(path)
    digest = digest_aside(checkpoint.files, settings)
    wanted = settings.runtime.max_seq_len
    own = settings.rope
    model = arch.build(checkpoint, wanted, Rescaling(own.scaling, own.factor, own.orig_ctx))
    compiled = compile_aside(settings.paths.cache)
    backend = new_backend(settings, progress)
    guide = None if draft is None else Guide(draft, settings, progress)
    wanted_adapters = read_named(named_paths(settings.model.lora), model)
    adapters = Adapters(Shapes(model.modules, model.formats), backend)
    adapters.planned_bytes = sum(backend.adapter_bytes(model, adapter) for _, _, adapter in wanted_adapters)
    room = _room(backend, model, settings)
    own_bytes = room.weights_bytes if room else backend.weights_bytes(model)
    memory = plan(
        own_bytes + (guide.size_bytes if guide else 0) + adapters.planned_bytes,
        backend.kv_block_bytes(model, BLOCK_SIZE) + (guide.block_bytes if guide else 0),
        context=wanted or model.context,
        rows=settings.runtime.max_batch_size,
        blocks=settings.kv_cache.max_blocks,
        free_bytes=room.free_bytes if room else available_bytes(),
        kv_format=backend.kv_format(model),
        whole_context=wanted > 0,
        host_bytes=settings.kv_cache.host_mb << 20,
        growable=settings.kv_cache.growable and room is None,
        tier=DEVICE if room else HOST,
        work_bytes=room.work_bytes if room else MARGIN,
    )
    limits = step_limits(memory, settings)
    with allocating(memory):
        backend.load(model, limits)
        for name, where, adapter in wanted_adapters:
            adapters.known[name] = adapters.keep(name, where, adapter)
    tokenizer = Tokenizer(encoder.vocabulary())
    backend.centre_keys(tokenizer.encode(centring.TEXT))
    chosen, named = settings.model.chat_template, checkpoint.chat_templates
    own_template = template(checkpoint.chat_template, tokenizer, chosen, named)
    constraints = constraint_compiler(tokenizer, settings)
    compiled()
    found = model_facts(tokenizer, own_template, checkpoint.generation, memory.context, settings, constraints)
    bits = mask_bits(constraints)
    with allocating(memory):
        proposer = guide.drafting(tokenizer, limits, bits) if guide else None
    guesses = speculation(settings, proposer)
    grant = Growth(memory.block_bytes).grant
    pool = BlockPool(memory.blocks, BLOCK_SIZE, memory.most_blocks, grant, backend.tells_apart)
    model_files = None if digest is None else digest.result()
    tiers = below(pool, backend, backend.kv_block_bytes(model, BLOCK_SIZE), model_files, settings)
    bundle = Bundle(
        card=_card(path, checkpoint, model, settings),
        facts=replace(
            found,
            vectors=vectors(checkpoint, model.hidden),
            fill=fill(checkpoint, tokenizer),
            no_guesses=guesses.off,
            no_predictions=guesses.no_predictions,
        ),
        tokenizer=tokenizer,
        backend=backend,
        runner=ModelRunner(
            backend, tokenizer.vocab_size, BLOCK_SIZE, bits, *([] if proposer is None else [proposer.follow])
        ),
        scheduler=scheduler(
            tokenizer, pool, memory, limits, settings, guesses, backend.aside.limits if backend.aside else None, tiers
        ),
        memory=memory,
        draft=guide.backend if guide else None,
        below=tiers,
        adapters=adapters,
        device_memory=backend.device_memory,
    )
    if bundle.card.name in adapters.known:
        raise InvalidModel(f"--lora {bundle.card.name}: the model itself has this name")
    checkpoint.close()
    constraints.warm()  # last: it leaves a thread that computes
    return bundle


class Guide:
    """A draft model on its way: read first, and loaded once it is known how much memory there is for it."""

    def __init__(self, path: Path, settings: Settings, progress: Progress) -> None:
        """Raises what load() does."""
        progress(f"reading the draft model {path.name}")
        self.path = path
        self._encoder = EncoderProcess(path)
        self._checkpoint = open_checkpoint(path)
        self._model = arch.build(self._checkpoint)
        self.backend = new_backend(settings, progress)
        room = _room(self.backend, self._model, settings)
        self.size_bytes = room.weights_bytes + room.work_bytes if room else self.backend.weights_bytes(self._model)
        self.block_bytes = self.backend.kv_block_bytes(self._model, BLOCK_SIZE)

    def drafting(self, tokenizer: Tokenizer, limits: StepLimits, bits: MaskBits) -> DraftModel:
        """Raises InvalidModel where its tokens are not the `tokenizer`'s."""
        own = Tokenizer(self._encoder.vocabulary())
        if differs := difference(tokenizer, own, ("the model", "the draft model")):
            raise InvalidModel(f"the draft model {self.path.name} has another vocabulary: {differs}")
        self.backend.load(self._model, limits)
        self.backend.centre_keys(tokenizer.encode(centring.TEXT))
        self._checkpoint.close()
        return DraftModel(self.backend, tokenizer.vocab_size, limits, self._model.context, bits)


def _room(backend: Backend, model: Model, settings: Settings) -> Room | None:
    """What the device has for the model, before it is known how many blocks it gets."""
    context = settings.runtime.max_seq_len or model.context
    rows = settings.runtime.max_batch_size or ROWS
    return backend.room(model, step_limits(MemoryPlan(0, 0, 0, rows, context), settings))


def step_limits(memory: MemoryPlan, settings: Settings) -> StepLimits:
    return StepLimits(
        tokens=settings.runtime.prefill_chunk_size + memory.rows,
        rows=memory.rows,
        logit_rows=max(memory.rows, 64),
        context=memory.context,
        blocks=memory.reserved_blocks,
        block_size=BLOCK_SIZE,
    )


def speculation(settings: Settings, proposer: Proposer | None = None) -> Speculation:
    """What is guessed about outputs, by the settings."""
    own = settings.speculative
    looks = own.ngram and own.k > 0
    return Speculation(
        SuffixLookup(settings.paths.cache, own.min_match, own.shared_tokens) if looks else None,
        most=own.k,
        costs=StepCosts(),
        jump_ahead=settings.constrained.jump_ahead,
        proposer=proposer if own.k else None,
        why="speculative.ngram is false" if own.k else "speculative.k is 0",
    )


def scheduler(
    tokenizer: Tokenizer,
    pool: BlockPool,
    memory: MemoryPlan,
    limits: StepLimits,
    settings: Settings,
    speculation: Speculation,
    aside: StepLimits | None = None,
    below: Below | None = None,
) -> Scheduler:
    """The scheduler of a model with this vocabulary and this much memory. aside: the largest step
    that its backend can compute aside.   below: what is kept below the pool."""

    def new_decoder(request: Request) -> TextDecoder:
        asked, tail = request.limits, request.prompt[-8:]
        shown = asked.skip_special, tail, asked.visible_ids, asked.reasoning, asked.headers
        return TextDecoder(tokenizer, asked.stop_strings, asked.include_stop, *shown)

    return Scheduler(
        pool,
        context=memory.context,
        max_rows=limits.rows,
        max_tokens=limits.tokens,
        max_logit_rows=limits.logit_rows,
        new_decoder=new_decoder,
        eos_ids=tokenizer.eos_ids,
        speculation=speculation,
        prompt_cap=settings.runtime.prefill_chunk_decode_cap,
        pace=Pace(settings.runtime.max_stall_ms / 1000 or None),
        aside=None if aside is None else Aside(aside.tokens, aside.rows),
        pin_budget=memory.reserved_blocks * settings.server.prefix_pin_budget_pct // 100,
        below=below,
    )


def _card(path: Path, checkpoint: Checkpoint, model: Model, settings: Settings) -> ModelCard:
    return ModelCard(
        name=settings.model.served_name or _name(path),
        architecture=str(checkpoint.config.get("model_type")),
        quantization=checkpoint.quantization,
        parameters=checkpoint.parameters,
        size_bytes=checkpoint.size_bytes,
        trained_context=model.context,
        loaded_at=int(time.time()),
    )


def _name(path: Path) -> str:
    """What clients call the model: its folder's or file's name, without a Nix store's hash."""
    name = path.name if path.is_dir() else path.stem
    return re.sub(r"^[0-9a-z]{32}-", "", name) if path.parent == Path("/nix/store") else name
