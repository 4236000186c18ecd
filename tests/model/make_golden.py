"""Writes golden_tiny.json: transformers' float64 logits of the tiny checkpoints. Run where torch and transformers are.

python tests/model/make_golden.py
"""

import json
from pathlib import Path

import torch
import transformers
from tiny import CONFIGS, prompt, tensors
from transformers import AutoConfig, AutoModelForCausalLM


def logits(name: str) -> list[list[float]]:
    """Every 4th position and the last, all of the vocabulary."""
    values = dict(CONFIGS[name])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    state = {key: torch.from_numpy(value).double() for key, value in tensors(name).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        out = model(torch.tensor([prompt(name)])).logits[0]
    return [[round(v, 6) for v in row] for row in out[3::4].tolist()]


golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "positions": "3, 7, 11, ...",
    "logits": {name: logits(name) for name in CONFIGS},
}
Path(__file__).with_name("golden_tiny.json").write_text(json.dumps(golden))
