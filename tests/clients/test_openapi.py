"""/openapi.json is true: schemathesis asks what it promises, jsonschema judges, and every example is answered."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, cast

import httpx
import hypothesis
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.failures import AcceptedNegativeData, FailureGroup
from schemathesis.openapi.checks import JsonSchemaError, UndefinedStatusCode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from imp.docs import api_page
from imp.http.gate import GateSettings
from imp.http.routes.described import described, is_alias
from imp.http.routes.table import routes
from tests.http.scripted import serving
from tests.http.wire import run

OPTIONS: dict[str, Any] = {
    "tokenizer_info": True,
    "dev_mode": True,
    "context": 4096,
    "request_timeout_s": 20.0,
    "fill": (1, 2, 3),
}
TABLE = routes(cast(Any, None), tokenizer_info=True, dev_mode=True)
EXAMPLES = 3  # a route, in the quick test


class Site:
    """The scripted server on a thread of its own, for clients that are not asynchronous."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with serving(**OPTIONS) as site:
            self.url = site.url
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def document(site: Site) -> dict[str, Any]:
    return httpx.get(f"{site.url}/openapi.json").raise_for_status().json()


def ask(site: Site, document: dict[str, Any], examples: int, seed: int) -> dict[str, int]:
    """Let schemathesis ask every operation of the document so often, each with valid and with invalid data, and check
    all it knows to check but one: valid data may be refused, for what no schema says (`top_logprobs` without `logprobs`,
    two fields that say the same). How often each operation was asked."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=site.url)
    asked: dict[str, int] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        takes = any(True for _ in operation.body) or any(True for _ in operation.query)
        for mode in schemathesis.GenerationMode:
            if mode is schemathesis.GenerationMode.NEGATIVE and not takes:
                continue

            @hypothesis.seed(seed)
            @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                asked[case.operation.label] = asked.get(case.operation.label, 0) + 1
                case.call_and_validate(timeout=20, excluded_checks=[positive_data_acceptance])

            check()
    return asked


def own(document: dict[str, Any]) -> dict[str, Any]:
    """The document without aliases: they are the same handlers."""
    return document | {"paths": {path: item for path, item in document["paths"].items() if not is_alias(path)}}


def test_every_route_answers_as_it_promises(site: Site, document: dict[str, Any]) -> None:
    asked = ask(site, own(document), EXAMPLES, seed=1)
    assert asked["POST /v1/chat/completions"] >= 2 * EXAMPLES  # valid ones and invalid ones
    assert set(asked) == {
        f"{m} {route.pattern}" for route in TABLE if not is_alias(route.pattern) for m in route.methods
    }


def found_in(site: Site, document: dict[str, Any], path: str) -> set[type[Exception]]:
    """The kinds of failures that schemathesis finds in one path of a document."""
    try:
        ask(site, document | {"paths": {path: document["paths"][path]}}, 40, seed=1)
    except FailureGroup as group:
        return {type(failure) for failure in group.exceptions}
    return set()


def test_false_promises_are_found(site: Site, document: dict[str, Any]) -> None:
    false = json.loads(json.dumps(document))
    schemas, paths = false["components"]["schemas"], false["paths"]
    schemas["Version"] = {"type": "object", "required": ["edition"]}
    del paths["/v1/models/{id}"]["get"]["responses"]["404"]
    body = paths["/detokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body["properties"] = {"tokens": {"type": "array", "items": {"const": 7}, "maxItems": 1}}  # the server takes more
    assert found_in(site, document, "/version") == found_in(site, document, "/detokenize") == set()
    assert found_in(site, false, "/version") == {JsonSchemaError}
    assert found_in(site, false, "/v1/models/{id}") == {UndefinedStatusCode}
    assert found_in(site, false, "/detokenize") == {AcceptedNegativeData}


def test_the_schemas_are_schemas(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0" and document["info"]["title"] == "imp-server"
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    for operation in operations:
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            jsonschema.Draft202012Validator.check_schema(content["schema"])
            jsonschema.validate(content["example"], content["schema"])
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert named <= set(document["components"]["schemas"])


def test_every_route_that_a_flag_switches_on_is_described() -> None:
    table = routes(cast(Any, None), tokenizer_info=True, dev_mode=True, script_log=list)
    lacking = [f"{m} {route.pattern}" for route in table for m in route.methods if not _described(m, route.pattern)]
    assert not lacking, "give these an entry in imp/http/routes/described.py"


def _described(method: str, pattern: str) -> bool:
    try:
        return described(method, pattern) is not None
    except KeyError:
        return False


def test_the_description_is_open_to_everybody() -> None:
    async def main() -> None:
        async with serving(gate=GateSettings(api_keys=("secret",))) as site:
            assert (await site.client.get("/openapi.json")).status_code == 200
            assert (await site.client.get("/v1/models")).status_code == 401

    run(main)


# -- docs/API.md ------------------------------------------------------------------------------------------------------

EXAMPLES_OF_API = re.findall(r"### (\w+)[^/\n]* (/\S*)\n.*?```sh\n(.*?)```", api_page(), re.DOTALL)


def run_line(line: str) -> tuple[int, bytes]:
    """Status and body of a command line of the documentation, run by a shell, with curl."""
    command = line.replace("curl ", "curl -sS -m 20 -w '\\n%{http_code}' ", 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=30)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), body


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "method, path, line",
    [example for example in EXAMPLES_OF_API if example[1] != "/script/log"],  # there is no script here
    ids=lambda value: value[:40],
)
def test_the_examples_of_the_documentation_work(
    site: Site, document: dict[str, Any], method: str, path: str, line: str
) -> None:
    assert "http://127.0.0.1:8080/" in line
    line = line.replace("http://127.0.0.1:8080", site.url).replace("MODEL", "toy")
    if "RESPONSE_ID" in line:
        made = httpx.post(f"{site.url}/v1/responses", json={"input": "x", "background": True}).raise_for_status()
        line = line.replace("RESPONSE_ID", made.json()["id"])
    status, body = run_line(line)
    if path.startswith("/v1/requests/{id}"):  # nothing of that name runs
        assert status == 404 and json.loads(body)["error"]["code"] == "request_not_found"
        return
    if path.startswith("/admin/"):  # the model of this site was not loaded from a file
        assert status == 409 and json.loads(body)["error"]["code"] == "no_model"
        return
    assert status == 200, body
    content = document["paths"][path][method.lower()]["responses"]["200"].get("content", {})
    if "application/json" in content:
        schema = content["application/json"]["schema"] | {"components": document["components"]}
        jsonschema.validate(json.loads(body), schema)


def test_there_is_an_example_of_every_route() -> None:
    shown = {f"{method} {path}" for method, path, _ in EXAMPLES_OF_API}
    whole = routes(cast(Any, None), tokenizer_info=True, dev_mode=True, script_log=list)
    assert shown == {
        f"{route.methods[0]} {route.pattern}"
        for route in whole
        if not is_alias(route.pattern) and not described(route.methods[0], route.pattern).socket
    }


def test_chunks_of_streams_are_what_is_promised(document: dict[str, Any]) -> None:
    async def main() -> None:
        bodies = {
            "/v1/chat/completions": ("ChatCompletionChunk", {"messages": [{"role": "user", "content": "x"}]}),
            "/v1/completions": ("Completion", {"prompt": "x", "logprobs": 1, "echo": True}),
        }
        async with serving() as site:
            for path, (name, body) in bodies.items():
                schema = document["components"]["schemas"][name] | {"components": document["components"]}
                for options in ({}, {"stream_options": {"include_usage": True}}):
                    events = await site.sse(path, **body, **options)
                    assert len(events) > 3 and events[-1] == "[DONE]"
                    for event in events[:-1]:
                        jsonschema.validate(event, schema)

    run(main)
