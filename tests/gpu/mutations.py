"""Mistakes put into the kernels one at a time: every one has to be found by a check of the kernels' own tests.

An edit replaces text that occurs once in its file. What finds it is a call of a test, chosen for its size; the test runs in
order, shuffled with races looked for, and with copies that land late or at once, as always.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imp.cuda import compile as compiling
from tests.gpu import kernels
from tests.gpu import test_kernels_attend as attend
from tests.gpu import test_kernels_edit as edit
from tests.gpu import test_kernels_experts as experts
from tests.gpu import test_kernels_linear as linear
from tests.gpu import test_kernels_lora as lora
from tests.gpu import test_kernels_repack as repack
from tests.gpu import test_kernels_rotate as rotate
from tests.gpu import test_kernels_rows as rows
from tests.gpu import test_kernels_sample as sample
from tests.gpu.emulator import EmulatorError
from tests.gpu.packing import BF16, F16, F32, FP8, FP8B, INT4, INT4M, INT8, INT8H, INT8M, MXFP4, NVFP4

Check = Callable[[], None]


@dataclass(frozen=True)
class Mutation:
    """`check` passes on the kernels as they are, and must fail once `before` has become `after`."""

    file: str
    before: str
    after: str
    check: Check

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.before.split())} -> {' '.join(self.after.split()) or 'nothing'}"

    def applied(self) -> str:
        """The file with the mistake. Raises AssertionError where the text is not there exactly once."""
        text = (compiling.KERNELS / self.file).read_text()
        assert text.count(self.before) == 1, f"{self.file} has {text.count(self.before)} times {self.before!r}"
        return text.replace(self.before, self.after)


@contextmanager
def mistaken(mutation: Mutation, folder: Path) -> Iterator[None]:
    """Kernels with the mistake in the place of ours. folder: for a copy of them."""
    text, ours = mutation.applied(), compiling.KERNELS
    shutil.copytree(ours, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / mutation.file).write_text(text)
    compiling.KERNELS = folder
    _forget()
    name = f"imp.cuda.kernels.{Path(mutation.file).stem}"
    kept = sys.modules.get(name)
    try:
        if mutation.file.endswith(".py"):
            _import(name, folder / mutation.file)
        yield
    finally:
        compiling.KERNELS = ours
        _forget()
        if mutation.file.endswith(".py"):
            sys.modules.pop(name)
            sys.modules |= {name: kept} if kept else {}


def _import(name: str, file: Path) -> None:
    """A kernel in Python, as if it were the one of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _forget() -> None:
    compiling._headers.cache_clear()
    kernels.module.cache_clear()


def found(mutation: Mutation, folder: Path) -> str | None:
    """How the check fails, in a line, or None if it does not. A mistake that does not compile is none: CompileError."""
    with mistaken(mutation, folder):
        try:
            mutation.check()
        except EmulatorError as error:
            return str(error)
        except AssertionError as error:
            return "wrong numbers: " + " ".join(str(error).split())[:100]
    return None


# -- products ----------------------------------------------------------------------------------------------------------


def product(format: int, tokens: int = 5, outputs: int = 33, columns: int = 320) -> Check:
    return lambda: linear.test_product(format, tokens, outputs, columns)


def tiled(format: int) -> Check:
    return lambda: linear.test_bits_do_not_depend_on_other_tokens(format)


def finished(format: int) -> Check:
    return lambda: linear.test_bias_scales_and_sum(format)


LINEAR = [
    Mutation("linear_mma.cuh", "    __syncthreads();\n", "", product(INT4)),
    Mutation("linear_mma.cuh", "lane % 4 * 2 + i % 2]", "lane % 4 * 2 + i / 2]", product(F16)),
    Mutation("linear_mma.cuh", "lane / 4 + 8 * (i / 2)]", "lane / 4 + 8 * (i % 2)]", product(F16)),
    Mutation("linear_mma.cuh", "p.ldx + lane % 4 * 4", "p.ldx + lane % 4 * 2", product(F16)),
    Mutation("linear_mma.cuh", "token < p.tokens ? source_of", "true ? source_of", product(BF16)),
    Mutation("linear_mma.cuh", "if (later < records) ahead", "ahead", product(INT8)),
    Mutation("linear_mma.cuh", "s.load(p, tile0, later, records)", "s.load(p, tile0, record, records)", product(F16, 5, 33, 576)),
    Mutation("linear_mma.cuh", "W::read(p.scales, at, lane / 4 + 8)", "W::read(p.scales, at, lane / 4)", product(INT8)),
    Mutation("linear_mma.cuh", "r % 2 ? record.high[t] : record.low[t]", "r / 2 ? record.high[t] : record.low[t]", product(INT4)),
    Mutation("linear_mma.cuh", "min(tile0 + t, tiles - 1)", "(tile0 + t)", tiled(INT8)),
    Mutation("linear_mma.cuh", "for (int other = 1; other < WARPS; other++) sum += partial[other][token][row];",
             "for (int other = WARPS - 1; other > 0; other--) sum += partial[other][token][row] * (N == 8 ? 1.0000002f : 1.f);", tiled(F16)),
    Mutation("linear_mma.cuh", "s.add(now, record * COLUMNS)", "s.add(now, first * COLUMNS)", product(F16)),
    Mutation("product.cuh", "token >= p.tokens || row >= p.rows", "token >= p.tokens", product(F16, 1, 40)),
    Mutation("product.cuh", "token >= p.tokens || row >= p.rows", "row >= p.rows", tiled(INT8)),
    Mutation("product.cuh", "if (p.bias) sum += p.bias[row];", "if (p.bias) sum += p.bias[token];", finished(F16)),
    Mutation("product.cuh", "max(0, source_of(p, token)) : token]", "max(0, source_of(p, token)) : 0]", finished(F16)),
    Mutation("product.cuh", "p.add ? *y + sum : sum", "sum", finished(INT8)),
    Mutation("weights.cuh", "twice(0xe400 + zero));\n}\n// the same", "twice(0xe401 + zero));\n}\n// the same", product(INT4)),
    Mutation("weights.cuh", "integers(bytes_of(v, step, r), 128), twice(d)", "integers(bytes_of(v, step, r), 127), twice(d)", product(INT8)),
    Mutation("weights.cuh", "0x64646464, 0x4140", "0x64646464, 0x4041", product(INT8M)),
    Mutation("weights.cuh", "word(v, 2 * step + r / 2) >> 16 * (r % 2)", "word(v, 2 * step + r % 2) >> 16 * (r / 2)", product(INT8)),
    Mutation("weights.cuh", "twice((u16)(s >> 16 * step))", "twice((u16)s)", product(INT8H)),
    Mutation("weights.cuh", "twice((u16)(s >> 16 * (step / 2)))", "twice((u16)(s >> 16 * (step % 2)))", product(INT4)),
    Mutation("weights.cuh", "u32 pair = step / 2 ? s.y : s.x;", "u32 pair = s.x;", product(INT4M)),
    Mutation("weights.cuh", "e4m3_pair(bytes_of(v, step, r)), twice(d)", "e4m3_pair(bytes_of(v, step, r)), twice(0x3c00)", product(FP8B)),
    Mutation("weights.cuh", "(pair & 0x7f007f00) >> 1", "(pair & 0x7f007f00) >> 2", product(FP8)),
    Mutation("weights.cuh", "u32 scale = s >> 8 * step & 0xff;", "u32 scale = s >> 8 * (step / 2) & 0xff;", product(NVFP4)),
    Mutation("weights.cuh", "(power - 9) << 10", "(power - 8) << 10", product(MXFP4)),
    Mutation("product.cuh", "if (ROW_SCALED) sum *= p.row_scales[row];", "if (ROW_SCALED) sum *= p.row_scales[0];", finished(MXFP4)),
    Mutation("linear_exact.cuh", "fmaf(weight, ((const", "fmaf(weight * 1.0001f, ((const", product(F32)),
    Mutation("linear_exact.cuh", "min(token0 + first + i * stride, p.tokens - 1)", "(token0 + first + i * stride)", product(F32)),
    Mutation("linear_exact.cuh", "            finish<false>(p, token0 + token, tile0 * TILE + at, sum);\n        }\n        __syncthreads();",
             "            finish<false>(p, token0 + token, tile0 * TILE + at, sum);\n        }", tiled(F32)),
]  # fmt: skip

# -- weights brought into order ----------------------------------------------------------------------------------------


def repacked(name: str, columns: int = 320) -> Check:
    return lambda: repack.test_what_the_host_makes_of_a_file(name, 21, columns)


REPACK = [
    Mutation("repack.cu", "lane / 4 + 8 * (r % 2);", "lane / 4 + 8 * (r / 2);", repacked("F16")),
    Mutation("repack.cu", "(16 * (r % 2) + 8 * e)", "(16 * e + 8 * (r % 2))", repacked("Q8_0")),
    Mutation("repack.cu", "(4 * r + 16 * e)", "(8 * r + 4 * e)", repacked("Q4_0")),
    Mutation("repack.cu", "row < rows && column < columns ? F::code", "column < columns ? F::code", repacked("Q4_1")),
    Mutation("repack.cu", "row < rows && block * BLOCK < columns", "row < rows", repacked("Q5_1", 96)),
    Mutation("repack.cu", ">> at % 8 & 1) << 4", ">> at % 8 & 1) << 3", repacked("Q5_0")),
    Mutation("repack.cu", "half_at(in_file) | half_at(in_file + 2) << 16", "half_at(in_file + 2) | half_at(in_file) << 16", repacked("Q4_K")),
    Mutation("repack.cu", "scale = byte_at(scales + block - 4) >> 6", "scale = byte_at(scales + block) >> 6", repacked("Q4_K")),
    Mutation("repack.cu", "half_at(whole + 2) ^ 0x8000", "half_at(whole + 2)", repacked("Q5_K")),
    Mutation("repack.cu", ">> 2 * quarter & 3", ">> quarter & 3", repacked("Q6_K")),
    Mutation("repack.cu", "record * STEP + i / TILE;", "record * STEP + i % TILE;", repacked("F32")),
]  # fmt: skip

# -- attention ---------------------------------------------------------------------------------------------------------


def attention(kind: str = "fp16", rows: int = 16, split: bool = False, **more: float) -> Check:
    """A chunk of three and a single token, over more than one tile of keys."""

    def check() -> None:
        given = {"d": 64, "group": 4, "kv_heads": 2, "new": (3, 1), "contexts": (70, 133), **more}
        case = attend.Case(kind, **given)  # type: ignore[arg-type]
        assert kernels.error(case.attend(rows, split), case.expected) < attend.tolerance(kind)

    return check


def splits() -> None:
    """Whoever merges, the numbers are right, and the same."""
    case = attend.Case("fp16", 32, group=2, kv_heads=1, new=(2,), contexts=(1030,))
    together = case.attend(16, False)
    assert kernels.error(together, case.expected) < attend.tolerance("fp16")
    assert (case.attend(16, True) == together).all(), "bits depend on who merges"


ATTEND = [
    Mutation("attend.cu", "bool seen = key <= position &&", "bool seen = key < position &&", attention()),
    Mutation("attend.cu", "key > position - window)", "key >= position - window)", attention(window=40)),
    Mutation("attend.cu", "s.end = s.first_position + tokens;", "s.end = s.first_position + 1;", attention()),
    Mutation("attend.cu", "contexts[tile.sequence] - count + tile.token", "contexts[tile.sequence] - count", attention(rows=16, group=8, new=(5, 1))),
    Mutation("attend.cu", "s.first_position - window + 1) / KEYS * KEYS", "s.first_position - window + 1 + KEYS) / KEYS * KEYS", attention(window=40)),
    Mutation("attend.cu", "table + table_starts[tile.sequence]", "table", attention()),
    Mutation("attend.cu", "score = capped(score, softcap)", "score = score", attention(softcap=2.0)),
    Mutation("attend.cu", "exp2_of(m - top), exp2_of(split_m - top)", "1.f, exp2_of(split_m - top)", splits),
    Mutation("attend.cu", "split < min(splits, counts[5])", "split < splits", attention(split=True)),
    Mutation("attend.cu", "sum = __fmaf_rn(sum, f.total, __fmul_rn(split_sum, f.split));", "sum = sum * f.total + split_sum;", splits),
    Mutation("attend.cu", "o[i] = merged(o[i], part[i * 32 + lane], f);", "o[i] += part[i * 32 + lane];", splits),
    Mutation("attend.cu", "blockIdx.y >= counts[4] ||", "", attention()),
    Mutation("attend_mma.cuh", "        __syncthreads();  // keys are there\n", "", attention()),
    Mutation("attend_mma.cuh", "        copies_wait<1>();\n        __syncthreads();  // keys are there", "        copies_wait<2>();\n        __syncthreads();", attention()),
    Mutation("attend_mma.cuh", "        copies_wait<1>();\n        __syncthreads();  // values are there", "        copies_wait<2>();\n        __syncthreads();", attention()),
    Mutation("attend_mma.cuh", "        __syncthreads();  // values are there\n", "", attention()),
    Mutation("attend_mma.cuh", "        __syncthreads();  // keys are used, scores are exchanged\n", "", attention()),
    Mutation("attend_mma.cuh", "        __syncthreads();  // values are used\n", "", attention()),
    Mutation("attend_mma.cuh", "now.sum[h] *= kept;", "", attention()),
    Mutation("attend_mma.cuh", "now.o[i][2 * h] *= kept, now.o[i][2 * h + 1] *= kept;", ";", attention()),
    Mutation("attend_mma.cuh", "lane % 8 + lane / 16 * 8;\n                load_matrices(b, keys", "lane % 16;\n                load_matrices(b, keys", attention()),
    Mutation("attend_mma.cuh", "Kept::mma(scores[n + 1], a, b[2], b[3]);", "Kept::mma(scores[n + 1], a, b[3], b[2]);", attention()),
    Mutation("attend_mma.cuh", "load_matrices_turned(b, values", "load_matrices(b, values", attention()),
    Mutation("attend_mma.cuh", "{weights[2 * n][0], weights[2 * n][1], weights[2 * n + 1][0], weights[2 * n + 1][1]}",
             "{weights[2 * n][0], weights[2 * n + 1][0], weights[2 * n][1], weights[2 * n + 1][1]}", attention()),
    Mutation("attend_mma.cuh", "there = min(key, span.end - 1);", "there = key;", attention(new=(3,), contexts=(70,))),
    Mutation("attend_mma.cuh", "if (row >= span.rows) continue;", "", attention(split=True)),
    Mutation("attend_mma.cuh", "row < span.rows ? *(const u32*)query(row, column) : 0", "*(const u32*)query(row, column)", attention()),
    Mutation("attend_mma.cuh", "            now.reset();\n        }\n    }\n    copies_wait<0>();", "        }\n    }\n    copies_wait<0>();", splits),
    Mutation("attend_mma.cuh", "    __syncthreads();\n    for (int row = warp;", "    for (int row = warp;", attention()),
    Mutation("attend_exact.cuh", "        __syncthreads();\n        for (int key = 0; key < KEYS; key++)", "        for (int key = 0; key < KEYS; key++)", attention(kind="fp32")),
    Mutation("attend_exact.cuh", "now[r].sum = fmaf(now[r].sum, f, warp_sum(sum));", "now[r].sum += warp_sum(sum);", attention(kind="fp32")),
]  # fmt: skip

# -- keys and values, rows ---------------------------------------------------------------------------------------------


def stored(kind: str, d: int = 64) -> Check:
    return lambda: rotate.test_what_is_kept_is_what_the_format_says(kind, d)


def roped(kind: str = "fp16") -> Check:
    return lambda: rotate.test_norms_and_rope(kind, 64, 32)


def normed(form: str = "f16") -> Check:
    return lambda: rows.test_norm_as_an_operand(form, 3, 200)


def gelu() -> None:
    rows.test_gated_activations("f16", 1, rows.gelu_tanh, 3, 200)


ROWS = [
    Mutation("kv.cuh", "for (int half = 1; half < TURNING; half *= 2) {\n        __syncwarp();", "for (int half = 1; half < TURNING; half *= 2) {", stored("int8")),
    Mutation("kv.cuh", "start + BLOCK * CODES + offset * SCALES", "start + BLOCK * CODES + offset", stored("int8")),
    Mutation("kv.cuh", "(size_t)(2 * head + second)", "(size_t)(head + second)", stored("fp16")),
    Mutation("kv.cuh", "fminf(fmaxf(rintf(y), -127.f), 127.f)", "fminf(fmaxf(truncf(y), -127.f), 127.f)", stored("int8")),
    Mutation("kv.cuh", "fminf(ceilf(__fmul_rn(width, inverse_of(unit))), 255.f)", "fminf(rintf(__fmul_rn(width, inverse_of(unit))), 255.f)", stored("int4")),
    Mutation("kv.cuh", "power = exponent > 2 ? exponent - 2 : 0", "power = exponent > 2 ? exponent - 1 : 0", stored("mxfp4")),
    Mutation("kv.cuh", "__fmul_rn(__fmul_rn(largest, 1.f / 6), inverse_of(whole))", "__fmul_rn(__fmul_rn(largest, 1.f / 7), inverse_of(whole))", stored("nvfp4")),
    Mutation("kv.cuh", "x[i] = KV == INT4_KV ? (float)code * scale + least", "x[i] = KV == INT4_KV ? (float)code * scale", attention(kind="int4")),
    Mutation("kv.cuh", "* (-1.f / 16) * scale;\n    } else if", "* (1.f / 16) * scale;\n    } else if", attention(kind="int4")),
    Mutation("rotate.cu", "x[i + half] = b * cos[i] + a * sin[i];", "x[i + half] = b * cos[i] - a * sin[i];", roped()),
    Mutation("rotate.cu", "rsqrtf(warp_sum(sum) / D + eps)", "rsqrtf(sum / D + eps)", roped()),
    Mutation("rotate.cu", "slot / BLOCK, slot % BLOCK", "slot / BLOCK, slot % 8", stored("fp16")),
    Mutation("rotate.cu", "if (token >= counts[0]) return;", "", stored("fp16")),
    Mutation("rotate.cu", "for (int i = H * D + lane; head == H - 1 && i < ldq; i += 32)", "for (int i = H * D + lane; head == H && i < ldq; i += 32)", stored("fp16", 80)),
    Mutation("prelude.cuh", "room[threadIdx.x / 32] = x;\n    __syncthreads();", "room[threadIdx.x / 32] = x;", normed()),
    Mutation("prelude.cuh", "for (int step = 16; step; step >>= 1) x += __shfl", "for (int step = 8; step; step >>= 1) x += __shfl", normed()),
    Mutation("norm.cu", "(float)columns + eps", "(float)(columns + 4) + eps", normed()),
    Mutation("norm.cu", "(size_t)(rows ? rows[i] : i)", "(size_t)i", rows.test_norm_of_chosen_rows),
    Mutation("norm.cu", "if (i >= counts[word]) return;", "", rows.test_norm_of_chosen_rows),
    Mutation("rows.cuh", "if (column + 3 < count) return", "if (column < count) return", lambda: rows.test_norm_as_an_operand("f32", 2, 61)),
    Mutation("glu.cu", "int power = max(0,", "int power = min(0,", gelu),
    Mutation("glu.cu", "0.044715f * gate * gate * gate", "0.044715f * gate * gate", gelu),
    Mutation("glu.cu", "        __syncthreads();\n        UNROLL\n        for (int warp", "        UNROLL\n        for (int warp", gelu),
    Mutation("convert.cu", "min(columns, (int)(blockIdx.y + 1) * THREADS * 4)", "(int)(blockIdx.y + 1) * THREADS * 4", rows.test_cap_on_logits),
    Mutation("embed.cu", "tokens[blockIdx.x] % TILE", "tokens[blockIdx.x] % 8", lambda: rows.test_embedding(INT4)),
    Mutation("embed.cu", "row % 8 * 4 + part", "row % 4 * 8 + part", lambda: rows.test_embedding(INT8)),
]  # fmt: skip

# -- sampling ----------------------------------------------------------------------------------------------------------


def drawn(seed: int = 2, vocab: int = 1000) -> Check:
    return lambda: sample.test_random_plans_draw_what_the_reference_draws(seed, vocab)


def filtered() -> None:
    sample.test_every_filter_at_a_larger_vocabulary()


SAMPLE = [
    Mutation("sample.cu", "raw & 0x80000000 ? ~raw : raw | 0x80000000", "raw | 0x80000000", drawn()),
    Mutation("sample.cu", "            __syncwarp();\n            if (lane == 0) left[word] = bits;", "            if (lane == 0) left[word] = bits;", filtered),
    Mutation("sample.cu", "if (shift == 24 || k >> (shift + 8) == found)", "if (true)", filtered),
    Mutation("sample.cu", "atomicAdd(&room->histogram[k >> shift & 255], weight(x))", "room->histogram[k >> shift & 255] += weight(x)", filtered),
    Mutation("sample.cu", "k > found || (k == found && above + sum - mine < target)", "k >= found", filtered),
    Mutation("sample.cu", "(changed ? edited : raw)", "(raw)", drawn()),
    Mutation("sample.cu", "|| token + 1u == stays", "", filtered),
    Mutation("sample.cu", "ranks[r] = 1 + (int)larger", "ranks[r] = (int)larger", filtered),
    Mutation("sample.cu", "__float_as_uint(fabsf(__fsub_rn(row.log_weight(x), mean)))", "__float_as_uint(__fsub_rn(row.log_weight(x), mean))", filtered),
    Mutation("sample.cu", "DEVICE u64 block_total(u64 x, Room* room) {\n    x = warp_total(x);\n    __syncthreads();", "DEVICE u64 block_total(u64 x, Room* room) {\n    x = warp_total(x);", filtered),
    Mutation("sample.cu", "number(ETA) * (surprise -", "number(ETA) * (surprise +", filtered),
    Mutation("edit.py", "v / repetition if v > 0.0 else v * repetition", "v / repetition", edit.test_logits_are_edited_as_the_plan_says),
    Mutation("edit.py", "v -= frequency * count", "v -= frequency", edit.test_logits_are_edited_as_the_plan_says),
    Mutation("edit.py", "if count > 0:", "if count >= 0:", edit.test_logits_are_edited_as_the_plan_says),
    Mutation("edit.py", "    cuda.syncthreads()\n    if mask >= 0:", "    if mask >= 0:", edit.test_logits_are_edited_as_the_plan_says),
    Mutation("edit.py", "t = mask_tokens[bit]", "t = bit", edit.test_logits_are_edited_as_the_plan_says),
    Mutation("edit.py", "t, bit = aliases[2 * i], aliases[2 * i + 1]", "bit, t = aliases[2 * i], aliases[2 * i + 1]", edit.test_logits_are_edited_as_the_plan_says),
]  # fmt: skip

# -- products by warp groups, adapters, experts ------------------------------------------------------------------------


def by_groups(format: int = INT4, tokens: int = 70, outputs: int = 150, columns: int = 384) -> Check:
    return lambda: linear.test_product_by_warp_groups(format, tokens, outputs, columns)


def adapters() -> None:
    lora.test_adapters("f16", 300, (513, 7))


def chosen(kind: int, count: int = 40, k: int = 6, normalise: bool = False) -> Check:
    return lambda: experts.test_who_is_chosen(kind, count, k, normalise)


def placed() -> None:
    experts.test_where_rows_go(40, 4, 32)


def mixed(format: int = BF16) -> Check:
    return lambda: experts.test_what_comes_of_them(format, 1)


REST = [
    Mutation("linear_wgmma.cu", "(u64)(1024 >> 4) << 32", "(u64)(512 >> 4) << 32", by_groups()),
    Mutation("linear_wgmma.cu", "(full + slot), STAGE_BYTES)", "(full + slot), STAGE_BYTES - 64)", by_groups()),
    Mutation("linear_wgmma.cu", "if (stage >= STAGES) barrier_wait", "if (false) barrier_wait", by_groups()),
    Mutation("linear_wgmma.cu", "(stage / STAGES - 1) & 1", "(stage / STAGES) & 1", by_groups()),
    Mutation("linear_wgmma.cu", "stage / STAGES & 1);", "stage / STAGES + 1 & 1);", by_groups()),
    Mutation("linear_wgmma.cu", "if (record % EACH == 0) barrier_wait", "if (false) barrier_wait", by_groups(F16)),
    Mutation("linear_wgmma.cu", "&& threadIdx.x % 128 == 0) barrier_arrive", "&& threadIdx.x == 0) barrier_arrive", by_groups()),
    Mutation("linear_wgmma.cu", "barrier_init(shared_address(empty + i), GROUPS)", "barrier_init(shared_address(empty + i), 1)", by_groups()),
    Mutation("linear_wgmma.cu", "descriptor(box + step * (STEP * 2))", "descriptor(box + step * STEP)", by_groups()),
    Mutation("linear_wgmma.cu", "{low.x, low.z, high.x, high.z}", "{low.x, low.y, high.x, high.y}", by_groups()),
    Mutation("linear_wgmma.cu", "stage * COLUMNS, token0)", "stage * COLUMNS, 0)", by_groups()),
    Mutation("linear_wgmma.cu", "        asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");\n    }\n    __syncthreads();", "    }", by_groups()),
    Mutation("lora.cu", "sum * xscale[token] : sum", "sum * xscale[0] : sum", adapters),
    Mutation("lora.cu", "bool both = n + 1 < outputs;", "bool both = true;", adapters),
    Mutation("lora.cu", "ldh + pair.first;", "ldh;", adapters),
    Mutation("lora.cu", "(size_t)row * ldx + column);", "(size_t)row * ldx + column / 2);", adapters),
    Mutation("experts.cu", "if (keys[e] > best) best", "if (keys[e] >= best) best", chosen(experts.SOFTMAX)),
    Mutation("experts.cu", "        __syncwarp();\n        if (lane == 0) keys[at]", "        if (lane == 0) keys[at]", chosen(experts.SIGMOID)),
    Mutation("experts.cu", "if (normalise || kind == SOFTMAX_OF_CHOSEN) chosen /= total;", "if (normalise) chosen /= total;", chosen(experts.SOFTMAX_OF_CHOSEN)),
    Mutation("experts.cu", "__popc(all & ((1u << lane) - 1))", "__popc(all & ((2u << lane) - 1))", placed),
    Mutation("experts.cu", "for (int i = row + lane; i < end; i += 32) sources[i] = -1;", "", placed),
    Mutation("experts.cu", "(sizes[e] + align - 1) / align;", "sizes[e] / align;", placed),
    Mutation("experts.cu", "fmaf(weights[token * K + k], x", "fmaf(weights[k], x", mixed()),
    Mutation("linear_experts.cu", "codes + expert * expert_codes", "codes", mixed()),
    Mutation("linear_experts.cu", "if (expert < 0) return;", "", mixed()),
    Mutation("linear_experts.cu", "row_scales + expert * expert_row_scales", "row_scales", mixed(MXFP4)),
    Mutation("experts.cu", "total[0] = end;", "total[0] = row;", placed),
    Mutation("experts.cu", "(u32)MOST_EXPERTS), E - 1);", "(u32)MOST_EXPERTS), MOST_EXPERTS);", experts.test_scores_that_are_no_numbers_choose_experts_that_there_are),
]  # fmt: skip

MUTATIONS = [*LINEAR, *REPACK, *ATTEND, *ROWS, *SAMPLE, *REST]
