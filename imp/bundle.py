"""Everything that changes when the model changes, loaded together: tokenizer, template, model, backend, scheduler."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from .adapters import Adapters, Shapes, read_named
from .chat.formats.detect import detect
from .chat.formats.registry import FORMATS
from .chat.prepare import Adapted, ModelFacts, Vectors, default_sampling
from .chat.speech import Voice
from .chat.template import BUILTIN, ChatTemplate, TemplateError
from .constrain.code import compile_aside
from .constrain.compiler import Compiler
from .constrain.schema import PropertyOrder, SchemaOptions, Whitespace
from .constrain.tools import Vocabulary
from .constrain.vocab import VocabTables, vocabulary_tables
from .encoder import EncoderProcess
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
from .text.infill import fill_tokens
from .text.tokenizer import Tokenizer
from .tiers import fingerprint
from .tiers.below import Below
from .tiers.folder import BlockFolder, FolderError
from .tiers.shelf import BlockShelf
from .types import DeviceError as DeviceError
from .types import NoDevice, Pool, Proposer, Request, Runner
from .weights.checkpoint import Checkpoint, InvalidModel, TokenizerFiles, open_checkpoint

Progress = Callable[[str], None]

log = logging.getLogger("imp.template")

# strings no repetition is followed across (DRY), as llama.cpp's default has them
_DRY_BREAKERS = ("\n", ":", '"', "*")
_FORCED_TEXTS = 4096  # of some hundred bytes each


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
    from .cpu.ops import CpuBackend

    def ready(count: int, wanted: int) -> None:
        if backend.kernels.compiled:  # nothing to tell where all come from the disk
            progress(f"compiling kernels, once: {count} of {wanted}")

    own, dtype = settings.runtime.threads or None, settings.kv_cache.dtype
    backend = CpuBackend(own, settings.paths.cache, progress=ready, kv_dtype=dtype, sparse=sparse(settings))
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


def load(path: Path, settings: Settings, progress: Progress, draft: Path | None = None) -> Bundle:
    """Load a model, and with it the one that guesses what it will say, `draft`. Raises InvalidModel, UnsupportedModel,
    ContextTooLong, FileNotFoundError, MemoryError, InvalidTokenizer, UnsupportedTokenizer, EncoderGone, FolderError,
    DeviceError, memory.OutOfMemory."""
    progress(f"reading {path.name}")
    encoder = EncoderProcess(path)  # reads its vocabulary while we do the rest
    checkpoint = open_checkpoint(path)
    digest = ThreadPoolExecutor(1).submit(fingerprint.of_files, checkpoint.files) if keeps_on_disk(settings) else None
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
    own_bytes = room.weights_bytes if room else checkpoint.size_bytes
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
    found = facts(tokenizer, own_template, checkpoint.generation, memory.context, settings, constraints)
    bits = _mask_bits(constraints)
    with allocating(memory):
        proposer = guide.drafting(tokenizer, limits, bits) if guide else None
    guesses = speculation(settings, proposer)
    pool = BlockPool(memory.blocks, BLOCK_SIZE, memory.most_blocks, Growth(memory.block_bytes).grant)
    model_files = None if digest is None else digest.result()
    tiers = below(pool, backend, backend.kv_block_bytes(model, BLOCK_SIZE), model_files, settings)
    bundle = Bundle(
        card=_card(path, checkpoint, model, settings),
        facts=replace(
            found,
            vectors=_vectors(checkpoint, model.hidden),
            fill=_fill(checkpoint, tokenizer),
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
        self.size_bytes = room.weights_bytes + room.work_bytes if room else self._checkpoint.size_bytes
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


def keeps_on_disk(settings: Settings) -> bool:
    """Whether KV is to be kept in a folder. Raises FolderError where the settings contradict each other."""
    if settings.kv_cache.disk_dir is None:
        return False
    if not settings.server.prefix_cache:
        raise FolderError("--prefix-cache has nothing to do where server.prefix_cache is false")
    return True


def below(
    pool: BlockPool, backend: Backend, block_bytes: int, model_files: bytes | None, settings: Settings
) -> Below | None:
    """What is kept below the pool, by the settings.   block_bytes: of the backend's.   model_files: a digest of them,
    where a folder is to be kept. Raises FolderError."""
    own, shelf, folder, owner = settings.kv_cache, None, None, b""
    if own.host_mb and settings.server.prefix_cache:
        shelf = BlockShelf(own.host_mb << 20)
    if own.disk_dir is not None and model_files is not None:
        shape = b"%d positions, %d bytes" % (BLOCK_SIZE, block_bytes)
        given = repr(settings.rope).encode()
        owner = fingerprint.owner(model_files, fingerprint.of_code(), backend.fingerprint(), shape, given)
        folder = BlockFolder(own.disk_dir, owner, BLOCK_SIZE, block_bytes, own.disk_mb << 20)
    if shelf is None and folder is None:
        return None

    def read(block: int) -> memoryview:
        return backend.read_block(block).data

    def write(block: int, content: memoryview) -> None:
        backend.write_block(block, np.frombuffer(content, np.uint8))

    return Below(pool, owner, block_bytes, read, write, folder, shelf)


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


def _log_prompt(rendered: str) -> None:
    log.info("rendered prompt: %s", rendered)


def facts(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    generation: Mapping[str, Any],
    context: int,
    settings: Settings,
    constraints: Compiler,
) -> ModelFacts:
    """What preparing a request needs. generation: the model's own generation config."""

    @cache
    def dry_breakers() -> frozenset[int]:
        pieces = ((token, tokenizer.token_text(token)) for token in range(tokenizer.vocab_size))
        return frozenset(token for token, piece in pieces if any(text in piece for text in _DRY_BREAKERS))

    own = settings.generation
    spellings = tuple(sorted(filter(None, map(tokenizer.token_text, tokenizer.special_ids))))
    voice = _voice(template, spellings, settings)
    return ModelFacts(
        tokenizer=tokenizer,
        template=template,
        defaults=default_sampling(generation),
        context=context,
        control_spellings=spellings,
        dry_breakers=dry_breakers,
        max_tokens=own.max_tokens,
        max_input_tokens=own.max_input_tokens,
        max_n=own.max_n,
        think_share=own.think_budget,
        answer_reserve=settings.runtime.think_answer_reserve,
        max_logit_bias=own.max_logit_bias,
        shares_prompts=settings.server.prefix_cache,
        trace_prompt=_log_prompt if settings.diagnostics.debug_template else None,
        constraints=constraints,
        enforces_all=settings.constrained.auto_calls == "all",
        voice=voice,
        visible_ids=_visible(voice, tokenizer),
    )


def _voice(template: ChatTemplate | None, control_spellings: tuple[str, ...], settings: Settings) -> Voice:
    """How the model speaks, with --tool-call-parser and --reasoning-format. Raises InvalidModel."""
    chosen = settings.model.tool_call_parser
    try:
        voice = detect(template, control_spellings, chosen)
    except KeyError:
        message = f"--tool-call-parser {chosen}: not one of auto, {', '.join(FORMATS)}"
        raise InvalidModel(message) from None
    return replace(voice, splits=settings.model.reasoning_format != "none")


def _visible(voice: Voice, tokenizer: Tokenizer) -> frozenset[int]:
    """The control tokens whose text is a marker of the voice, or part of one."""
    markers = voice.markers()
    special = ((token, tokenizer.token_text(token)) for token in tokenizer.special_ids)
    return frozenset(token for token, text in special if text and any(text in marker for marker in markers))


def constraint_compiler(tokenizer: Tokenizer, settings: Settings) -> Compiler:
    """Compiles constraints for this vocabulary; its tables are made when they are first needed."""
    cache_dir, own = settings.paths.cache, settings.constrained

    def tables() -> VocabTables:
        return vocabulary_tables(tokenizer.byte_table, tokenizer.special_ids, tokenizer.eos_ids, cache_dir)

    @lru_cache(_FORCED_TEXTS)  # the engine's thread asks for the same few again and again
    def tokens(text: bytes) -> tuple[int, ...]:
        with suppress(UnicodeDecodeError):
            return tuple(tokenizer.encode(text.decode(), add_special=False))
        return ()

    def encode(text: bytes) -> list[int]:
        return list(tokens(text))

    def vocabulary() -> Vocabulary:
        spellings = {tokenizer.token_text(token): token for token in tokenizer.special_ids}
        known = {text: token for text, token in spellings.items() if text}
        ends = frozenset(text for text, token in known.items() if token in tokenizer.eos_ids)
        return Vocabulary(known, tokenizer.special_ids - tokenizer.eos_ids, ends)

    return Compiler(
        tables,
        encode,
        options=SchemaOptions(
            Whitespace.COMPACT if own.whitespace == "compact" else Whitespace.BOUNDED,
            PropertyOrder(own.property_order),
        ),
        vocabulary=vocabulary,
        max_bytes=own.cache_mb << 20,
        cache_dir=cache_dir,
    )


def _mask_bits(constraints: Compiler) -> MaskBits:
    return MaskBits(constraints.tables.bit_tokens, constraints.tables.bit_aliases)


def _fill(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    files = checkpoint.tokenizer()
    return fill_tokens(tokenizer, None if isinstance(files, TokenizerFiles) else files.metadata)


def _vectors(checkpoint: Checkpoint, hidden: int) -> Vectors:
    """Causal models rarely say how to pool: the mean is right for most. `is_matryoshka` and `matryoshka_dimensions`
    are what published configs say of vectors that may be cut."""
    pool = Pool.MEAN if checkpoint.pooling is None else Pool(checkpoint.pooling)
    sizes = checkpoint.config.get("matryoshka_dimensions")
    if isinstance(sizes, list):
        return Vectors(hidden, pool, tuple(size for size in sizes if type(size) is int and 0 < size <= hidden))
    return Vectors(hidden, pool, range(1, hidden + 1) if checkpoint.config.get("is_matryoshka") is True else ())


def template_source(choice: str, own: str | None) -> str | None:
    """--chat-template: auto (the model's own), none, a built-in name, or a file. Raises InvalidModel."""
    if choice == "none":
        return None
    if choice == "auto":
        return own
    if choice in BUILTIN:
        return BUILTIN[choice]
    if Path(choice).is_file():
        return Path(choice).read_text()
    raise InvalidModel(f"--chat-template {choice}: neither a file nor one of auto, none, {', '.join(BUILTIN)}")


def template(
    own: str | None, tokenizer: Tokenizer, choice: str, named: Mapping[str, str] = MappingProxyType({})
) -> ChatTemplate | None:
    """The template to use, given the model's own source and the choice of --chat-template. Raises InvalidModel.

    named: the model's further ones: `tool_use` is for conversations with tools, or for all where there is no other."""
    tool_use = named.get("tool_use") if choice == "auto" else None
    source = template_source(choice, own or tool_use)
    if source is None:
        return None
    names = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "pad_token": tokenizer.pad_id,
        "unk_token": tokenizer.unk_id,
    }
    # "" where the vocabulary has none: templates add it to a text
    special = {name: "" if token is None else tokenizer.token_text(token) for name, token in names.items()}
    try:
        return ChatTemplate(source, tool_use=tool_use, special_tokens=special)
    except TemplateError as error:
        raise InvalidModel(f"the chat template cannot be used: {error}") from None


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
