"""Speed of a real model below the scheduler. Decoding one sequence reads every weight once a token, so its limit is the
memory; prefill and batches are arithmetic."""

from __future__ import annotations

import pytest

from bench.model import Case, products_per_token

# Shares of what the machine could do in the same minute, far below what is reached on an idle one (docs/PERFORMANCE.md):
# a step that lost its vectors, its threads or its packing falls through them, a busy machine does not.
SLOWEST_DECODE = 0.2  # of the memory bandwidth
SLOWEST_PREFILL = 0.25  # of the float32 multiply-add rate


def best(benchmark, driver, case: Case, rounds: int) -> float:
    """Tokens per second of the fastest round."""
    sequences = driver.ready(case)

    def start():
        for seq in sequences:
            seq.computed = case.depth

    run = {"pp": driver.prefill, "tg": driver.decode}[case.kind]
    end = case.depth + case.tokens
    benchmark.pedantic(lambda: run(sequences, end), setup=start, rounds=rounds, iterations=1, warmup_rounds=1)
    return case.work / benchmark.stats.stats.min


@pytest.mark.parametrize("name, rounds", [("pp128", 5), ("pp512", 3)])
def test_prefill(benchmark, driver, figures, multiply_adds, smollm2_path, name, rounds):
    rate = best(benchmark, driver, Case.parse(name), rounds)
    figures.note(benchmark, name, rate, "tokens/s")
    products = rate * products_per_token(smollm2_path)
    figures.note(benchmark, f"{name}, as products", products / 1e9, "GMAC/s", "float32 rate", multiply_adds.now() / 1e9)
    assert products > SLOWEST_PREFILL * multiply_adds.seen


BATCHES = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("batch", BATCHES)
def test_decode(benchmark, driver, figures, bandwidth, batch):
    case = Case("tg", 16, batch)
    rate = best(benchmark, driver, case, rounds=3)
    figures.note(benchmark, str(case), rate, "tokens/s")
    read = rate / batch * driver.memory.weights_bytes
    figures.note(benchmark, f"{case}, weights read", read / 1e9, "GB/s", "memory bandwidth", bandwidth.now() / 1e9)
    if batch == 1:
        assert read > SLOWEST_DECODE * bandwidth.seen


@pytest.mark.parametrize("batch", BATCHES)
def test_decode_of_long_sequences(benchmark, driver, figures, bandwidth, batch):
    case = Case("tg", 4, batch, 2048)
    rate = best(benchmark, driver, case, rounds=3)
    figures.note(benchmark, str(case), rate, "tokens/s")
    keys = case.depth * driver.memory.block_bytes / driver.memory.block_size  # and values, of one sequence
    read = rate / batch * (driver.memory.weights_bytes + batch * keys)
    figures.note(
        benchmark, f"{case}, weights and keys read", read / 1e9, "GB/s", "memory bandwidth", bandwidth.now() / 1e9
    )
