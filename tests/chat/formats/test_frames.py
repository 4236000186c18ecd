"""What every public template puts around an answer is what an answer that must have a form may have around it.

The judge is the template: of a conversation it writes what a model was taught to write.
"""

from __future__ import annotations

import pytest

from imp.chat import probes
from imp.chat.formats.detect import detect
from imp.constrain.compiler import build
from imp.constrain.free import spelled
from imp.constrain.nfa import Nfa
from imp.constrain.tools import Vocabulary
from imp.script.vocabulary import control_tokens
from imp.types import ConstraintKind, ConstraintSpec
from tests.chat.formats.test_detect import TABLE, template
from tests.constrain import simulate

FORMED, THOUGHT = '{"answer":4}', "so, two and two"
ASKED = {"role": "user", "content": "2+2?"}
NEEDS_TOOLS = {"fireworks-ai-llama-3-firefunction-v2", "meetkai-functionary-medium-v3.1", "meetkai-functionary-medium-v3.2"}
OTHERWISE = {  # what these templates write of an answer is not what they tell a model to write
    "CohereForAI-c4ai-command-r-plus-tool_use": "a new turn of the system's comes behind every answer",
    "NVIDIA-Nemotron-Nano-v2": "an answer stands behind an opening marker that nothing closes",
}
SPACE_FIRST = {"Reka-Edge"}  # the place for the answer ends in front of a space that every answer begins with
SWITCHED = [(row, switched) for row in TABLE if row.template not in OTHERWISE for switched in ((True, False) if row.switch else (None,))]


def accepts(name: str, prompt: str, text: str) -> list[int]:
    """Where in the text an answer to the prompt may end."""
    known = template(name)
    voice = detect(known)
    controls = {token: at for at, token in enumerate(control_tokens(known.source), 5)}
    spec = ConstraintSpec(
        ConstraintKind.JSON_SCHEMA,
        '{"type": "object"}',
        reasoning=voice.reasoning(prompt),
        frame=voice.framed(prompt),
    )
    nfa = Nfa()
    start = build(spec, nfa, vocabulary=Vocabulary(controls, frozenset(controls.values())))
    ends = range(text.index(FORMED) + len(FORMED), len(text) + 1)
    return [end for end in ends if simulate.accepts(nfa, start, spelled(text[:end], controls))]


def behind(prompt: str, whole: str) -> str:
    """What of the conversation comes where the prompt ends, or where it goes on differently."""
    common = next((at for at, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    begun = whole.rfind("<", 0, common)
    return whole[begun if begun >= 0 and ">" not in whole[begun:common] else common :]


@pytest.mark.parametrize(("row", "switched"), SWITCHED, ids=lambda each: getattr(each, "template", str(each)))
def test_an_answer_stands_where_the_template_puts_it(row, switched):
    known = template(row.template)
    voice = detect(known)
    variables = {voice.switch.name: voice.switch.on if switched else voice.switch.off} if voice.switch else {}
    tools = probes.TOOLS if row.template in NEEDS_TOOLS else voice.no_tools
    prompt = probes.rendered(known, [ASKED], tools=tools, **variables)
    assert prompt is not None
    thinks = row.opens is not None and switched is not False and voice.thinks(prompt) is not False
    said = {"role": "assistant", "content": FORMED} | ({"reasoning_content": THOUGHT} if thinks else {})
    whole = probes.rendered(known, [ASKED, said], tools=tools, add_generation_prompt=False, **variables)
    assert whole is not None
    text = behind(prompt, whole)
    if voice.thinking is not None and not whole.startswith(prompt):  # the history has not all markers of the prompt
        text = text.removeprefix(voice.thinking.close)
        if voice.thinks(prompt):
            text = THOUGHT + voice.thinking.close + (text.partition(voice.thinking.close)[2] or text)
    if row.template in SPACE_FIRST:
        text = text.removeprefix(" ")
    ends = accepts(row.template, prompt, text)
    assert ends, (prompt[-60:], text)
    left = text[ends[-1] :].strip()
    assert not left or left[0] in "<[", "what is left ends the turn"
    assert THOUGHT not in left and "\"answer\"" not in left


@pytest.mark.parametrize(
    ("name", "variables", "text"),
    [
        ("ibm-granite-granite-3.3-2B-Instruct", {"thinking": True}, "<think>so</think>\n<response>{}</response>"),
        ("ibm-granite-granite-3.3-2B-Instruct", {"thinking": True}, "<think>so</think>\n\n<response>\n{}\n</response>"),
        ("unsloth-Apriel-1.5", {}, "Here are my reasoning steps:\nso\n[BEGIN FINAL RESPONSE]\n{}\n[END FINAL RESPONSE]"),
        ("NVIDIA-Nemotron-Nano-v2", {}, "so\n</think>\n\n{}"),
        ("CohereForAI-c4ai-command-r-plus-tool_use", {}, "{}"),
        ("upstage-Solar-Open-100B", {}, "<|think|>so<|end|><|begin|>assistant<|content|>{}<|end|>"),
    ],
)
def test_an_answer_stands_where_the_model_was_told_to_put_it(name, variables, text):
    """As the system prompts of these templates say, and as Solar's tokens for earlier messages do."""
    known = template(name)
    prompt = probes.rendered(known, [ASKED], tools=detect(known).no_tools, **variables)
    assert prompt is not None
    said = text.replace("{}", FORMED)
    assert len(said) in accepts(name, prompt, said)
    assert not accepts(name, prompt, said.replace(FORMED, "prose " + FORMED))
