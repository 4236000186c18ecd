"""The table of kernels says what the files declare: names, parameters in their order, threads."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from imp.cuda import entries
from imp.cuda.build import build
from imp.cuda.compile import Compiler
from imp.cuda.entries import KV_NUMBERS, Entry
from imp.cuda.layouts import LAYOUTS

LETTERS = {"u64": "P", "u32": "i", "s32": "i", "f32": "f", "b64": "P", "b32": "i", "align": "M"}

ONE_OF_EACH = [
    *(entries.embed(layout.number) for layout in LAYOUTS.values()),
    *(entries.linear(LAYOUTS["int4"].number, tiles) for tiles in entries.TOKEN_TILES),
    *(entries.linear_tiled(LAYOUTS[kind].number) for kind in ("f32", "int4", "bf16")),
    *(entries.linear_wgmma(LAYOUTS[kind].number) for kind in ("int4", "bf16")),
    entries.IN_ORDER,
    entries.repack(0),
    entries.repack(9),
    *(entries.rotate_store(kv, 64) for kv in KV_NUMBERS.values()),
    *(entries.attend(KV_NUMBERS[kv], 64, 3, 16) for kv in ("fp32", "fp16", "int8")),
    entries.combine(KV_NUMBERS["fp16"], 64, 3, 16),
    entries.draw(1000),
    entries.report(1000),
    entries.SHRINK,
    entries.EXPAND,
    entries.RMS_NORM,
    entries.RMS_NORM_ADD,
    entries.GLU,
    entries.CONVERT,
    entries.SOFTCAP,
]


def declared(entry: Entry, ptx: str) -> tuple[str, int]:
    """The letters of a kernel's parameters, and the threads it is made for."""
    head = re.search(rf"\.entry\s+{entry.name}\((.*?)\)(.*?)\{{", ptx, re.DOTALL)
    assert head, f"there is no {entry.name} in {entry.source}"
    threads = re.search(r"\.maxntid\s+(\d+)", head[2])
    assert threads, f"{entry.name} has no launch bounds"
    return "".join(LETTERS[kind] for kind in re.findall(r"\.param\s+\.(\w+)", head[1])), int(threads[1])


@pytest.mark.parametrize("entry", ONE_OF_EACH, ids=lambda entry: f"{entry.name} {entry.source}")
def test_an_entry_is_what_its_file_declares(kernel_folder, entry):
    letters, threads = declared(entry, Compiler(kernel_folder, "sm_90a").compile(entry.source).ptx)
    assert letters == entry.signature.replace("q", "P"), "64 bits are 64 bits"
    assert threads == entry.threads


def test_what_is_built_ahead_names_each_kernel_once():
    found = list(entries.common("sm_90a"))
    assert len(found) == len(set(found)) > len(list(entries.common("sm_80"))) > 60


def test_what_is_built_is_reported(tmp_path):
    (norm,) = build([entries.RMS_NORM], "sm_89", tmp_path)
    assert norm.kernel == "rms_norm" and norm.registers > 0 and norm.spill_bytes == 0
    (more,) = build([replace(entries.RMS_NORM, shared_bytes=1024)], "sm_89", tmp_path)
    assert more.shared_bytes == norm.shared_bytes + 1024


@pytest.mark.parametrize(
    ("head_dim", "group", "tokens", "rows"),
    [(64, 3, 1, 16), (64, 3, 32, 16), (64, 3, 33, 64), (128, 17, 8, 32), (256, 4, 500, 32), (256, 40, 1, 32)],
)
def test_few_tokens_take_few_rows_of_attention(head_dim, group, tokens, rows):
    assert entries.tile_rows(head_dim, group, tokens) == rows
