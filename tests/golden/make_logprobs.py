"""Makes smollm2_logprobs.json and gemma3_logprobs.json: what transformers computes from the very GGUF files.

Needs torch, transformers and gguf, none of which the project depends on; run by hand, in an environment of its own:

    python make_logprobs.py smollm2 PATH/smollm2.gguf
    python make_logprobs.py gemma3 PATH/gemma3.gguf

float32 on the CPU, eager attention. Before anything is computed, every weight transformers loaded is compared with
what the gguf package dequantises from the same file, so a wrong norm convention or Q/K order cannot slip in.
Log-probabilities are natural logarithms of softmax(logits), rounded to five digits, likeliest first.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from make_safetensors import hf_tensors
from prompts import CHATS, EVERY_EIGHTH, GEMMA, RAW
from transformers import AutoModelForCausalLM, AutoTokenizer

GREEDY_TOKENS = 16
GEMMA_TURN = "<start_of_turn>{role}\n{content}<end_of_turn>\n"


def load(path: Path):
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    expected = dict(hf_tensors(gguf.GGUFReader(path)))
    assert state.keys() == expected.keys(), state.keys() ^ expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(state[name], tensor, rtol=0, atol=1e-6, err_msg=name)
    return tokenizer, model


def gemma_chat(messages) -> str:
    turns = [
        GEMMA_TURN.format(role={"assistant": "model"}.get(m["role"], m["role"]), content=m["content"]) for m in messages
    ]
    return "<bos>" + "".join(turns) + "<start_of_turn>model\n"


def prompts(name: str, tokenizer):
    """(name, kind, text, ids) of every prompt. Chats are encoded without special tokens added: the text has them."""
    wanted = (lambda key: True) if name == "smollm2" else GEMMA.__contains__
    for key, text in RAW:
        if wanted(key):
            yield key, "raw", text, tokenizer(text).input_ids
    for key, messages in CHATS:
        if wanted(key):
            if name == "smollm2":
                text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            else:
                text = gemma_chat(messages)
            yield key, "chat", text, tokenizer(text, add_special_tokens=False).input_ids


def top(logprobs: torch.Tensor, count: int) -> list[list]:
    values, ids = logprobs.topk(count)
    return [[int(i), round(float(v), 5)] for v, i in zip(values, ids, strict=True)]


@torch.inference_mode()
def entry(name: str, model, key: str, kind: str, text: str, ids: list[int]) -> dict:
    inner = name == "smollm2" and key in EVERY_EIGHTH
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=0 if inner else 1)
    logprobs = out.logits[0].log_softmax(-1)  # [T, V], or [1, V] where only the last is kept
    found = {"name": key, "kind": kind, "text": text, "ids": ids, "top": top(logprobs[-1], 20)}
    if inner:
        found["inner"] = [{"position": p, "top": top(logprobs[p], 5)} for p in range(7, len(ids), 8)]
    if name == "smollm2":
        found["greedy"] = greedy(model, out)
    return found


def greedy(model, out) -> list[list]:
    """[token, gap] per token: how far the likeliest log-probability is above the second. End-of-text does not stop."""
    steps = []
    for _ in range(GREEDY_TOKENS):
        (first, second), (token, _) = (t.tolist() for t in out.logits[0, -1].log_softmax(-1).topk(2))
        steps.append([token, round(first - second, 5)])
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
    return steps


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    tokenizer, model = load(path)
    entries = []
    for prompt in prompts(name, tokenizer):
        entries.append(entry(name, model, *prompt))
        last = entries[-1]
        likely = [token for token, _ in last.get("greedy", last["top"][:1])]
        print(last["name"], len(last["ids"]), repr(tokenizer.decode(likely)), flush=True)
    document = {
        "model": path.name,
        "versions": {package: version(package) for package in ("torch", "transformers", "gguf")},
        "weights": "dequantised from the GGUF file to float32",
        "prompts": entries,
    }
    lines = json.dumps(document, ensure_ascii=False).replace('{"name"', '\n{"name"')
    Path(__file__).with_name(f"{name}_logprobs.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
