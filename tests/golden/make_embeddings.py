"""Makes smollm2_embeddings.json: mean of transformers' last_hidden_state, which is after the final norm, L2-normalised.

Needs what make_logprobs.py needs, and loads the model the same way, weights compared:

    python make_embeddings.py PATH/smollm2.gguf
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from make_logprobs import load
from prompts import RAW

COUNT = 6  # of the raw prompts, the first ones


@torch.inference_mode()
def entry(tokenizer, model, name: str, text: str) -> dict:
    ids = tokenizer(text).input_ids
    states = model.model(torch.tensor([ids])).last_hidden_state[0]  # [T, D]
    vector = torch.nn.functional.normalize(states.double().mean(0), dim=0)
    return {"name": name, "text": text, "ids": ids, "vector": [round(float(v), 7) for v in vector]}


def main() -> None:
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    tokenizer, model = load(path)
    document = {
        "model": path.name,
        "versions": {package: version(package) for package in ("torch", "transformers", "gguf")},
        "prompts": [entry(tokenizer, model, name, text) for name, text in RAW[:COUNT]],
    }
    lines = json.dumps(document, ensure_ascii=False).replace('{"name"', '\n{"name"')
    Path(__file__).with_name("smollm2_embeddings.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
