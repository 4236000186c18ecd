"""Makes smollm2_adapter_logprobs.json: what transformers with PEFT computes from the GGUF file and a random adapter.

Needs torch, transformers, peft and gguf, none of which the project depends on; run by hand, in an environment of its own:

    python make_adapters.py PATH/smollm2.gguf

float32 on the CPU. The adapter's numbers are those of tests/model/random_adapters.py: same generator, same order.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import peft
import torch
from make_logprobs import load, top
from prompts import RAW

RANK, SEED, SIZE = 16, 5, 0.03
PROMPTS = 4
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


def adapted(model):
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=[*ATTENTION, *MLP], task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config).eval()
    rng = np.random.default_rng(SEED)
    for layer in model.base_model.model.model.layers:
        for module in (*(getattr(layer.self_attn, n) for n in ATTENTION), *(getattr(layer.mlp, n) for n in MLP)):
            for side in (module.lora_A["default"], module.lora_B["default"]):
                values = (rng.standard_normal(tuple(side.weight.shape)) * SIZE).astype(np.float32)
                side.weight.data = torch.from_numpy(values)
    return model


@torch.inference_mode()
def main() -> None:
    tokenizer, model = load(Path(sys.argv[1]))
    model, entries = adapted(model), []
    for key, text in RAW[:PROMPTS]:
        ids = tokenizer(text).input_ids
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        entries.append({"name": key, "ids": ids, "top": top(logprobs[-1], 20)})
    versions = {package: version(package) for package in ("torch", "transformers", "peft", "gguf")}
    golden = {"rank": RANK, "seed": SEED, "size": SIZE, "versions": versions, "prompts": entries}
    Path(__file__).with_name("smollm2_adapter_logprobs.json").write_text(json.dumps(golden))


main()
