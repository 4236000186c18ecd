"""What requests are prepared by: what a model's vocabulary, template and configuration say, with the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .chat.formats.detect import detect
from .chat.formats.registry import FORMATS
from .chat.prepare import ModelFacts, Vectors, default_sampling
from .chat.speech import Voice
from .chat.template import BUILTIN, ChatTemplate, TemplateError
from .constrain.compiler import Compiler
from .constrain.schema import PropertyOrder, SchemaOptions, Whitespace
from .constrain.tools import Vocabulary
from .constrain.vocab import VocabTables, vocabulary_tables
from .model.plan import MaskBits
from .settings import Settings
from .text.infill import fill_tokens
from .text.tokenizer import Tokenizer
from .types import Pool
from .weights.checkpoint import Checkpoint, InvalidModel, TokenizerFiles

log = logging.getLogger("imp.template")

# strings no repetition is followed across (DRY), as llama.cpp's default has them
_DRY_BREAKERS = ("\n", ":", '"', "*")
_FORCED_TEXTS = 4096  # of some hundred bytes each


def _log_prompt(rendered: str) -> None:
    log.info("rendered prompt: %s", rendered)


def model_facts(
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


def mask_bits(constraints: Compiler) -> MaskBits:
    """What its masks are made of."""
    return MaskBits(constraints.tables.bit_tokens, constraints.tables.bit_aliases)


def fill(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The control tokens of infilling; None: it has none."""
    files = checkpoint.tokenizer()
    return fill_tokens(tokenizer, None if isinstance(files, TokenizerFiles) else files.metadata)


def vectors(checkpoint: Checkpoint, hidden: int) -> Vectors:
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
