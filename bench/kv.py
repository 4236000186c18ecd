"""What each format of keys and values costs: bytes, and perplexity on fixed texts beside that of fp16.

    python -m bench.kv [--models smollm2,gemma3] [--formats int8,int4] [--tokens 2048] [--write-docs]

The texts (tests/acceptance/texts) are a story, a manual and a program: the first `--tokens` tokens of each, every token
given all before it. Differences are taken token by token, so most of what makes texts hard drops out of them; their
standard error says how far the figure can be trusted.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.lines import with_section
from bench.measure import load_average, machine, table
from bench.model import load_tokenizer
from imp import settings
from imp.cpu.backend import CpuBackend
from imp.model import arch, centring
from imp.model.inputs import prompt_inputs
from imp.model.kv import FORMATS
from imp.model.ops import Backend, StepLimits
from imp.weights.checkpoint import open_checkpoint
from tests import realmodel

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "tests" / "acceptance" / "texts"
DOCS = ROOT / "docs" / "KV.md"
MARKS = ("<!-- bench.kv begins -->", "<!-- bench.kv ends -->")
MODELS = {"smollm2": ("SmolLM2 135M, Q4_1", realmodel.smollm2), "gemma3": ("Gemma 3 270M, Q4_K_M", realmodel.gemma3)}
COMPARED = [name for name in FORMATS if name != "fp32"]
BLOCK, CHUNK = 16, 128
BASE = "fp16"


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What a model made of the texts. nats: of every token but the first of each text."""

    nats: np.ndarray
    token_bytes: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats.mean())

    def beside(self, base: Loss) -> tuple[float, float]:
        """How much higher the perplexity is than `base`'s, and its standard error, in percent."""
        difference = self.nats - base.nats
        return 100 * math.expm1(difference.mean()), 100 * float(difference.std()) / math.sqrt(len(difference))


def losses(path: Path, formats: Sequence[str], tokens: int = 2048) -> dict[str, Loss]:
    """By format, for a GGUF file."""
    tokenizer = load_tokenizer(path)
    texts = [tokenizer.encode(file.read_text())[:tokens] for file in sorted(TEXTS.glob("*.txt"))]
    checkpoint = open_checkpoint(path)
    model = arch.build(checkpoint, tokens)
    limits = StepLimits(CHUNK, 1, CHUNK, tokens, -(-tokens // BLOCK))
    found = {}
    for name in formats:
        backend = CpuBackend(cache_dir=settings.load([]).paths.cache, kv_dtype=name)
        backend.load(model, limits)
        backend.centre_keys(tokenizer.encode(centring.TEXT))
        nats = np.concatenate([_nats(backend, text) for text in texts])
        found[name] = Loss(nats, backend.kv_block_bytes(model, BLOCK) / BLOCK)
        backend.close()
    checkpoint.close()
    return found


def _nats(backend: Backend, tokens: list[int]) -> np.ndarray:
    """float64 [tokens - 1]: minus the log-probability of each token after the first."""
    found = []
    for start in range(0, len(tokens) - 1, CHUNK):
        end = min(start + CHUNK, len(tokens) - 1)
        logits = backend.run(prompt_inputs(tokens, start, end, BLOCK, range(end - start))).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        own = logits[np.arange(end - start), tokens[start + 1 : end + 1]]
        found.append(np.log(np.exp(logits).sum(axis=-1)) - own)
    return np.concatenate(found)


def rows(found: dict[str, Loss]) -> list[list[str]]:
    base, lines = found[BASE], []
    for name, loss in found.items():
        more, error = loss.beside(base)
        share = f"{100 * loss.token_bytes / base.token_bytes:.1f} %"
        change = "" if name == BASE else f"{more:+.2f} % ± {error:.2f}"
        lines.append([name, f"{loss.token_bytes:,.0f}", share, f"{loss.perplexity:.3f}", change])
    return lines


HEADER = ("format", "bytes of a token", "of fp16", "perplexity", "beside fp16")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.kv", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--formats", default=",".join(COMPARED))
    parser.add_argument("--tokens", type=int, default=2048, help="of each text")
    parser.add_argument("--write-docs", action="store_true", help="update the table of docs/KV.md")
    chosen = parser.parse_args()
    names = [BASE, *(name for name in chosen.formats.split(",") if name != BASE)]
    parts = [f"- machine: {machine()}; load average {load_average():.1f}, which does not matter here\n"]
    for each in chosen.models.split(","):
        title, path = MODELS[each]
        found = losses(path(), names, chosen.tokens)
        count = len(found[BASE].nats)
        parts.append(f"\n{title}, {count:,} tokens:\n\n{table(HEADER, rows(found))}\n")
        print(parts[-1], flush=True)
    if chosen.write_docs:
        DOCS.write_text(with_section(DOCS.read_text(), "".join(parts), *MARKS))


if __name__ == "__main__":
    main()
