"""Writes golden_sampling.json: which tokens transformers' logits processors keep, and what penalties make of logits.

python tests/model/make_sampling_golden.py
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

CASES = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40},
    {"top_p": 0.1},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.99},
    {"min_p": 0.02},
    {"min_p": 0.2},
    {"typical_p": 0.3},
    {"typical_p": 0.8},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 30, "top_p": 0.95, "min_p": 0.05},
]
WARPERS = {
    "top_k": TopKLogitsWarper,
    "typical_p": TypicalLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(60) * 3


def kept(case: dict, seed: int) -> list[int]:
    scores = torch.from_numpy(logits(seed))[None]
    for name, make in WARPERS.items():  # our order
        if name in case:
            scores = make(case[name])(None, scores)
    return torch.isfinite(scores[0]).nonzero()[:, 0].tolist()


def penalised(penalty: float, seed: int) -> list[float]:
    seen = torch.tensor([[3, 7, 7, 11, 59]])
    scores = torch.from_numpy(logits(seed))[None].clone()
    return RepetitionPenaltyLogitsProcessor(penalty)(seen, scores)[0].tolist()


golden = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "kept": [{"case": case, "seed": seed, "kept": kept(case, seed)} for case in CASES for seed in range(3)],
    "penalised": [{"penalty": p, "seed": s, "logits": penalised(p, s)} for p in (1.3, 0.7) for s in range(2)],
}
Path(__file__).with_name("golden_sampling.json").write_text(json.dumps(golden))
