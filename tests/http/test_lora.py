"""Adapters by their names over HTTP, on a tiny real model: mixed batches, coming and going, caches, and every refusal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.http.adapted import serving
from tests.http.scripted import serving as scripted
from tests.http.wire import run
from tests.model import adapters

PROMPT = "Tell me of the harbour at night, please."
NAMES = list(adapters.ADAPTERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: adapters.write(folder, "llama", name) for name in NAMES}


def flags(folders: dict[str, Path], *names: str) -> list[str]:
    return [word for name in names for word in ("--lora", f"{name}={folders[name]}")]


def prompts(count: int) -> list[str]:
    return [f"{i}: {PROMPT[: 5 + 7 * i % 31]}" for i in range(count)]


async def merged(kernels: Path, name: str, texts: list[str]) -> list[list[int]]:
    """What a model says that has the adapter in its weights."""
    async with serving(kernels, merged=name) as world:
        return [await world.ids(text) for text in texts]


def test_an_adapter_says_what_merged_weights_say_under_either_name_in_every_dialect(kernel_folder, folders):
    async def main() -> None:
        (expected,) = await merged(kernel_folder, "everywhere", [PROMPT])
        async with serving(kernel_folder, *flags(folders, "everywhere", "some")) as world:
            plain = await world.ids(PROMPT)
            assert plain == await world.ids(PROMPT, model="tiny") != expected
            for how in ({"model": "everywhere"}, {"lora": "everywhere"}, {"model": "tiny", "lora": "everywhere"}):
                told = await world.completion(PROMPT, **how)
                assert told["choices"][0]["token_ids"] == expected and told["model"] == "everywhere"
            said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
            for path, body in (
                ("/v1/chat/completions", said),
                ("/v1/messages", said),
                ("/v1/responses", {"input": "Hi", "max_output_tokens": 8}),
                ("/v1/embeddings", {"input": "Hi"}),
                ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ):
                answers = []
                for name in ("tiny", "everywhere", "some"):
                    answer = await world.client.post(path, json=body | {"model": name})
                    assert answer.status_code == 200 and answer.json()["model"] == name, answer.text
                    answers.append(_said(answer.json()))
                assert len(set(answers)) == 3, path

    run(main)


def _said(told: dict[str, Any]) -> str:
    """The answer without what differs between any two."""
    return json.dumps(
        [told[key] for key in ("choices", "content", "output", "data", "results") if key in told]
    ).replace(json.dumps(told.get("output", [{}])[0].get("id", "")), "")


def test_g09_09_rows_of_several_adapters_in_one_batch_say_what_each_says_alone(kernel_folder, folders):
    """16 requests of three adapters and none, while a fourth comes and the second leaves; its slot is given out again
    while others go on."""

    async def main() -> None:
        texts, owners = prompts(16), [None, *NAMES[:3]] * 4
        expected: dict[str | None, list[list[int]]] = {}
        async with serving(kernel_folder) as world:
            expected[None] = [await world.ids(text) for text in texts]
        for name in NAMES:
            expected[name] = await merged(kernel_folder, name, texts)
        async with serving(kernel_folder, *flags(folders, *NAMES[:3])) as world:
            alone = [await world.ids(text, lora=name) for text, name in zip(texts, owners, strict=True)]
            assert alone == [expected[name][i] for i, name in enumerate(owners)]
            await world.client.post("/reset_prefix_cache")
            asked = [asyncio.create_task(world.ids(t, lora=name)) for t, name in zip(texts, owners, strict=True)]
            while sum(task.done() for task in asked) + len(world.services.leases) < 16:
                await asyncio.sleep(0.001)
            came = await world.admin("load", name="fourth", path=str(folders[NAMES[3]]))
            assert came.status_code == 200, came.text
            asked += [asyncio.create_task(world.ids(text, lora="fourth")) for text in texts[:4]]
            left = await world.admin("unload", name=NAMES[1])
            assert left.status_code == 200, left.text
            again = await world.admin("load", name="again", path=str(folders[NAMES[1]]))
            assert again.status_code == 200
            asked += [asyncio.create_task(world.ids(text, lora="again")) for text in texts[:4]]
            said = await asyncio.gather(*asked)
            assert said[:16] == alone
            assert said[16:20] == expected[NAMES[3]][:4] and said[20:] == expected[NAMES[1]][:4]
            assert await world.models() == ["tiny", NAMES[0], NAMES[2], "fourth", "again"]

    run(main)


def _broken(folder: Path, change: str) -> Path:
    given = adapters.tensors("llama", "some")
    path = adapters.write(folder, "llama", "some")
    if change == "shape":
        given = {name: np.repeat(array, 2, axis=1 - array.shape.index(1)) for name, array in given.items()}
    elif change == "layers":
        given = {name.replace("layers.1", "layers.70"): array for name, array in given.items()}
    elif change == "rank":
        given = {n: np.repeat(array, 300, axis=array.shape.index(1)) for n, array in given.items()}
        adapters.write(folder, "llama", "some", r=300)
    else:
        given = {name.replace("v_proj", "w_proj").replace("up_proj", "w_proj"): array for name, array in given.items()}
    save_file(given, path / "adapter_model.safetensors")
    return path


def test_g09_08_what_cannot_be_loaded_or_found_is_refused_and_nothing_changes(kernel_folder, folders, tmp_path):
    async def main() -> None:
        async with serving(kernel_folder, *flags(folders, "some")) as world:
            before = await world.models()

            async def refused(status: int, code: str, text: str, **body: Any) -> None:
                answer = await world.admin("load", **body)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (status, code), answer.text
                assert text in error["message"]
                assert await world.models() == before

            await refused(404, "adapter_not_found", "no directory", name="a", path=str(tmp_path / "missing"))
            for change, code, text in (
                ("shape", "invalid_adapter", "for another model"),
                ("layers", "invalid_adapter", "has no model.layers.70"),
                ("rank", "unsupported_adapter", "at most 256"),
                ("keys", "unsupported_adapter", "only A and B of q_proj"),
            ):
                await refused(400, code, text, name="a", path=str(_broken(tmp_path / change, change)))
            good = str(folders["everywhere"])
            for name in ("some", "tiny"):
                await refused(400, "name_taken", "is taken", name=name, path=good)
            for name in ("a/b", "../x", "a,b", "a\nb"):
                await refused(400, "invalid_value", "no model's name", name=name, path=good)
            for body in ({"name": "a"}, {"path": good}, {"name": "", "path": good}, {"name": 3, "path": good}):
                assert (await world.admin("load", **body)).status_code == 400
            assert (await world.admin("unload", name="nope")).json()["error"]["code"] == "adapter_not_found"
            assert (await world.admin("unload", name="tiny")).status_code == 404

            for path in ("/v1/completions", "/v1/chat/completions"):
                body = (
                    {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
                )
                unknown = await world.client.post(path, json=body | {"model": "nope"})
                assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
                wrong = await world.client.post(path, json=body | {"lora": "nope"})
                assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "lora"
                both = await world.client.post(path, json=body | {"model": "nope", "lora": "some"})
                assert both.status_code == 404 and both.json()["error"]["code"] == "model_not_found"

    run(main)


def test_g09_08_an_adapter_leaves_when_its_requests_have_ended(kernel_folder, folders):
    async def main() -> None:
        async with serving(kernel_folder, *flags(folders, "everywhere")) as world:
            expected = await world.ids(PROMPT, lora="everywhere", max_tokens=120)
            listed = (await world.client.get("/v1/models/everywhere")).json()
            assert listed["parent"] == "tiny" and listed["loaded"] and listed["meta"]["lora_rank"] == 4
            running = asyncio.create_task(world.ids(PROMPT, lora="everywhere", max_tokens=120))
            while not world.services.leases:
                await asyncio.sleep(0.001)
            leaving = asyncio.create_task(world.admin("unload", name="everywhere"))
            while "everywhere" in await world.models():
                await asyncio.sleep(0.001)
            late = await world.client.post("/v1/completions", json={"prompt": "x", "model": "everywhere"})
            assert late.status_code == 404
            assert not leaving.done() or running.done()
            assert await running == expected
            assert (await leaving).json() == {"loaded": False, "name": "everywhere"}

    run(main)


def test_an_adapter_that_is_busy_for_too_long_stays(kernel_folder, folders):
    async def main() -> None:
        flagged = [*flags(folders, "some"), "--set", "server.model_swap_drain_ms=1"]
        async with serving(kernel_folder, *flagged) as world:
            running = asyncio.create_task(world.ids(PROMPT, lora="some", max_tokens=150))
            while not world.services.leases:
                await asyncio.sleep(0.001)
            answer = await world.admin("unload", name="some")
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_drained"
            assert await running == await world.ids(PROMPT, lora="some", max_tokens=150)

    run(main)


def test_g07_07_cached_prompts_are_an_adapters_own_and_of_its_very_files(kernel_folder, folders):
    async def main() -> None:
        async with serving(kernel_folder, *flags(folders, "some", "attention")) as world:

            async def ask(**more: Any) -> tuple[int, list[int]]:
                told = await world.completion(PROMPT, **more)
                return told["usage"]["prompt_tokens_details"]["cached_tokens"], told["choices"][0]["token_ids"]

            first = [
                await ask(**more) for more in ({}, {"lora": "some"}, {"lora": "attention"}, {"cache_salt": "some"})
            ]
            assert [cached for cached, _ in first] == [0, 0, 0, 0]
            second = [
                await ask(**more) for more in ({}, {"lora": "some"}, {"lora": "attention"}, {"cache_salt": "some"})
            ]
            assert all(cached >= 32 for cached, _ in second)
            assert [ids for _, ids in second] == [ids for _, ids in first]
            assert (await ask(lora="some", cache_salt="some"))[0] == 0

            await world.admin("unload", name="some")
            await world.admin("load", name="some", path=str(folders["patterns"]))
            cached, other = await ask(lora="some")
            assert cached == 0 and other != first[1][1]
            await world.admin("unload", name="some")
            await world.admin("load", name="some", path=str(folders["some"]))
            cached, again = await ask(lora="some")
            assert cached >= 32 and again == first[1][1]

    run(main)


def test_an_adapter_goes_with_choices_constraints_logprobs_and_streams(kernel_folder, folders):
    async def main() -> None:
        rule = {"structured_outputs": {"regex": "[a-z]{14}"}}
        async with serving(kernel_folder, merged="everywhere") as world:
            constrained = await world.ids(PROMPT, **rule)
        async with serving(kernel_folder, *flags(folders, "everywhere")) as world:
            expected = await world.completion(PROMPT, lora="everywhere", logprobs=2)
            several = await world.completion(PROMPT, lora="everywhere", n=3, logprobs=2)
            for choice in several["choices"]:
                assert choice["token_ids"] == expected["choices"][0]["token_ids"]
                assert choice["logprobs"] == expected["choices"][0]["logprobs"]
            body = {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "lora": "everywhere", "stream": True}
            streamed = (await world.client.post("/v1/completions", json=body)).text
            texts = [json.loads(line[6:])["choices"][0]["text"] for line in streamed.split("\n\n") if line[6:7] == "{"]
            assert "".join(texts) == expected["choices"][0]["text"]
            assert await world.ids(PROMPT, lora="everywhere", **rule) == constrained != await world.ids(PROMPT, **rule)

    run(main)


def test_adapters_come_again_after_a_suspension(kernel_folder, folders):
    async def main() -> None:
        async with serving(kernel_folder, *flags(folders, "some", "patterns")) as world:
            await world.admin("load", name="late", path=str(folders["everywhere"]))
            await world.admin("unload", name="patterns")
            expected = {name: await world.ids(PROMPT, lora=name) for name in ("some", "late")}
            assert (await world.client.post("/admin/suspend")).json()["suspended"]
            assert (await world.admin("load", name="x", path=str(folders["patterns"]))).status_code == 503
            assert not (await world.client.post("/admin/resume")).json()["suspended"]
            assert await world.models() == ["tiny", "some", "late"]
            for name, ids in expected.items():
                assert await world.ids(PROMPT, lora=name) == ids

    run(main)


def test_metrics_tell_of_adapters_and_their_memory(kernel_folder, folders):
    async def main() -> None:
        async with serving(kernel_folder, *flags(folders, "some")) as world:

            async def read(name: str) -> list[str]:
                text = (await world.client.get("/metrics")).text
                return [line for line in text.splitlines() if line.startswith(name)]

            async def reserved() -> float:
                (line,) = await read("imp_memory_reserved_bytes{")
                return float(line.split()[-1])

            before = await reserved()
            size = (await world.admin("load", name="big", path=str(folders["everywhere"]))).json()["size_bytes"]
            assert await reserved() == before + size > before
            running = asyncio.create_task(world.ids(PROMPT, lora="big", max_tokens=150))
            seen: set[str] = set()
            while not running.done():
                seen.update(line.rpartition(" ")[0] for line in await read("vllm:lora_requests_info{"))
            info = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="big",waiting_lora_adapters=""}'
            assert info in seen
            await running
            idle = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}'
            assert [line.rpartition(" ")[0] for line in await read("vllm:lora_requests_info{")] == [idle]
            await world.admin("unload", name="big")
            assert await reserved() == before

    run(main)


def test_without_a_model_that_takes_adapters_there_is_none_to_load():
    async def main() -> None:
        async with scripted() as server:
            answer = await server.client.post("/admin/lora/load", json={"name": "a", "path": "/b"})
            assert answer.status_code == 409 and answer.json()["error"]["code"] == "no_model"
            assert (await server.post("/v1/completions", prompt="a", lora="b")).status_code == 400

    run(main)
