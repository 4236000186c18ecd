"""One run of a GGUF file in transformers, on the CPU: told of the sizes by bench.torch_peer, which it prints to.

    python -P bench/torch_run.py MODEL DTYPE THREADS CASES    prints "ready", then one line of JSON: tokens/s by case

Run by an interpreter that has transformers, torch, gguf and accelerate; it knows nothing of this project. Cases are
prompts (pp128) and single sequences (tg64), each once for nothing and once for the clock.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    path, dtype, threads, cases = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=getattr(torch, dtype)
    ).eval()
    print("ready", flush=True)
    rng = torch.Generator().manual_seed(1)

    def prompt(tokens: int) -> torch.Tensor:
        return torch.randint(0, model.config.vocab_size, (1, tokens), generator=rng)

    def prefill(tokens: int) -> None:
        model(prompt(tokens), use_cache=True, logits_to_keep=1)

    def decode(tokens: int) -> None:
        model.generate(prompt(1), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)

    rates = {}
    with torch.inference_mode():
        for case in cases:
            run, tokens = {"pp": prefill, "tg": decode}[case[:2]], int(case[2:])
            run(tokens)
            began = time.perf_counter()
            run(tokens)
            rates[case] = tokens / (time.perf_counter() - began)
    print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main()
