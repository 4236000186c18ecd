"""From a script's FILE to a Bundle, in the place of weights."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from imp import bundle
from imp.bundle import Bundle, ModelCard
from imp.facts import constraint_compiler, model_facts, template, template_source
from imp.memory import BLOCK_SIZE, MemoryPlan, check_blocks
from imp.sched.blocks import BlockPool
from imp.sched.speculation import Speculation
from imp.script import file, vocabulary
from imp.script.file import Script, ScriptError
from imp.script.runner import ScriptRunner
from imp.settings import Settings
from imp.weights.checkpoint import InvalidModel

_ROWS = 64


class ScriptBackend:
    """What is told of the device where there is none."""

    name = "script"

    def __init__(self, replies: int, loop: bool) -> None:
        self._replies, self._loop = replies, loop

    def describe(self) -> str:
        """One line for the start-up summary."""
        return f"script: {self._replies} replies" + (", again and again" if self._loop else "")

    def close(self) -> None:
        """There is nothing to give back."""


def load(path: Path, settings: Settings) -> Bundle:
    """Raises FileNotFoundError, ScriptError and OutOfMemory."""
    script = file.read(path)
    try:
        return build(script, settings)
    except InvalidModel as error:
        raise ScriptError(f"script {path}: {error}") from None


def build(script: Script, settings: Settings) -> Bundle:
    """A bundle that says what the script says. Raises InvalidModel for a template that cannot be used, and OutOfMemory
    for a context that the blocks asked for cannot hold."""
    source, chosen = script.template, settings.model.chat_template
    pieces = dict.fromkeys(piece for reply in script.replies for piece in reply.pieces)
    tokenizer = vocabulary.tokenizer(template_source(chosen, source) or "", script.control, pieces)
    memory = _memory(script.context, settings)
    pool = BlockPool(memory.blocks, BLOCK_SIZE)
    constraints = constraint_compiler(tokenizer, settings)
    replies = [(reply, vocabulary.token_ids(reply.pieces, tokenizer)) for reply in script.replies]
    runner = ScriptRunner(replies, script.loop, tokenizer, lambda: constraints.tables.rank)
    guesses = _speculation(settings)
    chosen_template = template(source, tokenizer, chosen)
    facts = model_facts(tokenizer, chosen_template, {}, memory.context, settings, constraints)
    return Bundle(
        card=_card(script, settings),
        facts=replace(facts, no_guesses=guesses.off, no_predictions=guesses.no_predictions),
        tokenizer=tokenizer,
        backend=ScriptBackend(len(script.replies), script.loop),
        runner=runner,
        scheduler=bundle.scheduler(tokenizer, pool, memory, bundle.step_limits(memory, settings), settings, guesses),
        memory=memory,
    )


def _speculation(settings: Settings) -> Speculation:
    """A script's tokens come at the times it says, so nothing is guessed but what a constraint forces."""
    return Speculation(jump_ahead=settings.constrained.jump_ahead, why="a script says each token in a step of its own")


def _memory(context: int, settings: Settings) -> MemoryPlan:
    """As much as anybody may want: nothing is stored in these blocks. Raises OutOfMemory as check_blocks does."""
    asked = settings.runtime.max_seq_len
    context = min(context, asked or context)
    if asked:
        check_blocks(settings.kv_cache.max_blocks, context)
    rows = settings.runtime.max_batch_size or _ROWS
    blocks = settings.kv_cache.max_blocks or 4 * -(-context // BLOCK_SIZE) + rows * _ROWS
    return MemoryPlan(0, 0, blocks, rows, min(context, blocks * BLOCK_SIZE))


def _card(script: Script, settings: Settings) -> ModelCard:
    card = ModelCard(
        name=script.model,
        architecture="script",
        quantization="none",
        parameters=0,
        size_bytes=0,
        trained_context=script.context,
        loaded_at=int(time.time()),
    )
    return replace(card, name=settings.model.served_name) if settings.model.served_name else card
