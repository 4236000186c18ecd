"""What of the drawn tokens a client may see, and when a sequence ends. Knows text only through the sequence's decoder.

A drawn token first waits in `Sequence.held` with the place where its text begins. It is released once the decoder has
shown a character at or behind that place: so a token without text of its own (the first bytes of a character, a
control token) comes with the text it belongs to, and tokens that lie wholly behind a stop string are never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from imp.types import Delta, Marks, Reason, Request, Row, RowResult, Sequence, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class End:
    """Why a sequence ended: `stop` as in `Finished`."""

    reason: Reason
    stop: str | int | None = None


class DeadEnd(Exception):
    """The constraint refused a drawn token, so there is no valid way on. `code` says whose doing that is: the
    constraint's, which gives a reason; the request's, which forbids what the constraint needs; or else ours."""

    def __init__(self, request: Request, reason: str | None) -> None:
        forbids = request.sampling.allowed is not None or request.sampling.banned
        self.code = "unsatisfiable_constraint" if forbids else "engine_step_failed"
        if reason:
            self.code = "constraint_too_large"
        super().__init__(f"the output cannot be continued in the required format{f': {reason}' if reason else ''}")


def accept(
    seq: Sequence, tokens: list[int], logprobs: list[TokenLogprob], limit: int, eos_ids: frozenset[int]
) -> tuple[str, End | None]:
    """Append drawn tokens until one ends the sequence; those behind it are dropped.

    limit: the length in tokens, prompt included, at which the sequence is full.  eos_ids: they end a constrained text
    even where the request ignores them: its constraint lets them through only where nothing is missing.
    Returns the text that became safe to show, and the end if there is one. Raises DeadEnd.
    """
    decoder, constraint, stop_ids = seq.decoder, seq.constraint, seq.request.limits.stop_ids
    known, held = seq.tokens, seq.held
    assert decoder is not None
    text = ""
    for i, token in enumerate(tokens):
        known.append(token)
        if constraint is not None and not constraint.accept(token):
            raise DeadEnd(seq.request, constraint.error)
        if token in stop_ids or (constraint is not None and token in eos_ids):
            return text, End(Reason.STOP, None if token in eos_ids else token)
        held.append((decoder.seen, token, logprobs[i] if logprobs else None))
        text += decoder.push(token)
        if decoder.stopped is not None:
            return text, End(Reason.STOP, decoder.stopped)
        if constraint is not None and constraint.done:
            return text, End(Reason.STOP)
        if len(known) >= limit:
            return text, End(Reason.LENGTH)
    return text, None


def release(seq: Sequence, text: str, ended: bool) -> Delta | None:
    """The Delta for newly safe text with the tokens it is made of. At the end, everything not cut away is let go."""
    decoder, held = seq.decoder, seq.held
    assert decoder is not None
    if ended and decoder.stopped is None:
        text += decoder.flush()
    if ended and decoder.stopped is None:
        count = len(held)
    else:
        shown, count = decoder.shown, 0
        while count < len(held) and held[count][0] < shown:
            count += 1
    if not count and not text:
        return None
    tokens = tuple([token for _, token, _ in held[:count]])
    logprobs = tuple([logprob for _, _, logprob in held[:count] if logprob is not None])
    del held[:count]
    return Delta(seq.request.id, seq.index, text, tokens, logprobs)


def confirmed(seq: Sequence, end: End) -> End:
    """The end as it is after release(): only the last text may have settled that a stop string was met."""
    stopped = None if seq.decoder is None else seq.decoder.stopped
    return end if stopped is None else End(Reason.STOP, stopped)


def used(seq: Sequence) -> Usage:
    """What one sequence has used so far."""
    return Usage(
        prompt=len(seq.request.prompt),
        cached=seq.cached,
        generated=seq.generated,
        drafted=seq.drafted,
        accepted=seq.accepted,
        reasoning=seq.decoder.reasoning_tokens if seq.decoder else 0,
        verify_steps=seq.verify_steps,
        verified=seq.verified,
        predicted=seq.predicted,
        predicted_accepted=seq.predicted_accepted,
    )


def account(gone: list[Sequence]) -> tuple[Usage, Marks]:
    """What the sequences of one request, ended together, have used: the prompt counts once, as the first one's."""
    if not gone:
        return Usage(), Marks()
    first = min(gone, key=lambda seq: seq.index)
    usage = replace(Usage.total(map(used, gone)), prompt=len(first.request.prompt), cached=first.cached)
    marks = Marks(
        arrived=first.request.arrived,
        scheduled=min((seq.scheduled_at for seq in gone if seq.scheduled_at), default=0.0),
        first_token=min((seq.first_token_at for seq in gone if seq.first_token_at), default=0.0),
        last_token=max(seq.last_token_at for seq in gone),
        masking_s=sum(seq.masking_s for seq in gone),
    )
    return usage, marks


def collect_prompt_logprobs(row: Row, result: RowResult) -> bool:
    """Keep what a chunk says about the prompt; True where that completes it. Raises ValueError for a wrong count."""
    known, prompt = row.seq.prompt_logprobs, len(row.seq.request.prompt)
    if len(known) == prompt:  # computed again after a preemption, or had from the leader
        return False
    if not known:
        known.append(None)
    expected = min(row.start + row.count, prompt - 1) - row.start
    if len(result.prompt_logprobs) != expected:
        raise ValueError(f"{len(result.prompt_logprobs)} prompt logprobs for {expected} prompt tokens")
    known.extend(result.prompt_logprobs)
    return len(known) == prompt
