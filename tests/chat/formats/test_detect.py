"""What is found of every public template: the format, the reasoning, its switch, and what the template shows by itself.

The table was written from the templates: the beginnings and ends of calls stand in what a template writes of an earlier
call, which the test looks at too, and the states of reasoning in the ends of the prompts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from imp.chat import probes
from imp.chat.formats import registry
from imp.chat.formats.detect import detect
from imp.chat.template import BUILTIN, ChatTemplate
from imp.chat.tool_prompt import written

TEMPLATES = Path(__file__).resolve().parents[4] / "shared/data/templates"


class Row(NamedTuple):
    """states: does the end of the prompt say that the model thinks (T), that it does not (F), or neither (N): by
    default, switched on, switched off; "-": there is no switch.
    begins, ends: of a call that is forced.  shows: tools, calls, results of the template's own; "-": in our words.
    """

    template: str
    format: str
    opens: str | None
    switch: str | None
    states: str
    begins: str
    ends: str
    shows: str


# fmt: off
TABLE = (
    Row("Apertus-8B-Instruct", "apertus", "<|inner_prefix|>", "enable_thinking", "NNN", '<|tools_prefix|>[{"', "}]<|tools_suffix|>", "TCR"),
    Row("Apriel-1.6-15b-Thinker-fixed", "apriel", "Here are my reasoning steps:", None, "T--", '<tool_calls>[{"name": "', "}]</tool_calls>", "TCR"),
    Row("Bielik-11B-v3.0-Instruct", "hermes", "<think>", "enable_thinking", "NTN", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("ByteDance-Seed-OSS", "seed", "<seed:think>", "thinking_budget", "NNF", "<seed:tool_call>\n<function=", "</function>\n</seed:tool_call>", "TCR"),
    Row("Cohere2MoE", "command", "<|START_THINKING|>", "reasoning", "TTF", '<|START_ACTION|>[\n    {"tool_call_id": "", "tool_name": "', "}\n]<|END_ACTION|>", "TCR"),
    Row("CohereForAI-c4ai-command-r-plus-tool_use", "command-plus", None, None, "F--", 'Action:\n```json\n[\n    {\n        "tool_name": "', "\n    }\n]```", "TCR"),
    Row("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command", "<|START_THINKING|>", "enable_thinking", "FNF", '<|START_ACTION|>[\n    {"tool_call_id": "", "tool_name": "', "}\n]<|END_ACTION|>", "TCR"),
    Row("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "hermes", "<think>", None, "T--", '<tool_call>\n{"name": "', "}\n</tool_call>", "--R"),
    Row("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", "<think>", "enable_thinking", "FTF", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "-CR"),
    Row("deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", "<think>", "enable_thinking", "FTF", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "-CR"),
    Row("deepseek-ai-DeepSeek-V3.2", "dsml", "<think>", "enable_thinking", "FTF", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="', "</｜DSML｜invoke>\n</｜DSML｜function_calls>", "TCR"),
    Row("deepseek-ai-DeepSeek-V4-Flash-0731", "dsml-v4", "<think>", "enable_thinking", "FTF", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="', "</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "TCR"),
    Row("deepseek-ai-DeepSeek-V4", "dsml-v4", "<think>", "enable_thinking", "FTF", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="', "</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "TCR"),
    Row("fireworks-ai-llama-3-firefunction-v2", "firefunction", None, None, "F--", 'functools[{"name": "', "}]", "TCR"),
    Row("GigaChat3-10B-A1.8B", "gigachat", None, None, "F--", 'function call<|role_sep|>\n{"name": "', "}<|message_sep|>", "TCR"),
    Row("GigaChat3.1-10B-A1.8B", "gigachat-3.1", None, None, "F--", '<|function_call|>{"name": "', "}", "TCR"),
    Row("GLM-4.6", "glm", "<think>", "enable_thinking", "NNF", "<tool_call>", "</tool_call>", "TCR"),
    Row("GLM-4.7-Flash", "glm-compact", "<think>", "enable_thinking", "TTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("google-gemma-2-2b-it", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "---"),
    Row("google-gemma-4-31B-it-interleaved", "gemma4", "<|channel>thought", "enable_thinking", "FNF", "<|tool_call>call:", "}<tool_call|>", "TCR"),
    Row("google-gemma-4-31B-it", "gemma4", "<|channel>thought", "enable_thinking", "FNF", "<|tool_call>call:", "}<tool_call|>", "TCR"),
    Row("HuggingFaceTB-SmolLM3-3B", "hermes", "<think>", "enable_thinking", "NNF", '<tool_call>\n{"name": "', "}\n</tool_call>", "--R"),
    Row("ibm-granite-granite-3.3-2B-Instruct", "granite", "<think>", "thinking", "NNN", '<|tool_call|>[{"name": "', "}]", "T-R"),
    Row("ibm-granite-granite-4.0", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("ibm-granite-granite-4.1", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("inclusionai-ling-3.0-flash", "glm", "<think>", "enable_thinking", "TTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("Kimi-K2-Instruct", "kimi", None, None, "F--", "<|tool_calls_section_begin|><|tool_call_begin|>functions.", "<|tool_call_end|><|tool_calls_section_end|>", "TCR"),
    Row("Kimi-K2-Thinking", "kimi", "<think>", None, "N--", "<|tool_calls_section_begin|><|tool_call_begin|>functions.", "<|tool_call_end|><|tool_calls_section_end|>", "TCR"),
    Row("Kimi-K3", "kimi-k3", "<|open|>think<|sep|>", "thinking", "TTF", '<|open|>tools<|sep|><|open|>call tool="', "<|close|>call<|sep|><|close|>tools<|sep|>", "TCR"),
    Row("LFM2-8B-A1B", "lfm2", None, None, "F--", "<|tool_call_start|>[", ")]<|tool_call_end|>", "T-R"),
    Row("LFM2.5-8B-A1B", "lfm2", "<think>", None, "N--", "<|tool_call_start|>[", ")]<|tool_call_end|>", "TCR"),
    Row("LFM2.5-Instruct", "lfm2", "<think>", None, "N--", "<|tool_call_start|>[", ")]<|tool_call_end|>", "T-R"),
    Row("meetkai-functionary-medium-v3.1", "functionary-v3.1", None, None, "F--", "<function=", "</function>", "TCR"),
    Row("meetkai-functionary-medium-v3.2", "functionary", None, None, "F--", "", "", "TCR"),
    Row("meta-llama-Llama-3.1-8B-Instruct", "llama", None, None, "F--", '{"name": "', "}", "TCR"),
    Row("meta-llama-Llama-3.2-3B-Instruct", "llama", None, None, "F--", '{"name": "', "}", "TCR"),
    Row("meta-llama-Llama-3.3-70B-Instruct", "llama", None, None, "F--", '{"name": "', "}", "TCR"),
    Row("microsoft-Phi-3.5-mini-instruct", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "---"),
    Row("MiMo-VL", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("MiniMax-M1", "minimax-m1", None, None, "F--", '<tool_calls>\n{"name": "', "}\n</tool_calls>", "TCR"),
    Row("MiniMax-M2", "minimax", "<think>", None, "T--", '<minimax:tool_call>\n<invoke name="', "</invoke>\n</minimax:tool_call>", "TCR"),
    Row("MiniMax-M3", "minimax-m3", "<mm:think>", "thinking_mode", "NTF", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="', "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>", "TCR"),
    Row("Mistral-Small-3.2-24B-Instruct-2506", "mistral-call-id", None, None, "F--", "[TOOL_CALLS]", "", "TCR"),
    Row("mistralai-Ministral-3-14B-Reasoning-2512", "mistral-args", "[THINK]", None, "N--", "[TOOL_CALLS]", "", "TCR"),
    Row("mistralai-Mistral-Nemo-Instruct-2407", "mistral", None, None, "F--", '[TOOL_CALLS][{"name": "', ', "id": ""}]', "TCR"),
    Row("moonshotai-Kimi-K2", "kimi", None, None, "F--", "<|tool_calls_section_begin|><|tool_call_begin|>functions.", "<|tool_call_end|><|tool_calls_section_end|>", "TCR"),
    Row("muse-glimmer", "muse", "to=self<|message|>", None, "N--", '<atem:function_calls>\n<atem:invoke name="', "</atem:invoke>\n</atem:function_calls>", "TCR"),
    Row("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen-xml", "<think>", "enable_thinking", "TTF", "<tool_call>\n<function=", "</function>\n</tool_call>", "TCR"),
    Row("NVIDIA-Nemotron-Nano-v2", "nemotron", "<think>", "", "TTF", '<TOOLCALL>[{"name": "', "}]</TOOLCALL>", "TCR"),
    Row("openai-gpt-oss-120b", "harmony", "<|channel|>analysis<|message|>", None, "N--", "<|channel|>commentary to=functions.", "", "TCR"),
    Row("openbmb-MiniCPM5-1B", "minicpm", "<think>", "enable_thinking", "NTF", '<function name="', "</function>", "TCR"),
    Row("poolside-Laguna-S-2.1", "glm-compact", "<think>", "enable_thinking", "TTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("poolside-Laguna-XS-2.1", "glm", "<think>", "enable_thinking", "FTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("poolside-Laguna-XS.2", "glm", "<think>", "enable_thinking", "FTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("Qwen-Qwen2.5-7B-Instruct", "hermes", None, None, "F--", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("Qwen-Qwen3-0.6B", "hermes", "<think>", "enable_thinking", "NNF", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("Qwen-QwQ-32B", "hermes", "<think>", "enable_thinking", "FTF", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("Qwen3-Coder", "qwen-xml", None, None, "F--", "<tool_call>\n<function=", "</function>\n</tool_call>", "TCR"),
    Row("Qwen3.5-4B", "qwen-xml", "<think>", "enable_thinking", "TTF", "<tool_call>\n<function=", "</function>\n</tool_call>", "TCR"),
    Row("Reka-Edge", "hermes", "<think>", "enable_thinking", "NTN", '<tool_call>\n{"name": "', "}\n</tool_call>", "TCR"),
    Row("Spark2.5", "glm-compact", "<think>", "enable_thinking", "TTF", "<tool_call>", "</tool_call>", "TCR"),
    Row("StepFun3.5-Flash", "qwen-xml", "<think>", None, "T--", "<tool_call>\n<function=", "</function>\n</tool_call>", "TCR"),
    Row("tencent-Hy3", "hy3", "<think:opensource>", "reasoning_effort", "FTF", "<tool_calls:opensource>\n<tool_call:opensource>", "</tool_call:opensource>\n</tool_calls:opensource>", "TCR"),
    Row("unsloth-Apriel-1.5", "apriel", "Here are my reasoning steps:", None, "N--", '<tool_calls>[{"name": "', "}]</tool_calls>", "TCR"),
    Row("unsloth-mistral-Devstral-Small-2507", "mistral-args", None, None, "F--", "[TOOL_CALLS]", "", "TCR"),
    Row("upstage-Solar-Open-100B", "solar", "<|think|>", "reasoning_effort", "NNF", "<|tool_calls|><|tool_call:begin|><|tool_call:name|>", "<|tool_call:end|><|calls|>", "TCR"),
)
# fmt: on
STATES = {True: "T", False: "F", None: "N"}
VARIES = {  # where the envelope writes what templates write another way: ids, and the place of a header
    "Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b", "upstage-Solar-Open-100B",
}  # fmt: skip


def template(name: str) -> ChatTemplate:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("the public templates are not here (shared/data/templates)")
    return ChatTemplate(path.read_text(encoding="utf-8"), special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def test_every_public_template_is_in_the_table():
    if not TEMPLATES.is_dir():
        pytest.skip("the public templates are not here (shared/data/templates)")
    assert sorted(row.template for row in TABLE) == sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.template)
def test_what_is_found(row: Row):
    source = template(row.template)
    voice = detect(source)
    assert voice.format is not None and voice.format.name == row.format
    assert (voice.thinking and voice.thinking.open) == row.opens
    assert (voice.switch and voice.switch.name) == row.switch
    shown = zip("TCR", (voice.shows_tools, voice.shows_calls, voice.shows_results), strict=True)
    assert "".join(letter if shows else "-" for letter, shows in shown) == row.shows

    def state(**kwargs: object) -> str:
        prompt = probes.question(source, tools=voice.no_tools, **kwargs)
        assert prompt is not None
        return STATES[voice.thinks(prompt)]

    states = state()
    if voice.switch is not None:
        name = voice.switch.name or "system"
        states += state(**{name: voice.switch.on}) + state(**{name: voice.switch.off})
    assert states.ljust(3, "-") == row.states


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.template)
def test_a_forced_call_is_written_as_the_template_writes_an_earlier_one(row: Row):
    source = template(row.template)
    voice = detect(source)
    assert voice.format is not None
    [call] = [written([(probes.TOOL, probes.ARGUMENTS)], voice.format.envelopes[0])]
    assert call.startswith(row.begins + probes.TOOL) or row.format in ("apertus", "lfm2")
    assert call.endswith(row.ends)
    if "C" in row.shows and row.template not in VARIES:
        turn = probes.call_turn(source, voice.text_arguments)
        assert turn is not None and row.begins + probes.TOOL in turn and row.ends in turn


def test_no_name_of_a_model_decides():
    """A template that is renamed and has its models' names taken out is found the same."""
    for row in TABLE[::8]:
        source = template(row.template)
        bare = re.sub(r"(?i)qwen|nvidia|alibaba|moonshot|mistral ai|xiaomi", "Nobody", source.source)
        voice = detect(ChatTemplate(bare, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))
        assert voice.format is not None and voice.format.name == row.format, row.template


def test_a_template_for_tools_tells_the_format_too():
    """Command R+ has one for conversations without tools, and the public one for those with."""
    tool_use = template("CohereForAI-c4ai-command-r-plus-tool_use").source
    found = detect(ChatTemplate(BUILTIN["chatml"], tool_use=tool_use, special_tokens={"bos_token": "<s>"}))
    assert found.format is registry.FORMATS["command-plus"] and found.shows_tools and found.shows_calls


def test_an_unknown_template_is_found_by_what_it_writes():
    """No marks of a format: variables hide the markers. The call of our conversation is read all the same."""
    source = """{%- set t = 'tool' ~ '_call' %}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content %}{{ '<' ~ 'muse>' ~ m.reasoning_content ~ '</' ~ 'muse>' }}
{%- endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<' ~ t ~ '>' }}{{ c.function | tojson }}{{ '</' ~ t ~ '>' }}
{%- endfor %}
{% endfor %}assistant:"""
    voice = detect(ChatTemplate(source))
    assert voice.format is not None and voice.format.name == "hermes"
    assert voice.thinking is not None and (voice.thinking.open, voice.thinking.close) == ("<muse>", "</muse>")
    assert voice.shows_tools and voice.shows_calls and voice.switch is None


def test_an_unknown_template_with_objects_between_tags_is_hermes():
    source = (
        "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
        '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}'
    )
    assert detect(ChatTemplate(source)).format is registry.FORMATS["hermes"]


def test_a_vocabulary_with_markers_of_reasoning_says_enough():
    plain = ChatTemplate(BUILTIN["chatml"])
    assert detect(plain).thinking is None
    voice = detect(plain, ["<think>", "</think>", "<|im_end|>"])
    assert voice.thinking is not None and voice.thinking.close == "</think>"
    assert detect(plain, ["<think>"]).thinking is None


@pytest.mark.parametrize("name", sorted(registry.FORMATS))
def test_a_parser_can_be_named(name: str):
    voice = detect(ChatTemplate(BUILTIN["chatml"]), parser=name)
    assert voice.format is registry.FORMATS[name]


def test_an_unknown_parser_is_refused():
    with pytest.raises(KeyError):
        detect(ChatTemplate(BUILTIN["chatml"]), parser="nobody's")


def test_without_a_template_all_is_text():
    assert detect(None).format is None and detect(None).thinking is None
