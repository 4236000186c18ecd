"""What a bundle is made of: its chat template, its backend."""

from __future__ import annotations

import pytest

from imp.bundle import new_backend, sparse
from imp.facts import template
from imp.model.sparse import Sparse
from imp.settings import load
from imp.types import NoDevice
from imp.weights.checkpoint import InvalidModel
from tests.text import toys

ASKED = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"tool_use": "U", "rag": "R"}


@pytest.mark.parametrize(
    ("own", "choice", "alone", "with_tools"),
    [("D", "auto", "D", "U"), (None, "auto", "U", "U"), ("D", "chatml", "<|im_start|>user", "<|im_start|>user")],
)
def test_a_models_template_for_tools_is_used_unless_another_is_chosen(own, choice, alone, with_tools):
    found = template(own, toys.byte_tokenizer(), choice, NAMED)
    assert found is not None
    assert found.render(ASKED).startswith(alone) and found.render(ASKED, tools=TOOLS).startswith(with_tools)


def test_control_tokens_that_a_vocabulary_lacks_are_empty_texts():
    """Templates add them to a text; with nothing there, that would be an error."""
    found = template("{{ pad_token + '|' + bos_token }}", toys.byte_tokenizer(), "auto")
    assert found is not None and found.render(ASKED) == "|" + toys.BEGIN


def test_there_may_be_none():
    assert template(None, toys.byte_tokenizer(), "auto") is None
    assert template("D", toys.byte_tokenizer(), "none", NAMED) is None
    with pytest.raises(InvalidModel):
        template("{% if %}", toys.byte_tokenizer(), "auto")


def test_sparse_attention_reaches_the_backend():
    assert new_backend(load([], {"HOME": "/nowhere"}), print).sparse.top == 0
    words = ["topk_tokens=64", "sink_tokens=0", "recent_tokens=32", "min_ctx=100"]
    flags = [flag for word in words for flag in ("--set", f"attention.sparse_{word}")]
    for device in ("auto", "cpu", "reference"):
        settings = load(["--device", device, *flags], {"HOME": "/nowhere"})
        backend = new_backend(settings, lambda line: None)
        assert backend.sparse == sparse(settings) == Sparse(64, sink=0, recent=32, least=100)
        assert backend.name == ("reference" if device == "reference" else "cpu")


def test_sparse_attention_is_not_for_gpus():
    with pytest.raises(NoDevice, match="for the CPU alone"):
        new_backend(load(["--device", "cuda", "--set", "attention.sparse_topk_tokens=64"], {"HOME": "/nowhere"}), print)
