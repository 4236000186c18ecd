"""Writes golden_tiny.json: transformers' float64 logits of the tiny checkpoints. Run where torch and transformers are.

python tests/model/make_golden.py
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tiny import CONFIGS, prompt, tensors
from transformers import AutoModelForCausalLM


def logits(name: str) -> list[list[float]]:
    """Every 4th position and the last, all of the vocabulary. The files are what we read, too."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[name]))
        save_file(
            {key: torch.from_numpy(value) for key, value in tensors(name).items()},
            Path(folder) / "model.safetensors",
            metadata={"format": "pt"},
        )
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
        )
    missing, unexpected = set(found["missing_keys"]), found["unexpected_keys"]
    assert not unexpected and missing <= {"lm_head.weight"}, (missing, unexpected)
    with torch.no_grad():
        out = model.eval()(torch.tensor([prompt(name)])).logits[0]
    return [[round(v, 6) for v in row] for row in out[3::4].tolist()]


golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "positions": "3, 7, 11, ...",
    "logits": {name: logits(name) for name in CONFIGS},
}
Path(__file__).with_name("golden_tiny.json").write_text(json.dumps(golden))
