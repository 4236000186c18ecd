"""Writes golden_ropes.json: transformers' float64 logits of the tiny checkpoints with every rope scaling, each from one
pass over its whole prompt. Run where torch and transformers are.

python tests/model/make_ropes_golden.py
"""

import json
from pathlib import Path

import ropes
import torch
import transformers
from tiny import tensors
from transformers import AutoConfig, AutoModelForCausalLM


def logits(name: str) -> list[list[float]]:
    """Every 8th position, all of the vocabulary."""
    values = ropes.config(name)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    state = {key: torch.from_numpy(value).double() for key, value in tensors(ropes.ROPES[name][0]).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        out = model(torch.tensor([ropes.prompt(name)])).logits[0]
    return [[round(v, 6) for v in row] for row in out[5::8].tolist()]


golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "positions": "5, 13, 21, ...",
    "logits": {name: logits(name) for name in ropes.ROPES},
}
Path(__file__).with_name("golden_ropes.json").write_text(json.dumps(golden))
