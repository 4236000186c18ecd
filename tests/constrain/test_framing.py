"""What may stand before and behind an answer, with the naive simulator; the texts are worked out by hand."""

from __future__ import annotations

import pytest

from imp.constrain.framing import Frame, Thoughts, Ways, outputs
from imp.constrain.free import spelled
from imp.constrain.nfa import Nfa, special
from imp.constrain.tools import NO_CONTROLS, Pattern, Vocabulary
from tests.constrain import simulate

NO_FRAME, FRAME = Frame(), Frame("[", "]")


def accepting(
    frame: Frame = NO_FRAME,
    thoughts: Thoughts | None = None,
    calls: bool = False,
    words: Vocabulary = NO_CONTROLS,
    free: bool = False,
):
    nfa = Nfa()
    call = nfa.literal(b"call", nfa.ret) if calls or free else None
    ways = Ways(None if free else nfa.literal(b"{}", nfa.ret), call, free)
    start = outputs(nfa, ways, frame, thoughts, words)
    return lambda text: simulate.accepts(nfa, start, text)


def check(accepts, yes: tuple[bytes, ...], no: tuple[bytes, ...]) -> None:
    for text in yes:
        assert accepts(text), text
    for text in no:
        assert not accepts(text), text


def test_g03_09_the_constraint_begins_behind_the_reasoning():
    accepts = accepting(thoughts=Thoughts(b"", b"</think>"), words=Vocabulary({}, frozenset({5})))
    check(
        accepts,
        (b"thinking {\n</thin </think>{}", b"</think>\n\n{}", b"a" + special(5) + b"</think>\n{}"),
        (b"{}", b"thinking", b"</think>", b"</think>prose", b"</think>\n\n\n{}", b"</think>{}x", special(6) + b"</think>{}"),
    )  # fmt: skip


def test_reasoning_that_may_be_left_out():
    check(
        accepting(thoughts=Thoughts(b"<think>", b"</think>")),
        (b"{}", b"<think>hm</think>\n{}", b"\n<think>hm</think>{}", b"\n\n<think></think>{}", b" <think></think>{}"),
        (b"hm</think>{}", b"\n{}", b"\n\n\n<think></think>{}", b"<think>hm", b"<think>hm</think>"),
    )


def test_markers_that_are_control_tokens():
    close = spelled("</think>", {"</think>": 9})
    check(
        accepting(thoughts=Thoughts(b"", close)),
        (b"the text </think> is not the token" + special(9) + b"{}",),
        (b"</think>{}",),
    )


@pytest.mark.parametrize("thoughts", [None, Thoughts(b"<", b">"), Thoughts(b"<", b">", b"turn")])
def test_an_answer_in_its_frame(thoughts):
    accepts = accepting(FRAME, thoughts)
    check(accepts, (b"[{}", b"[{}]"), (b"{}", b"[{}]]", b"[]", b"[", b"]", b"\n[{}"))
    if thoughts is not None:
        turn = thoughts.turn
        check(
            accepts, (b"<a>" + turn + b"[{}", b"<>" + turn + b"[{}]"), (b"<a>{}", b"<a>" + turn + b"{}", b"<a" + turn)
        )


def test_a_frame_that_the_prompt_has_begun_is_begun_again_behind_reasoning():
    accepts = accepting(Frame("[", "]", begun=True), Thoughts(b"<", b">"))
    check(accepts, (b"{}", b"{}]", b"<a>[{}]"), (b"[{}]", b"<a>{}"))


def test_a_frame_that_only_reasoning_asks_for():
    accepts = accepting(Frame("[", (Pattern("\\n?"), "]"), thought=True), Thoughts(b"<", b">"))
    check(accepts, (b"{}", b"<a>[{}]", b"<a>\n[{}\n]", b"<a>[{}"), (b"{}]", b"[{}]", b"<a>{}", b"<a>[{}\n"))


def test_no_line_ends_before_a_control_token():
    words = Vocabulary({"[": 7}, frozenset({7}))
    check(
        accepting(FRAME, Thoughts(b"", b">"), words=words),
        (b"a>" + special(7) + b"{}]",),
        (b"a>\n" + special(7) + b"{}", b"a>[{}"),
    )


def test_calls_stand_in_the_place_of_the_framed_answer():
    accepts = accepting(FRAME, Thoughts(b"<", b">"), calls=True)
    check(accepts, (b"call", b"[{}]", b"<a>call", b"<a>\ncall", b"<a>[{}"), (b"[call]", b"<a>[call]", b"callcall"))
    accepts = accepting(FRAME, Thoughts(b"<", b">", b"turn"), calls=True)
    check(accepts, (b"call", b"[{}]", b"<a>turncall", b"<a>turn[{}]"), (b"<a>call", b"turncall", b"<a>[{}]"))


def test_calls_that_leave_an_empty_answer_behind():
    accepts = accepting(Frame("[", "]", "[]", "]"), Thoughts(b"<", b">"), calls=True)
    check(accepts, (b"[]call", b"[{}]", b"<a>[]call"), (b"call", b"]call", b"<a>call", b"[{}]call"))
    accepts = accepting(Frame("[", "]", "[]", "]", begun=True), Thoughts(b"<", b">"), calls=True)
    check(accepts, (b"]call", b"{}", b"{}]", b"<a>[]call"), (b"call", b"[]call", b"<a>]call"))


def test_line_ends_behind_a_prompt_that_closed_the_reasoning():
    check(accepting(Frame(lines=True)), (b"{}", b"\n{}", b"\n\n{}"), (b"\n\n\n{}", b" {}", b"\n"))
    check(accepting(Frame("[", lines=True), calls=True), (b"[{}", b"\n[{}", b"\ncall"), (b"[\n{}", b"{}"))
    check(accepting(Frame(lines=True), free=True), (b"call",), (b"\ncall",))


def test_an_output_may_end_inside_reasoning_where_nothing_is_asked_of_it():
    framed = Frame("[", "]", "[]", "]")
    check(accepting(framed, Thoughts(b"", b">", b"turn"), free=True), (b"", b"hm", b"hm>call"), (b"hm>", b"hm>turncall"))
    check(accepting(framed, Thoughts(b"<", b">"), free=True), (b"<", b"<hm", b"call", b"<>call"), (b"", b"hm", b"<>"))
