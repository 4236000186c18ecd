"""Says what the script says, a token a step, as a model would: masks are honoured, delays are slow steps of one row.

Belongs to the engine thread. Only `log` is read elsewhere; it is replaced, never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from imp.script.file import Reply
from imp.text.tokenizer import Tokenizer
from imp.types import Batch, Row, RowResult, TokenLogprob
from imp.types import Sequence as Seq

WAIT_S = 0.004  # a step in which nobody is due; new requests and leaving clients wait no longer
LOGGED = 1000  # requests remembered
NO_REPLY = "the script has no reply left for this request"
FAILS = "the script lets this request fail"


@dataclass(slots=True)
class _Progress:
    """One sequence on its way through its reply."""

    reply: Reply | None  # None: the script is used up
    tokens: tuple[int, ...] = ()
    due: float = math.inf  # time.monotonic() of the next token; inf: the prompt is not computed yet


class ScriptRunner:
    """types.Runner. Sequences take `replies` in the order in which they are first computed; `loop` starts again."""

    def __init__(
        self,
        replies: Sequence[tuple[Reply, tuple[int, ...]]],
        loop: bool,
        tokenizer: Tokenizer,
        mask_bits: Callable[[], np.ndarray],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """mask_bits: int32 [vocabulary], the bit of each token in the masks of constraints; asked when there is one."""
        self.log: tuple[dict[str, Any], ...] = ()
        self._replies, self._loop = replies, loop
        self._tokenizer, self._mask_bits = tokenizer, mask_bits
        self._clock, self._sleep = clock, sleep
        self._taken = 0
        self._progress: WeakKeyDictionary[Seq, _Progress] = WeakKeyDictionary()
        self._substitutes = _substitutes(tokenizer)

    def step(self, batch: Batch) -> list[RowResult]:
        now = self._clock()
        results = [self._row(row, now) for row in batch.rows]
        if all(result.late for result in results):
            due = min(self._progress[row.seq].due for row in batch.rows)
            self._sleep(max(0.0, min(due - now, WAIT_S)))
        return results

    def _row(self, row: Row, now: float) -> RowResult:
        seq, result = row.seq, RowResult([])
        progress = self._progress.get(seq)
        if progress is None:
            progress = self._progress[seq] = self._take(seq)
        reply = progress.reply
        if row.wants_prompt_logprobs:
            prompt, count = seq.request.prompt, seq.request.sampling.prompt_logprobs
            following = range(row.start + 1, min(row.start + row.count, len(prompt) - 1) + 1)
            result.prompt_logprobs = [self._report(prompt[p], reply, count) for p in following]
        if not row.reaches_end or not seq.request.limits.max_tokens:
            return result
        if reply is None:
            result.error = NO_REPLY
            return result
        if progress.due == math.inf:
            progress.due = now + reply.first_delay_s
        if now < progress.due:
            result.late = True
            return result
        progress.due = now + reply.delay_s
        self._draw(seq, progress.tokens, reply, result)
        return result

    def _draw(self, seq: Seq, tokens: tuple[int, ...], reply: Reply, result: RowResult) -> None:
        """The next token, and those behind it as long as they are what the row's draft guessed."""
        wanted, constraint, walked = seq.request.sampling.logprobs, seq.constraint, 0
        for guess in [*seq.draft, None]:
            token = self._next(seq, seq.generated + len(result.tokens), tokens, reply)
            if token is None:
                result.error = "" if result.tokens else FAILS  # what was said before the failure goes out first
                break
            result.tokens.append(token)
            if wanted is not None:
                result.logprobs.append(self._report(token, reply, wanted))
            if token != guess:
                break
            if constraint is not None:
                walked += constraint.accept(token)
                if constraint.done:
                    break
        if constraint is not None and walked:
            constraint.rollback(walked)

    def _take(self, seq: Seq) -> _Progress:
        """The next reply, and the request into the log."""
        taken = None
        if seq.request.limits.max_tokens and (self._loop or self._taken < len(self._replies)):
            taken = self._taken % len(self._replies)
            self._taken += 1
        self.log = (*self.log[1 - LOGGED :], logged(seq, taken, self._tokenizer))
        return _Progress(None) if taken is None else _Progress(*self._replies[taken])

    def _next(self, seq: Seq, at: int, tokens: tuple[int, ...], reply: Reply) -> int | None:
        """The scripted token, or what a sampler could draw where that is forbidden. None: here the request fails."""
        stops = seq.request.limits.stop_ids
        early = at < seq.request.limits.min_tokens
        end = self._tokenizer.eos_id
        assert end is not None
        if at < len(tokens):
            wanted = tokens[at]
        elif reply.error:
            return None
        elif tokens and (reply.endless or early or end not in stops):  # a model that may not end goes on
            wanted = tokens[at % len(tokens)]
        else:
            wanted = end
        forbidden = stops if early else frozenset()
        if seq.constraint is None:
            return wanted if wanted not in forbidden else next(t for t in self._substitutes if t not in forbidden)
        bits = self._mask_bits()
        mask = np.zeros(-(-int(bits.max() + 1) // 32), np.uint32)
        seq.constraint.fill_mask(mask)
        choices = (t for t in (wanted, *self._substitutes) if mask[bits[t] // 32] >> np.uint32(bits[t] % 32) & 1)
        # nothing allowed: the scheduler meets the dead end with whatever comes
        return next((t for t in choices if t not in forbidden), wanted)

    def _report(self, token: int, reply: Reply | None, count: int | None) -> TokenLogprob:
        """The scripted log-probability; the substitutes, in their order, share the rest by halves."""
        own = reply.logprob if reply else -0.1
        rest = math.log(max(-math.expm1(own), 1e-30))
        others = (t for t in self._substitutes if t != token)
        top = [(t, rest - (i + 1) * math.log(2)) for i, t in zip(range(count or 0), others, strict=False)]
        ranked = sorted([(token, own), *top], key=lambda each: -each[1])
        better = math.ceil((rest - own) / math.log(2)) - 1  # halvings of the rest that stay above `own`
        return TokenLogprob(token, own, tuple(ranked[: count or 0]), 1 + max(better, 0))


def _substitutes(tokenizer: Tokenizer) -> tuple[int, ...]:
    """All tokens, those first that bring a constrained text to its end: end tokens, closing marks, visible bytes."""
    ends = sorted(tokenizer.eos_ids)
    closing = list(b'"}]')
    visible = range(0x21, 0x7F)
    return tuple(dict.fromkeys([*ends, *closing, *visible, *range(tokenizer.vocab_size)]))


def logged(seq: Seq, reply: int | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """What /script/log tells of one sequence: the prompt as text, and the parameters as the engine got them."""
    request = seq.request
    sampling, limits = request.sampling, request.limits
    shown = {name: getattr(sampling, name) for name in sampling.__slots__ if name not in ("bias", "dry_breakers")}
    parameters = shown | {
        "logit_bias": {str(token): value for token, value in sampling.bias},
        "max_tokens": limits.max_tokens,
        "min_tokens": limits.min_tokens,
        "stop": list(limits.stop_strings),
        "stop_token_ids": sorted(limits.stop_ids - tokenizer.eos_ids),
        "ignore_eos": not tokenizer.eos_ids <= limits.stop_ids,
        "include_stop_str_in_output": limits.include_stop,
        "skip_special_tokens": limits.skip_special,
        "n": request.n,
        "priority": request.priority,
        "constrained": request.constraint is not None,
    }
    return {
        "id": request.id,
        "choice": seq.index,
        "reply": reply,
        "prompt": tokenizer.decode(request.prompt),
        "prompt_tokens": len(request.prompt),
        "parameters": parameters,
    }
