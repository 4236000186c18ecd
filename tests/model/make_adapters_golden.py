"""Writes golden_adapters.json: float64 logits of the tiny checkpoints with adapters, by transformers and PEFT. Run where
these and torch are.

python tests/model/make_adapters_golden.py
"""

import json
import tempfile
from pathlib import Path

import adapters
import peft
import torch
import transformers
from tiny import CONFIGS, prompt, tensors
from transformers import AutoConfig, AutoModelForCausalLM


def base(name: str):
    values = dict(CONFIGS[name])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    state = {key: torch.from_numpy(value).double() for key, value in tensors(name).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def logits(model: str, name: str) -> list[list[float]]:
    """Every 8th position, all of the vocabulary."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = adapters.write(Path(folder), model, name)
        adapted = peft.PeftModel.from_pretrained(base(model), str(path), autocast_adapter_dtype=False).double().eval()
        loaded = {key for key in adapted.state_dict() if ".lora_" in key}
        given = {key.replace(".weight", ".default.weight") for key in adapters.tensors(model, name)}
        assert loaded == given, loaded ^ given
        out = adapted(torch.tensor([prompt(model)])).logits[0]
    return [[round(v, 6) for v in row] for row in out[7::8].tolist()]


golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
    "positions": "7, 15, 23, ...",
    "logits": {m: {name: logits(m, name) for name in adapters.ADAPTERS} for m in adapters.MODELS},
}
Path(__file__).with_name("golden_adapters.json").write_text(json.dumps(golden))
