"""What the CUDA backend does on a real GPU, in one command: `python -m bench.gpu [--json FILE]`, some minutes.

In this order: whether the kernels are right on this chip (tiny models against float64, single instructions), what the memory
and, where torch is installed, its matrix product reach, each kernel with the part of these it reaches, beside what a first
version and a good one do (gpu_kernels.py), and whole models with random weights: what the host spends on a step, tokens a
second, and the part of the memory's bandwidth that is. Times are medians of events around graphs; weights rotate over more
memory than the cache holds. `--smoke` is the same with nothing worth measuring.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import instructions
from bench.gpu_kernels import attention, copying, decoding, products, sampling, torch_product
from bench.gpu_lines import FULL, GB, LITTLE, Line, Scale, Sizes
from imp.cuda.driver import Device
from imp.cuda.ops import CudaBackend
from imp.model.inputs import StepInputs, prompt_inputs
from imp.model.kv import FORMATS as KV_FORMATS
from imp.model.layers import Block, Decoder, GatedMlp, Mixture, SelfAttention
from imp.model.ops import Attention, Experts, Linear, Norm, StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.rope import plain_frequencies, table
from imp.types import DeviceError
from imp.weights.checkpoint import Weight
from tests.cpu.harness import weight
from tests.gpu import tiny as tiny_models
from tests.model import tiny

# of the error of tiny models, by their weights; where keys are codes
ALLOWED = {"F32": 2e-5, "BF16": 5e-2}
CODED = 0.5
OF_FLOOR = (0.70, 0.85)  # of what reading a model takes, at batch 1
HOST_US = (60.0, 60.0)


# -- right -------------------------------------------------------------------------------------------------------------


def conformance(cache: Path, scale: Scale) -> Iterator[Line]:
    """Tiny models of every kind of weights and of keys against float64: the norm of the error over that of the logits."""
    limits = StepLimits(tokens=40, rows=1, logit_rows=40, context=128, blocks=8)
    cases = [("llama", form, "auto") for form in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1", "MXFP4", *tiny_models.SMALL_FLOATS)]
    cases += [("gemma3", "F32", "auto"), ("qwen3-moe", "F32", "auto"), *(("llama", "F16", kv) for kv in KV_FORMATS if kv != "fp32")]
    for name, form, kv in cases if scale is FULL else cases[1:2]:
        backend, judge = CudaBackend(cache_dir=cache, kv_dtype=kv), ReferenceBackend(np.float64, kv)
        for each in (backend, judge):
            each.load(tiny_models.model(name, form), limits)
            each.centre_keys(tiny.prompt(name, 48)[::-1])
        step = prompt_inputs(tiny.prompt(name), 0, 40, 16, wanted=range(40))
        found, expected = np.array(backend.run(step)), judge.run(step)
        backend.close()
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        allowed = ALLOWED.get(form, 1e-2) if KV_FORMATS[backend.kv_format(tiny_models.model(name, form))].encode is None else CODED
        wrong = "" if error < allowed else "WRONG: "
        yield Line(f"{wrong}{name}, weights {form}, keys {kv}", 1e3 * error, "10^-3")


# -- whole models ------------------------------------------------------------------------------------------------------


def decoder(sizes: Sizes, form: str, context: int) -> Decoder:
    """A model of these shapes; all layers have the bytes of one, which the device gets a copy of for each."""
    rng = np.random.default_rng(0)
    columns, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {"q": (columns, sizes.hidden), "k": (kv, sizes.hidden), "v": (kv, sizes.hidden), "o": (sizes.hidden, columns)}
    shapes |= {"gate": (sizes.inner, sizes.hidden), "up": (sizes.inner, sizes.hidden), "down": (sizes.hidden, sizes.inner)}
    shapes |= {"router": (sizes.experts, sizes.hidden)} if sizes.experts else {}
    made = {name: weight(form, *shape, rng) for name, shape in shapes.items()}
    head = weight(form, sizes.vocab, sizes.hidden, rng)
    rope = table(plain_frequencies(5e5, sizes.head_dim), context)

    def copy(name: str) -> Weight:
        return Weight(name, made[name].data, made[name].format, made[name].shape)

    def linear(*names: str) -> Linear:
        return Linear(tuple(map(copy, names)))

    def mlp() -> GatedMlp | Mixture:
        if not sizes.experts:
            return GatedMlp(linear("gate", "up"), linear("down"), "silu")
        gate, up, down = (tuple(copy(name) for _ in range(sizes.experts)) for name in ("gate", "up", "down"))
        return Mixture(linear("router"), Experts(gate, up, down, sizes.chosen, True, "silu"))

    def norm() -> Norm:
        return Norm(np.ones(sizes.hidden, np.float32), 1e-5)

    def block(i: int) -> Block:
        a = Attention(i, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim**-0.5, rope)
        return Block(norm(), SelfAttention(linear("q", "k", "v"), linear("o"), a), norm(), mlp())

    blocks = tuple(block(i) for i in range(sizes.layers))
    return Decoder(head, blocks, norm(), Linear((head,)), sizes.hidden, sizes.vocab, context)


def touched(model: Decoder, batch: int) -> float:
    """The part of the experts' bytes that a step of so many tokens reads, where all are as likely."""
    experts = next((block.mlp.experts for block in model.blocks if isinstance(block.mlp, Mixture)), None)
    return 1.0 if experts is None else 1 - (1 - experts.chosen / experts.count) ** batch


def experts_bytes(model: Decoder) -> int:
    mixtures = [block.mlp.experts for block in model.blocks if isinstance(block.mlp, Mixture)]
    return sum(weight.data.nbytes for experts in mixtures for weight in experts.weights)


def whole(backend: CudaBackend, sizes: Sizes, form: str, scale: Scale, bandwidth: float) -> Iterator[Line]:
    """Decoding at several batches and reading a prompt: a step's time by the clock, with what the host does."""
    model, context = decoder(sizes, form, scale.context), scale.context
    most = max(scale.batches)
    limits = StepLimits(max(512, most), most, most, context, most * -(-context // 16))
    room = backend.room(model, limits)
    fits = room.free_bytes - room.weights_bytes - room.work_bytes
    blocks = min(limits.blocks, int(0.95 * fits) // backend.kv_block_bytes(model, 16))
    backend.load(model, replace(limits, blocks=blocks))
    for batch in scale.batches:
        length = min(context, blocks * 16 // batch // 16 * 16)
        step = decoding(batch, length)
        took, host = _timed(backend, step, scale.repeats)
        cache = batch * length * backend.kv_block_bytes(model, 16) // 16
        weights = room.weights_bytes - (1 - touched(model, batch)) * experts_bytes(model)
        read = (weights + cache) / bandwidth
        what = f"{sizes.name} {form}: decoding {batch} rows of {length}"
        yield Line(what, batch / took, "tok/s", read / took, OF_FLOOR if batch == 1 else None)
        yield Line(f"{what}, the host's part of a step", host * 1e6, "us", None, HOST_US)
    prompt = min(512, limits.tokens, context)
    took, _ = _timed(backend, prompt_inputs([1] * prompt, 0, prompt, 16, wanted=(prompt - 1,)), scale.repeats)
    yield Line(f"{sizes.name} {form}: a prompt of {prompt}", prompt / took, "tok/s")
    backend.close()


def _timed(backend: CudaBackend, step: StepInputs, repeats: int) -> tuple[float, float]:
    """Seconds of a step until it is done, and until the host is free again."""
    backend.run(step)
    backend._stream.synchronize()
    took, host = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        backend.run(step)
        host.append(time.perf_counter() - began)
        backend._stream.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took), statistics.median(host)


# -- the program -------------------------------------------------------------------------------------------------------


def single_instructions(device: Device, scale: Scale) -> Iterator[Line]:
    """How many do what their definitions say, and the first difference of each that does not."""
    stream = device.stream()
    chosen = instructions.cases(device, 1 if scale is FULL else 40)
    found = {case.name: instructions.wrong(case, device, stream) for case in chosen}
    for name, difference in found.items():
        if difference:
            yield Line(f"WRONG: {name}: {difference}", 0, "")
    yield Line("right", sum(not difference for difference in found.values()), f"of {len(found)}")


def measure(scale: Scale, cache: Path) -> Iterator[tuple[str, Iterator[Line]]]:
    """Sections of lines, measured as they are asked for."""
    backend = CudaBackend(cache_dir=cache)
    yield f"conformance on {backend.describe()}", conformance(cache, scale)
    yield "single instructions", single_instructions(backend.device, scale)
    bandwidth, flops = copying(backend.device, scale), torch_product(scale)
    ceilings = [Line("copying within the device", bandwidth / GB, "GB/s")]
    ceilings += [Line("torch, bfloat16 product", flops / 1e12, "TFLOP/s")] if flops else []
    yield "ceilings", iter(ceilings)
    yield "products (part of the ceiling)", products(backend, scale, bandwidth, flops)
    yield "attention (part of the ceiling)", attention(backend, scale, bandwidth)
    yield "sampling", sampling(backend, scale)
    for sizes in scale.models:
        for form in ("BF16", "Q4_K") if scale is FULL else scale.formats[:1]:
            yield f"{sizes.name}, {form} (part of what reading it takes)", whole(backend, sizes, form, scale, bandwidth)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure the CUDA backend on this GPU.")
    parser.add_argument("--json", type=Path, help="write the lines to this file, too")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/imp"), help="where compiled kernels are kept")
    parser.add_argument("--smoke", action="store_true", help="small shapes: whether it runs, not how fast")
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    try:
        for title, section in measure(LITTLE if given.smoke else FULL, given.cache.expanduser()):
            print(title, flush=True)
            for line in section:
                print(line, flush=True)
                lines.append({"section": title, **vars(line)})
    except DeviceError as error:
        print(f"nothing can be measured here: {error}")
        return 3
    if given.json:
        given.json.write_text(json.dumps(lines, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
