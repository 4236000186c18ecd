"""The vocabulary every layer speaks. Plain values; imports nothing of ours.

Frozen values cross threads. `Sequence`, `Row`, `Batch` and `RowResult` are mutable and belong to the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Reason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # a stop string, a stop token or the model's end-of-text
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the client left or asked for it


class Pool(Enum):
    """What is wanted of a prompt instead of its continuation; hidden states are those after the model's final norm."""

    MEAN = "mean"  # the mean of all positions' hidden states
    FIRST = "cls"  # the first position's
    LAST = "last"  # the last position's
    SCORE = "score"  # the log-probabilities of Sampling.logprob_tokens behind the last position


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn from the logits; `model/sampling.py` gives the order of operations."""

    temperature: float = 0.7  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = -1  # tokens the three penalties look back; -1: all
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_breakers: frozenset[int] = frozenset()  # tokens no repetition is followed across
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0  # 0 off, 1, 2
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)
    seed: int = 0  # sequence i of a request draws with seed + i
    logprobs: int | None = None  # alternatives reported per generated token; None: no logprobs at all
    prompt_logprobs: int | None = None  # the same for prompt tokens; switches the prefix cache off for the request
    banned: tuple[tuple[int, ...], ...] = ()  # sequences of tokens that the output never completes
    allowed: tuple[int, ...] | None = None  # the only tokens that may be drawn
    logprob_tokens: tuple[int, ...] = ()  # reported with every generated token as well, however unlikely


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model marks that it thinks before it answers."""

    open: str
    close: str
    started: bool  # the prompt ends inside it; else it may begin with the output's first text
    turn: str = ""  # what begins the next message behind it, where an output is several
    opener: str = ""  # what may begin the answer behind it, and is none of it
    late: bool = False  # where it is closed at once, it may go on all the same, and be closed again
    again: str | None = None  # where there may be more of it later: what `open` has in common with other openers


@dataclass(frozen=True, slots=True)
class Headers:
    """Of outputs that are several messages: what stands between one of `begins` and one of `ends` is said to nobody.
    first: how a header goes on that the prompt may have begun; "": it begins none, or `begun` always does."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    first: str = ""
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends, and what of its end is shown."""

    max_tokens: int = 16
    min_tokens: int = 0  # no stop token (and no end-of-text) may be drawn before
    stop_ids: frozenset[int] = frozenset()  # end-of-text ids included, unless ignore_eos
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False  # keep the matched stop string in the text
    skip_special: bool = True  # control tokens leave no text
    visible_ids: frozenset[int] = frozenset()  # but for these, whose text says where parts of the answer begin and end
    reasoning: Reasoning | None = None  # stop strings wait for its end; its tokens are counted
    headers: Headers | None = None  # no stop strings are looked for in them
    frame: Hashable | None = None  # constrain.framing.Frame: what stands around an answer that must have a form


class Constraint(Protocol):
    """Which tokens may come next for one sequence. Errors latch: `done` and an empty mask, never an exception."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> str | None:
        """Why nothing may come next, where that is a fault and not the end."""

    def ready(self) -> bool:
        """Whether the rest of this answers at once. If not, that is worked out elsewhere: ask again later, and nothing
        else of this or of other constraints of its grammar until then."""

    def fill_mask(self, out: Any) -> None:
        """out: uint32; bit b % 32 of word b // 32 is set where the token of bit b may come next.

        Which token that is, the runner was told: masks may be in any order that suits the constraints."""

    def accept(self, token: int) -> bool: ...
    def rollback(self, count: int) -> None: ...
    def forced(self) -> list[int]: ...


class CompiledGrammar(Protocol):
    def start(self) -> Constraint: ...


class ConstraintKind(Enum):
    """How a constraint is written."""

    JSON_SCHEMA = "json_schema"  # text: the schema as JSON; `true` allows any JSON value
    REGEX = "regex"
    CHOICE = "choice"  # text: a JSON array of strings
    GRAMMAR = "grammar"  # GBNF or Lark, told apart by what is in it
    TOOLS = "tools"  # calls of tools; text: constrain.calling.Wanted as JSON


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What a client wants the output to be, before it is compiled. Equal specs compile to the same grammar."""

    kind: ConstraintKind
    text: str
    param: str = field(default="", compare=False)  # the request's field it came from, for errors
    compact: bool | None = None  # JSON without whitespace; None: as the server is set
    envelopes: tuple[Hashable, ...] = ()  # for TOOLS, constrain.tools.Envelope: the ways in which calls may be written
    reasoning: Reasoning | None = None  # may come first, or has begun already: it is free text
    frame: Hashable | None = None  # constrain.framing.Frame: what stands around an answer in words


@dataclass(frozen=True, slots=True)
class Drafting:
    """What may be guessed of an output before it is computed. It changes when the output comes, never what it is."""

    wanted: bool = True
    prediction: tuple[int, ...] = ()  # what the caller expects the output to be
    shares: bool = False  # outputs of requests of one owner and salt serve as guesses for each other


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants generated. Immutable: all progress lives in `Sequence`."""

    id: str
    prompt: tuple[int, ...]  # never empty
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    n: int = 1
    priority: int = 0  # lower is more urgent
    constraint: CompiledGrammar | None = None
    adapter: int | None = None  # the runner's: where it keeps the adapter that is added to the model's matrices
    salt: bytes = b""  # adapter, media, tenant: whatever makes equal tokens mean different KV
    shares: bool = True  # others may have the same salt, so what is computed is worth keeping for them
    pin: int = 0  # leading tokens of the prompt whose KV is kept for later requests, as far as the budget for it goes
    pool: Pool | None = None  # numbers about the prompt are wanted, no tokens: limits.max_tokens is 0 then
    drafting: Drafting = Drafting()
    owner: str = ""  # whose it is: a name of its API key; "" where there are no keys. Owners get fair shares
    arrived: float = 0.0  # time.monotonic() at the door


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's raw model log-probability, and those of the likeliest alternatives, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0  # 1: the likeliest token of the vocabulary; 0: not asked for
    asked: tuple[tuple[int, float], ...] = ()  # those of Sampling.logprob_tokens, in their order


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int = 0
    cached: int = 0
    generated: int = 0  # every token drawn, the stop token too
    drafted: int = 0
    accepted: int = 0
    reasoning: int = 0  # of those generated, its markers included
    verify_steps: int = 0  # rows that carried a draft
    verified: int = 0  # tokens these rows gave, accepted ones and those behind them
    predicted: int = 0  # of those drafted, from Drafting.prediction
    predicted_accepted: int = 0

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        """The sum, field by field."""
        rows = [tuple(getattr(usage, f.name) for f in fields(cls)) for usage in usages]
        return cls(*map(sum, zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class Marks:
    """time.monotonic() readings of one sequence; 0.0: has not happened."""

    arrived: float = 0.0
    scheduled: float = 0.0  # first row planned
    first_token: float = 0.0
    last_token: float = 0.0
    masking_s: float = 0.0  # not a reading: seconds its token masks took


@dataclass(frozen=True, slots=True)
class Started:
    """The first row of a sequence was computed."""

    request: str
    index: int
    prompt_tokens: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is safe to show, with the tokens it is made of. `text` may be empty while tokens go on."""

    request: str
    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each of `tokens` where asked for


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Sent once, before the first Delta, where asked for: one entry per prompt token, None for the first."""

    request: str
    index: int
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    request: str
    index: int
    reason: Reason
    stop: str | int | None  # the stop string or stop token that ended it; None for end-of-text and length
    usage: Usage
    marks: Marks = Marks()
    vector: tuple[float, ...] | None = None  # what Request.pool wants; hidden states are not normalised
    thinks: bool = False  # the output ends inside the reasoning


@dataclass(frozen=True, slots=True)
class Failed:
    """The server could not go on with this request; every sequence of it is gone."""

    request: str
    code: str  # engine_step_failed, engine_faulted, kv_pool_floored, context_length_exceeded, draining, queue_timeout
    message: str  # safe to show: no paths, no traceback
    usage: Usage = Usage()  # of the sequences that had not finished; the prompt once, as their first one found it
    marks: Marks = Marks()  # the first schedule and token, and the last token, of those sequences


Event = Started | Delta | PromptLogprobs | Finished | Failed


class Decoder(Protocol):
    """Tokens in, text that is safe to show out (text/decode.py)."""

    stopped: str | None  # the stop string that was met

    @property
    def seen(self) -> int:
        """Characters decoded so far, held back ones included."""

    @property
    def shown(self) -> int:
        """Characters returned so far."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens pushed before the answer began."""

    @property
    def thinks(self) -> bool:
        """The text ends inside the reasoning."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Source(Enum):
    """Where a guess comes from: what is known of its kind says how likely it is."""

    FORCED = 0  # a constraint leaves no other text
    RUNNER = 1  # the runner proposed it with the last step's results
    RUN = 2  # followed the same tokens before, in this text
    NEAR = 3  # the same, but in a text that is being copied with changes
    REPLACEMENT = 4  # stands in such a text at the same distance
    SHARED = 5  # followed the same tokens in another output of the tenant
    MODEL = 6  # a smaller model's


class Guess(NamedTuple):
    tokens: list[int]
    source: Source
    matched: int  # tokens before the guess that were found before it
    expected: int = 0  # leading tokens that come from Drafting.prediction


class Lookup(Protocol):
    """Finds what a text may go on with, in what is known of it. Cheap: called for every sequence in every step."""

    def guess(self, seq: Sequence, ahead: list[int], most: int) -> Guess | None:
        """At most `most` tokens to follow those of `seq` and the guessed ones in `ahead`."""

    def ended(self, seq: Sequence) -> None:
        """It will not be asked about again."""

    def forget(self) -> None:
        """What is known of sequences that have ended."""


class Proposer(Protocol):
    """Guesses by computing. Not cheap: asked where its guesses are expected to pay."""

    failed: str  # why it proposes nothing any more; empty: it does

    def propose(self, wanted: list[tuple[Sequence, int]]) -> float:
        """Give each of these sequences, which have none, a draft of at most so many tokens; seconds it took.

        Their blocks hold all positions but the last of these."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """One continuation of one request: how far it has got and where its KV lives.

    `computed` counts the leading tokens whose KV is in `blocks`. A step exists to make `computed` catch up with
    `len(tokens) + len(draft)`; prefill, decode, chunking, cache hits, speculation and recovery from preemption are
    all just different distances to catch up.
    """

    request: Request
    index: int
    arrival: int
    tokens: list[int]
    stamp: float = 0.0  # in the scheduler's virtual time
    rank: tuple[float, int, int] = (0.0, 0, 0)  # its turn: the smallest comes first
    computed: int = 0
    draft: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of every full block of `tokens`
    published: int = 0  # leading blocks already offered to the prefix cache
    started: bool = False
    cached: int = 0  # prompt tokens found in the prefix cache when first scheduled
    constraint: Constraint | None = None
    decoder: Decoder | None = None
    held: list[tuple[int, int, TokenLogprob | None]] = field(default_factory=list)  # (offset, token, logprob) not shown
    followers: list[Sequence] = field(default_factory=list)  # siblings (n > 1) waiting for this one's prompt
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    mu: float = 0.0  # mirostat's running surprise target
    pooled: Any = None  # the runner's: hidden states summed so far (Request.pool)
    drafted: int = 0  # this and the next five as in Usage
    accepted: int = 0
    verify_steps: int = 0
    verified: int = 0
    predicted: int = 0
    predicted_accepted: int = 0
    looked_below: bool = False  # what is kept below the pool has been fetched, as far as there is any
    guided: int = 0  # leading positions that the draft model has computed
    history: Any = None  # the Lookup's
    drafts: Any = None  # what the scheduler has learnt of guesses about it
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    masking_s: float = 0.0  # spent on token masks

    @property
    def pending(self) -> int:
        return len(self.tokens) + len(self.draft) - self.computed

    @property
    def in_prompt(self) -> bool:
        """Whether the next position to compute is one of the prompt's."""
        return self.computed < len(self.request.prompt)

    @property
    def in_one_row(self) -> int:
        """How many of the pending positions may be in one row: those up to the prompt's end, or all behind it."""
        return min(self.pending, len(self.request.prompt) - self.computed) if self.in_prompt else self.pending

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(slots=True)
class Row:
    """One sequence's share of a step: compute positions [start, start + count), all of the prompt or all behind it."""

    seq: Sequence
    start: int
    count: int

    @property
    def is_prompt(self) -> bool:
        """Whether its positions are the prompt's. Backends may compute those in other arithmetic than an output's."""
        return self.start < len(self.seq.request.prompt)

    @property
    def reaches_end(self) -> bool:
        return self.start + self.count == len(self.seq.tokens) + len(self.seq.draft)

    @property
    def inputs(self) -> list[int]:
        seq, end = self.seq, self.start + self.count
        known = len(seq.tokens)
        if end <= known:
            return seq.tokens[self.start : end]
        return (seq.tokens + seq.draft)[self.start : end]

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Logits are wanted at every position of this row that predicts a prompt token."""
        request = self.seq.request
        return request.sampling.prompt_logprobs is not None and self.start < len(request.prompt) - 1


Copy = tuple[int, int]  # KV block to copy from, and to


def _never() -> bool:
    return False


@dataclass(slots=True)
class Batch:
    rows: list[Row]
    copies: list[Copy] = field(default_factory=list)  # made in this order before anything is computed
    # Rows that are computed aside, for so long in every step until they have been: none of them reaches the end, and
    # all are of prompts or none is. It is the same list until then; another one gives it up. How long it took in this
    # step is the runner's to say.
    aside: list[Row] = field(default_factory=list)
    aside_s: float = math.inf
    aside_took_s: float = 0.0
    hurried: Callable[[], bool] = field(default=_never)  # whether somebody more urgent than those aside has come


@dataclass(slots=True)
class RowResult:
    """`tokens` is empty unless the row reached the end: then accepted drafts plus one new token."""

    tokens: list[int]
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one per token where asked for
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # positions start + 1 .., as far as prompt
    draft: list[int] = field(default_factory=list)  # proposals for the next step
    late: bool = False  # the row reached the end, and its token is not there yet: it comes again
    pending: bool = False  # it is computed aside, and has not been yet
    error: str = ""  # safe to show: this row's request alone cannot go on
    vector: tuple[float, ...] | None = None  # of a row that reached the end, where the request pools


class DeviceError(Exception):
    """A device of the machine cannot do what it is asked to. Exit code 3."""


class NoDevice(DeviceError):
    """There is no device to run on: one sentence, why."""


class DeviceLost(DeviceError):
    """What computes is gone for as long as this process lives: no later step can succeed."""


class Runner(Protocol):
    """Turns a Batch into RowResults, of its rows and of those aside, in their order. May raise: then all their requests
    fail; after DeviceLost everybody's."""

    def step(self, batch: Batch) -> list[RowResult]: ...
