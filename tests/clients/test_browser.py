"""The chat page in a real browser, over scripted replies: what a person does with it, and what must never happen."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.real.process import ServerProcess
from tests.script.process import scripted

pytestmark = pytest.mark.slow

ENDLESS = {"pieces": ["on ", "and "], "endless": True, "delay_ms": 20}
OPEN, CLOSE = "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def silent(tmp_path_factory: Any) -> Iterator[ServerProcess]:
    """A server for what needs no answers of its own."""
    with scripted(tmp_path_factory.mktemp("silent"), replies=[{}]) as running:
        yield running


def turns(*messages: tuple[str, str]) -> str:
    """The prompt of these (role, text) messages, as ChatML writes it."""
    return "".join(f"{OPEN}{role}\n{text}{CLOSE}\n" for role, text in messages) + f"{OPEN}assistant\n"


def prompts(server: Any) -> list[str]:
    return [entry["prompt"] for entry in httpx.get(server.url + "/script/log").json()["data"]]


def say(page: Any, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Wait for an expression, or a function of `arg`, to become true. Playwright's own way needs eval in the page."""
    deadline = time.monotonic() + 20
    while not page.evaluate(expression, arg):
        assert time.monotonic() < deadline, f"never came true: {expression}\n{page.inner_text('body')}"
        page.wait_for_timeout(25)


def answered(page: Any, count: int) -> None:
    """Wait until there are so many complete answers."""
    until(
        page,
        "n => document.querySelectorAll('.turn.assistant').length === n && document.querySelector('#go').ariaLabel === 'Send'",
        count,
    )


def texts(page: Any, role: str) -> list[str]:
    return page.locator(f".turn.{role} > .text").all_inner_texts()


def test_a_chat_streams_counts_and_remembers(visit, tmp_path, screenshots):
    first = ["## Sorting\n\nA **stable** sort:\n\n", "```python\n", "print(sorted([3, 1]))  # [1, 3]\n", "```\n", "\n| n | cost |\n|--|--:|\n| 1 | 2 |\n"]
    with scripted(tmp_path, replies=[{"pieces": first, "delay_ms": 40}, {"pieces": ["Yes."]}]) as server:
        page = visit(server.url)
        assert page.evaluate("document.activeElement.id") == "input"
        say(page, "How do I sort?")
        answered(page, 1)
        answer = page.locator(".turn.assistant > .text")
        assert answer.locator("h2").inner_text() == "Sorting" and answer.locator("strong").inner_text() == "stable"
        assert answer.locator("pre").inner_text().strip() == "print(sorted([3, 1]))  # [1, 3]"
        assert answer.locator("th, td").all_inner_texts() == ["n", "cost", "1", "2"]
        note = page.locator(".turn.assistant .foot span").inner_text()
        assert f"{len(first) + 1} tokens" in note and "tokens/s" in note and "first after" in note and "in the prompt" in note
        assert "of 32768 tokens" in page.inner_text("#use")
        page.screenshot(path=screenshots / "desktop.png")
        say(page, "Really?")
        answered(page, 2)
        assert texts(page, "assistant")[1] == "Yes."
        assert prompts(server)[1] == turns(("user", "How do I sort?"), ("assistant", "".join(first)), ("user", "Really?"))
        assert page.locator(".chat .open").all_inner_texts() == ["How do I sort?"]


@pytest.mark.parametrize("how", ["button", "escape"])
def test_an_answer_can_be_stopped_and_gone_on_with(visit, tmp_path, how):
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not (loop.last and m.role == 'assistant') %}<|end|>{% endif %}{% endfor %}"
    (tmp_path / "open.jinja").write_text(template)
    script = {"template": "open.jinja", "replies": [ENDLESS, {"pieces": ["end"]}]}
    with scripted(tmp_path, **script) as server:
        page = visit(server.url)
        say(page, "Count")
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText.startsWith('on and on')")
        assert page.get_attribute("#go", "aria-label") == "Stop"
        if how == "button":
            page.click("#go")
        else:
            page.keyboard.press("Escape")
        answered(page, 1)
        assert "stopped" in page.inner_text(".turn.assistant .foot")
        until(page, "async () => (await (await fetch('metrics')).text()).includes('\\nimp_queue_running 0')")
        [said] = texts(page, "assistant")
        page.click("text=Continue")
        until(page, "document.querySelector('.turn.assistant > .text').innerText.endsWith('end')")
        answered(page, 1)
        assert prompts(server)[1].rstrip() == f"<|user|>Count<|end|><|assistant|>{said}".rstrip()


def test_the_system_prompt_and_the_sampling_fields_reach_the_model(visit, tmp_path):
    with scripted(tmp_path, replies=[{"pieces": ["ok"]}]) as server:
        page = visit(server.url)
        page.click("#show-settings")
        assert page.get_attribute("#set-temperature", "placeholder") == "0.7"
        page.fill("#set-system", "Be brief.")
        for name, value in {"temperature": "0.25", "top_k": "7", "seed": "5", "max_completion_tokens": "9"}.items():
            page.fill(f"#set-{name}", value)
        page.fill("#set-stop", "END\nSTOP")
        page.click("text=More sampling")
        page.fill("#set-logit_bias", '{"65": -2}')
        say(page, "Hi")
        answered(page, 1)
        page.fill("#set-system", "")
        page.fill("#set-seed", "")
        say(page, "Again")
        answered(page, 2)
        first, second = httpx.get(server.url + "/script/log").json()["data"]
        assert first["prompt"] == turns(("system", "Be brief."), ("user", "Hi"))
        assert second["prompt"] == turns(("user", "Hi"), ("assistant", "ok"), ("user", "Again"))
        sent = {"temperature": 0.25, "top_k": 7, "seed": 5, "max_tokens": 9, "stop": ["END", "STOP"], "logit_bias": {"65": -2}}
        assert {name: first["parameters"][name] for name in sent} == sent
        assert second["parameters"]["seed"] != 5


def test_a_message_is_edited_and_an_answer_asked_for_again(visit, tmp_path):
    with scripted(tmp_path, replies=[{"pieces": [str(i)]} for i in range(9)]) as server:
        page = visit(server.url)
        for i, text in enumerate(["one", "two"], 1):
            say(page, text)
            answered(page, i)
        page.click("[aria-label='Answer again'] >> nth=1")
        until(page, "document.querySelectorAll('.turn.assistant > .text')[1]?.innerText === '2'")
        page.locator(".turn.user").first.hover()
        page.click("[aria-label='Edit and send again'] >> nth=0")
        page.fill("[aria-label='Edit the message']", "uno")
        page.press("[aria-label='Edit the message']", "Enter")
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText === '3'")
        assert texts(page, "user") == ["uno"] and texts(page, "assistant") == ["3"]
        earlier = (("user", "one"), ("assistant", "0"), ("user", "two"))
        assert prompts(server)[1:] == [turns(*earlier), turns(*earlier), turns(("user", "uno"))]


def test_the_theme_follows_the_system_until_it_is_chosen(visit, tmp_path, screenshots):
    def paper() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with scripted(tmp_path, replies=[{"pieces": ["A `dark` answer.\n\n```js\nconst x = \"y\"; // z\n```"]}]) as server:
        page = visit(server.url, color_scheme="dark")
        dark = paper()
        page.emulate_media(color_scheme="light")
        light = paper()
        assert dark != light
        page.click("#theme")
        assert (paper(), page.get_attribute("#theme", "aria-label")) == (light, "Theme: light")
        page.click("#theme")
        assert (paper(), page.get_attribute("#theme", "aria-label")) == (dark, "Theme: dark")
        page.reload()
        assert paper() == dark
        say(page, "Show me")
        answered(page, 1)
        page.click("#show-settings")
        page.screenshot(path=screenshots / "dark.png")
        page.click("#theme")
        assert paper() == light and page.get_attribute("#theme", "aria-label") == "Theme: auto"


def test_a_phone_shows_everything_without_scrolling_sideways(visit, tmp_path, screenshots):
    wide = "| a | b |\n|--|--|\n| " + "x" * 300 + " | y |\n\n```\n" + "y" * 400 + "\n```\n" + "z" * 400
    with scripted(tmp_path, replies=[{"pieces": ["Hello **there**.\n\n", "1. one\n2. two\n\n"]}, {"pieces": [wide]}]) as server:
        page = visit(server.url, viewport={"width": 390, "height": 780}, is_mobile=True, has_touch=True)

        def fits() -> bool:
            return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth && document.querySelector('#scroll').scrollWidth <= innerWidth")

        assert not page.locator("#new").is_visible()
        say(page, "Hi")
        answered(page, 1)
        page.screenshot(path=screenshots / "phone.png")
        say(page, "Something wide")
        answered(page, 2)
        assert fits() and page.locator("#input").bounding_box()["y"] < 780 - 50
        page.tap("#menu")
        until(page, "document.querySelector('#sidebar').getBoundingClientRect().left === 0")
        page.screenshot(path=screenshots / "phone-menu.png")
        page.tap("#new")
        until(page, "document.querySelector('#sidebar').getBoundingClientRect().right <= 0")
        assert texts(page, "user") == []
        page.tap("#show-settings")
        assert page.locator("#settings").bounding_box()["width"] == 390 and fits()
        page.tap("[aria-label='Close settings']")
        assert not page.locator("#settings").is_visible()


def test_everything_can_be_done_with_the_keyboard(visit, tmp_path):
    with scripted(tmp_path, replies=[ENDLESS, {"pieces": ["fine"]}, {"pieces": ["finer"]}]) as server:
        page = visit(server.url)
        keys = page.keyboard
        keys.type("first line")
        keys.press("Shift+Enter")
        keys.type("second line")
        keys.press("Enter")
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText.includes('on and')")
        keys.press("Escape")
        answered(page, 1)
        keys.press("Control+k")
        assert texts(page, "user") == [] and page.evaluate("document.activeElement.id") == "input"
        keys.type("hello")
        keys.press("Enter")
        answered(page, 1)
        keys.press("ArrowUp")
        assert page.evaluate("document.activeElement.ariaLabel") == "Edit the message"
        keys.press("End")
        keys.type(" again")
        keys.press("Enter")
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText === 'finer'")
        assert [prompts(server)[i] for i in (0, 2)] == [turns(("user", "first line\nsecond line")), turns(("user", "hello again"))]

        page.reload()
        seen, rings = [], []
        for _ in range(30):
            keys.press("Shift+Tab")
            name, ring = page.evaluate("[document.activeElement.id || document.activeElement.className, getComputedStyle(document.activeElement).outlineStyle]")
            seen.append(name)
            rings.append(ring)
        for name in ("go", "show-settings", "show-metrics", "model", "export", "import", "open", "new", "theme", "skip"):
            assert name in seen, f"{name} is not reached with Tab: {seen}"
        assert all(ring == "solid" for name, ring in zip(seen, rings, strict=True) if name not in ("", "scroll", "input")), (seen, rings)

        page.focus("#show-settings")
        keys.press("Enter")
        assert page.locator("#settings").is_visible()
        keys.press("Escape")
        assert not page.locator("#settings").is_visible()
        assert page.evaluate("document.activeElement.id") == "show-settings"


NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, a[href], summary, nav, aside')].filter(e =>
  !(e.ariaLabel || e.innerText?.trim() && e.matches('button, a, summary') || e.labels?.length || e.title)).map(e => e.outerHTML)"""
COLOURS = """names => {
  const probe = document.body.appendChild(document.createElement('span'));
  const colours = names.map(name => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; });
  probe.remove();
  return colours;
}"""
PAIRS = [
    *(("ink", ground) for ground in ("paper", "side", "card", "user", "hover")),
    *(("faint", ground) for ground in ("paper", "side", "card")),
    *(("accent", "paper"), ("on-accent", "accent"), ("bad", "bad-paper")),
    *((colour, "card") for colour in ("string", "keyword", "number")),
]


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance of an sRGB colour, "rgb(r, g, b)"."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_every_text_contrast(visit, silent, scheme):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "```\nx\n```", "reasoning": "r", "error": "e"}]
    page = visit(silent.url, seed=seeded(messages), color_scheme=scheme)
    page.click("#show-settings")
    for summary in page.locator("#settings summary").all()[:-1]:
        summary.click()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate("document.documentElement.lang") == "en" and page.locator("main").count() == 1
    for text, ground in PAIRS:
        lighter, darker = sorted(map(luminance, page.evaluate(COLOURS, [text, ground])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"--{text} on --{ground}"


def stream(*deltas: dict[str, Any], reason: str = "stop") -> str:
    """A chat completion's events, for answers the scripted server does not give."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 3}}
    chunks.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def canned(page: Any, *answers: str) -> list[dict[str, Any]]:
    """Answer chat completions with these event streams, in order; returns the bodies that were sent."""
    left, bodies = list(answers), []

    def fulfill(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=left.pop(0))

    page.route("**/v1/chat/completions", fulfill)
    return bodies


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_g01_08_comments_and_every_kind_of_line_are_read_as_the_standard_says(visit, silent, end):
    page = visit(silent.url)
    lines = [
        *(":", "", ": a comment", "id: 7", "event: message", 'data: {"choices": [{"index": 0,'),
        *('data:"delta": {"content": "one"}}]}', "", "retry: 10", ": ping", ""),
        *('data: {"choices": [{"index": 0, "delta": {"content": " two"}, "finish_reason": "stop"}]}', "", ":", "data: [DONE]", "", ""),
    ]
    canned(page, end.join(lines))
    say(page, "x")
    answered(page, 1)
    assert texts(page, "assistant") == ["one two"] and page.locator(".error").count() == 0


def test_an_answer_whose_end_is_missing_is_not_taken_for_complete(visit, silent):
    page = visit(silent.url)
    canned(page, 'data: {"choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n')
    say(page, "x")
    page.wait_for_selector(".error")
    assert "cut before the answer was complete" in page.inner_text(".error") and texts(page, "assistant") == ["half"]


def test_thoughts_are_folded_away_and_go_back_with_the_history(visit, silent):
    page = visit(silent.url)
    thinking = stream({"reasoning_content": "Let me *see*"}, {"reasoning_content": " now"}, {"content": "It is 4."})
    bodies = canned(page, thinking, stream({"content": "Sure."}))
    say(page, "2 + 2?")
    answered(page, 1)
    fold = page.locator("details.think")
    assert fold.get_attribute("open") is None and texts(page, "assistant") == ["It is 4."]
    assert not fold.locator(".text").is_visible()
    fold.locator("summary").click()
    assert fold.locator(".text").inner_text() == "Let me see now" and fold.locator("em").inner_text() == "see"
    assert "3 of them thinking" in page.inner_text(".turn.assistant .foot")
    say(page, "Sure?")
    answered(page, 2)
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "It is 4.", "reasoning_content": "Let me *see* now"}


def test_tool_calls_are_shown_and_answered(visit, silent, screenshots):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    calls = (
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ':"<b>Bern</b>"}'}}]},
    )
    page = visit(silent.url)
    bodies = canned(page, stream(*calls, reason="tool_calls"), stream({"content": "It rains."}))
    page.click("#show-settings")
    page.click("text=Tools and formats")
    page.fill("#set-tools", "[{")
    assert "JSON" in page.inner_text("label:has(#set-tools) small")
    page.fill("#set-tools", json.dumps(tools))
    page.fill("#set-schema", '{"type": "object"}')
    say(page, "Weather?")
    page.wait_for_selector(".call textarea")
    assert page.inner_text(".call h4") == "weather" and page.inner_text(".call pre") == '{\n  "city": "<b>Bern</b>"\n}'
    page.screenshot(path=screenshots / "tools.png")
    page.fill(".call textarea", "rain")
    page.click("text=Send result")
    answered(page, 2)
    assert texts(page, "assistant")[1] == "It rains."
    assert bodies[0]["tools"] == tools
    assert bodies[0]["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"<b>Bern</b>"}'}}
    assert bodies[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
    ]


def test_chats_are_kept_renamed_deleted_and_carried_to_another_browser(visit, tmp_path):
    with scripted(tmp_path, replies=[{"pieces": [f"answer {i}"]} for i in range(4)]) as server:
        page = visit(server.url)
        for text in ("first", "second"):
            page.click("#new")
            say(page, text)
            answered(page, 1)
        page.reload()
        assert texts(page, "user") == ["second"] and texts(page, "assistant") == ["answer 1"]
        titles = page.locator(".chat .open")
        assert titles.all_inner_texts() == ["second", "first"]
        titles.nth(1).click()
        assert texts(page, "user") == ["first"]
        page.click("[aria-label='Rename first']")
        page.keyboard.type("my <i>name</i>")
        page.keyboard.press("Enter")
        assert titles.all_inner_texts() == ["second", "my <i>name</i>"]
        page.click("[aria-label='Delete second']")
        assert titles.all_inner_texts() == ["my <i>name</i>"]
        page.click("#toast button")
        until(page, "document.querySelectorAll('.chat').length === 2")
        page.click("[aria-label='Delete second']")
        with page.expect_download() as download:
            page.click("#export")
        kept = download.value.path()
        assert [chat["title"] for chat in json.loads(kept.read_text())["chats"]] == ["my <i>name</i>"]

        other = visit(server.url)
        assert other.locator(".chat").count() == 0
        other.set_input_files("#file", kept)
        other.wait_for_selector(".turn")
        assert texts(other, "user") == ["first"] and texts(other, "assistant") == ["answer 0"]
        for content, word in ((b"not json", "not JSON"), (b'{"x": 1}', '"chats"'), (b'{"chats": [1]}', "no conversation")):
            other.set_input_files("#file", {"name": "x.json", "mimeType": "application/json", "buffer": content})
            until(other, "word => document.querySelector('#toast').innerText.includes(word)", word)


def test_a_refusal_is_shown_in_the_servers_words_and_can_be_tried_again(visit, tmp_path):
    replies = [{"pieces": ["half "], "error": "engine_step_failed"}, {"pieces": ["fine"]}]
    with scripted(tmp_path, replies=replies) as server:
        page = visit(server.url, expected=("status of 400",))
        page.click("#show-settings")
        page.fill("#set-temperature", "9")
        say(page, "Hi")
        page.wait_for_selector(".error")
        shown = page.inner_text(".error")
        assert '"temperature"' in shown and "field temperature" in shown and "status 400" in shown
        page.fill("#set-temperature", "1")
        page.click("text=Try again")
        until(page, "document.querySelector('.error')?.innerText.includes('script lets this request fail')")
        assert texts(page, "assistant") == ["half"]
        page.click("text=Try again")
        answered(page, 1)
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText === 'fine'")
        assert page.locator(".error").count() == 0


def test_a_key_is_asked_for_where_the_server_wants_one(visit, tmp_path):
    with scripted(tmp_path, "--api-key", "s3cret", replies=[{"pieces": ["in"]}]) as server:
        page = visit_locked(visit, server.url)
        assert "key" in page.inner_text("#model")
        say(page, "Hi")
        page.wait_for_selector(".error")
        assert page.locator("#key").is_visible() and page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("s3cret")
        page.keyboard.press("Tab")
        until(page, "document.querySelector('#model').value === 'script'")
        page.click("text=Try again")
        until(page, "document.querySelector('.turn.assistant > .text')?.innerText === 'in'")
        assert "s3cret" not in page.evaluate("JSON.stringify(localStorage)")


def visit_locked(visit: Any, url: str) -> Any:
    return visit(url, expected=("status of 401",), ready="#model option")


def test_the_metrics_panel_draws_what_the_server_counts(visit, tmp_path, screenshots):
    with scripted(tmp_path, replies=[ENDLESS]) as server:
        page = visit(server.url)
        page.click("#show-metrics")
        say(page, "Go")
        figure = "label => [...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith(label)).querySelector('b').innerText"
        until(page, f"({figure})('Requests running') === '1'")
        until(page, f"parseFloat(({figure})('Tokens a second')) > 1")
        until(page, "document.querySelectorAll('.chart polyline').length > 3")
        page.screenshot(path=screenshots / "metrics.png")
        page.keyboard.press("Escape")
        until(page, f"({figure})('Requests ended') === '1'")


# -- what a model may say ----------------------------------------------------------------------------------------------

ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)><svg onload=alert(1)><iframe src='javascript:alert(1)'></iframe>",
    "[click](javascript:alert(1)) [b](data:text/html,<script>alert(1)</script>) [c](vbscript:x) [d](//evil.test/x)",
    "![i](https://evil.test/pixel.png) ![j](javascript:alert(1))",
    "```html\n<script>alert(1)</script>\n```",
    "```\"><script>alert(1)</script>\nx\n```",
    "`<b>code</b>` **<i>bold</i>** | <u>a</u> |",
    "| <script>alert(1)</script> | b |\n|--|--|\n| <img src=x onerror=alert(1)> | [x](javascript:alert(1)) |",
    "</div></article><style>body{display:none}</style><base href='//evil.test'>",
    "<a href=\"javascript:alert(1)\">x</a> &lt;script&gt; &#60;script&#62;",
    "[x](https://ok.test/\"onmouseover=\"alert(1)) <https://ok.test>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} \u202e\u0000",
]
ALLOWED = {
    *("A", "BLOCKQUOTE", "BR", "BUTTON", "CODE", "DIV", "EM", "H1", "H2", "H3", "H4", "H5", "H6", "HR", "LI", "OL", "P", "PRE", "S"),
    *("SPAN", "STRONG", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL", "svg", "use"),
}
ELEMENTS = """() => [...document.querySelectorAll('.turn.assistant > .text *')].map(e =>
  [e.tagName, Object.fromEntries([...e.attributes].map(a => [a.name, a.value]))])"""


def seeded(messages: list[dict[str, str]], title: str = "") -> dict[str, str]:
    """localStorage with one chat, which is open."""
    chat = {"id": "seed", "title": title, "created": 1, "updated": 2, "settings": {}, "messages": messages}
    return {"imp.chat.seed": json.dumps(chat), "imp.preferences": json.dumps({"chat": "seed"})}


def check_elements(page: Any) -> None:
    for tag, attributes in page.evaluate(ELEMENTS):
        assert tag in ALLOWED, tag
        assert set(attributes) <= {"href", "target", "rel", "class", "start", "type", "aria-label", "aria-hidden", "tabindex"}
        if tag == "A":
            assert re.match(r"https?://|mailto:", attributes["href"]) and "noopener" in attributes["rel"]


def test_what_a_model_says_stays_text(visit, tmp_path):
    with scripted(tmp_path, replies=[{"pieces": [text]} for text in ATTACKS]) as server:
        page = visit(server.url)
        for i, attack in enumerate(ATTACKS, 1):
            say(page, attack.replace("\n", " "))
            answered(page, i)
        check_elements(page)
        shown = "\n".join(page.locator(".turn.assistant > .text").all_text_contents())
        for part in ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<style>body{display:none}</style>", "&#60;script&#62;"):
            assert part in shown
        assert page.locator(".turn.assistant > .text").count() == len(ATTACKS)
        users = page.locator(".turn.user > .text").all_text_contents()
        assert [text.strip() for text in users] == [attack.replace("\n", " ").strip() for attack in ATTACKS]
        links = [attributes["href"] for tag, attributes in page.evaluate(ELEMENTS) if tag == "A"]
        assert links == ["https://evil.test/pixel.png", "https://ok.test/\"onmouseover=\"alert(1", "https://ok.test"]


def test_what_is_stored_or_imported_stays_text_too(visit, silent):
    bad = ATTACKS[1]
    messages = [{"role": "user", "content": bad}, {"role": "assistant", "content": bad, "reasoning": bad, "error": bad, "note": bad}]
    page = visit(silent.url, seed=seeded(messages, title=bad))
    assert page.inner_text(".chat .open") == bad and bad in page.inner_text(".error")
    assert page.locator("#log img, #log script, #log iframe, #chats img").count() == 0
    odd = [{"id": "../x", "messages": [{"role": "system", "content": "x"}, None, {"role": "user", "content": {"a": 1}}]}, {"messages": 3}, 7]
    page.set_input_files("#file", {"name": "x.json", "mimeType": "application/json", "buffer": json.dumps({"chats": odd}).encode()})
    until(page, "document.querySelector('#toast').innerText === 'Imported 1 chat'")
    assert texts(page, "user") == [""]


MARKDOWN = [
    ("a\nb", "<p>a<br>b</p>"),
    ("a\n\nb", "<p>a</p><p>b</p>"),
    ("# T\n## U ##\ntext", "<h1>T</h1><h2>U</h2><p>text</p>"),
    ("#no", "<p>#no</p>"),
    ("**b** *i* _i_ ~~s~~ `c`", "<p><strong>b</strong> <em>i</em> <em>i</em> <s>s</s> <code>c</code></p>"),
    ("**b *i* b**", "<p><strong>b <em>i</em> b</strong></p>"),
    ("*i **b** i*", "<p><em>i <strong>b</strong> i</em></p>"),
    ("2 * 3 * 4, snake_case_word, a ** b", "<p>2 * 3 * 4, snake_case_word, a ** b</p>"),
    ("\\*no\\* \\`x\\`", "<p>*no* `x`</p>"),
    ("`` a`b ``", "<p><code>a`b</code></p>"),
    ("`**x**`", "<p><code>**x**</code></p>"),
    ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("* a\n\n  more\n* b", "<ul><li>a<p>more</p></li><li>b</li></ul>"),
    ("- a\ntext\n\nafter", "<ul><li>a<br>text</li></ul><p>after</p>"),
    ("> q\n> > r\n\np", "<blockquote><p>q</p><blockquote><p>r</p></blockquote></blockquote><p>p</p>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("| a | b |\n|---|:-:|\n| 1 |", '<table><thead><tr><th>a</th><th class="center">b</th></tr></thead><tbody><tr><td>1</td><td class="center"></td></tr></tbody></table>'),
    ("a | b\nno table", "<p>a | b<br>no table</p>"),
    ("<b>&amp;</b>", "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>"),
    ("[t](https://x.test/a_b_c) https://y.test/z.", '<p><a href="https://x.test/a_b_c">t</a> <a href="https://y.test/z">https://y.test/z</a>.</p>'),
    ("[t](mailto:a@b.test) [n](file:///x) [", '<p><a href="mailto:a@b.test">t</a> [n](file:///x) [</p>'),
    ("```\n**x**\n<b>\n```\nafter", "<pre>**x**\n&lt;b&gt;</pre><p>after</p>"),
    ("~~~py\nx\n```\n~~~", "<pre>x\n```</pre>"),
    ("text\n```\nopen", "<p>text</p><pre>open</pre>"),
    ("- a\n  ```\n  c\n  ```\n- b", "<ul><li>a<pre>c</pre></li><li>b</li></ul>"),
]
# what is shown of each answer, without what only the page adds
SHOWN = """() => [...document.querySelectorAll('.turn.assistant > .text')].map(text => {
  const copy = text.cloneNode(true);
  for (const code of copy.querySelectorAll('.code')) {
    const pre = document.createElement('pre');
    pre.textContent = code.querySelector('pre').textContent;
    code.replaceWith(pre);
  }
  for (const table of copy.querySelectorAll('.table')) table.replaceWith(table.firstChild);
  for (const link of copy.querySelectorAll('a')) { link.removeAttribute('target'); link.removeAttribute('rel'); }
  return copy.innerHTML;
})"""


def test_markdown_is_read_as_people_mean_it(visit, silent):
    page = visit(silent.url, seed=seeded([{"role": "assistant", "content": text} for text, _ in MARKDOWN]))
    for (text, expected), shown in zip(MARKDOWN, page.evaluate(SHOWN), strict=True):
        assert shown == expected, text


def test_any_text_is_shown_soon_and_safely(visit, silent):
    rng = random.Random(11)
    marks = ["*", "**", "_", "`", "```", "\n", "\n\n", "[", "](", ")", "![", "> ", "- ", "1. ", "|", "--", "#", " ", "a", "<b>", "\\", "https://x.test/", "~~", "é", "\t", ":"]
    random_texts = ["".join(rng.choice(marks) for _ in range(rng.randrange(1, 80))) for _ in range(300)]
    long = [mark * 20_000 for mark in ("*", "_", "`", "[", "![", ">", "> ", "- ", "* a", "~", "|", "](", "\\", "#", "h", "https://x.test/....", "1. ", " ", "'", '"', "/*")]
    long += ["```" + "a" * 50_000 + "`", "~" * 50_000 + "`", "http://a" + "." * 50_000 + "x", " " * 50_000 + "x-\n" + " " * 50_000 + "x-|", "```js\n" + "'''\"" * 10_000]
    page = visit(silent.url, seed=seeded([{"role": "assistant", "content": text} for text in random_texts + long]))
    assert page.locator(".turn.assistant").count() == len(random_texts) + len(long)
    check_elements(page)
    for text, shown in zip(random_texts, page.locator(".turn.assistant > .text").all_text_contents(), strict=False):
        for letter in "aé":  # nothing is lost: letters are never marks
            if "https" not in text and "](" not in text and "```" not in text:
                assert shown.count(letter) == text.count(letter), text


def test_a_text_that_grows_looks_like_one_that_came_at_once(visit, tmp_path):
    text = "# T\n\nSome **bold** text\n\n- a\n- b\n  - c\n\n```py\nx = 1\n\ny = 2\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\nend"
    with scripted(tmp_path, replies=[{"pieces": list(text), "delay_ms": 3}]) as server:
        page = visit(server.url)
        say(page, "x")
        answered(page, 1)
        [grown] = page.evaluate(SHOWN)
        page.reload()
        page.wait_for_selector(".turn.assistant")
        assert page.evaluate(SHOWN) == [grown] and "<h1>T</h1>" in grown and "<td>2</td>" in grown
