"""Each check of the emulator finds the bug that it is for, and lets the same kernel without it pass."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.gpu.emulator import EmulatorError, Module, frozen, poisoned, tensor_map
from tests.gpu.emulator.module import has_compiler
from tests.gpu.micro.case import module

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs gcc")

_DECLARED = """
    .reg .pred %p, %q;
    .reg .b32 %x, %y, %s, %n;
    .reg .b64 %at, %g;
    mov.u32 %s, tile;
    mad.lo.u32 %s, %thread, 4, %s;
    mad.lo.u64 %at, %wide, 4, %arg0;
"""
_TILE = ".shared .align 1024 .b8 tile[1024];\n.shared .align 8 .b8 bar[16];"


def _kernel(body: str, parameters: Sequence[str] = ("u64",)) -> str:
    return module(parameters, _DECLARED + body, "sm_90a", _TILE)


def _run(body: str, *args: object, threads: int = 64, blocks: int = 1, parameters: Sequence[str] | None = None, race_check: bool = True,
         **options: object) -> None:
    """Launches a body over one output array of 64 words, or over `args`."""
    given = args or (poisoned(64, np.uint32),)
    types = parameters or ["u64" if isinstance(a, np.ndarray) else "u32" for a in given]
    Module(_kernel(body, types)).launch("micro", (blocks,), (threads,), given, race_check=race_check, **options)


def _fails(body: str, match: str, *args: object, **options: object) -> None:
    with pytest.raises(EmulatorError, match=match):
        _run(body, *args, **options)


# memory ---------------------------------------------------------------------------------------------------------------------

_STORE = "st.global.u32 [%at], %thread;"


def test_a_store_past_an_array_is_refused_and_named():
    out = poisoned(63, np.uint32)
    _run("setp.lt.u32 %p, %thread, 63;\n@%p " + _STORE, out)
    _fails(_STORE, r"global access outside every allocation: kernel micro block \(0,0,0\) thread \(63,0,0\)", out)
    assert (out == np.arange(63)).all()


def test_a_load_that_reaches_over_the_end_is_refused():
    _fails("add.u64 %at, %at, 0;\nld.global.v4.u32 {%x, %y, %s, %n}, [%at];", "misaligned global access|outside every")


def test_a_misaligned_access_is_refused():
    _fails("add.u64 %at, %at, 2;\nld.global.u32 %x, [%at];", "misaligned global access")
    _fails("add.u32 %s, %s, 2;\nst.shared.u32 [%s], %x;", "misaligned shared access")


def test_shared_memory_has_an_end():
    _run("st.shared.u32 [%s+512], %thread;")
    _fails("st.shared.u32 [%s+1024], %thread;", "shared access out of bounds")


def test_a_null_pointer_into_shared_memory_is_refused():
    _fails("mov.u32 %s, 0;\nst.shared.u32 [%s], %thread;", "shared access out of bounds")


def test_dynamic_shared_memory_is_as_large_as_the_launch_says():
    text = ".extern .shared .align 16 .b8 dynamic[];"
    body = _DECLARED + "mov.u32 %s, dynamic;\nmad.lo.u32 %s, %thread, 4, %s;\nst.shared.u32 [%s], %thread;"
    built = Module(module(["u64"], body, "sm_90a", _TILE + text))
    built.launch("micro", (1,), (64,), [poisoned(64, np.uint32)], shared=256)
    with pytest.raises(EmulatorError, match="shared access out of bounds"):
        built.launch("micro", (1,), (64,), [poisoned(64, np.uint32)], shared=252)


def test_an_array_that_is_only_read_cannot_be_written():
    _fails(_STORE, "write to memory that is only to be read", frozen(np.zeros(64, np.uint32)))


def test_generic_addresses_reach_shared_memory_and_are_checked_there():
    body = ".reg .b64 %shared;\ncvt.u64.u32 %shared, %s;\ncvta.shared.u64 %g, %shared;\nst.u32 [%g+{offset}], %thread;\n" \
           "ld.shared.u32 %x, [%s+{offset}];\nst.global.u32 [%at], %x;"
    out = poisoned(64, np.uint32)
    _run(body.format(offset=0), out)
    assert (out == np.arange(64)).all()
    _fails(body.format(offset=2048), "outside every allocation")


def test_what_was_never_written_is_poison():
    out = np.zeros(64, np.uint32)
    _run("ld.shared.u32 %x, [%s];\nst.global.u32 [%at], %x;", out)
    assert (out == 0xFFFFFFFF).all()
    _run(".reg .b32 %unset;\nst.global.u32 [%at], %unset;", out)
    assert (out == 0xCDCDCDCD).all()


# races ----------------------------------------------------------------------------------------------------------------------

_EXCHANGE = "st.shared.u32 [%s], %thread;\n{between}\nxor.b32 %y, %thread, {far};\nmov.u32 %s, tile;\nmad.lo.u32 %s, %y, 4, %s;\n" \
            "ld.shared.u32 %x, [%s];\nst.global.u32 [%at], %x;"


def _exchange(between: str, far: int) -> np.ndarray:
    out = poisoned(64, np.uint32)
    _run(_EXCHANGE.format(between=between, far=far), out)
    return out


def test_a_read_without_the_barrier_is_a_race():
    assert (_exchange("bar.sync 0;", 32) == np.arange(64) ^ 32).all()
    _fails(_EXCHANGE.format(between="", far=32), "race: read of a shared byte that is written without synchronisation|race: write over")


def test_lanes_of_a_warp_need_a_syncwarp():
    assert (_exchange("bar.warp.sync 0xffffffff;", 1) == np.arange(64) ^ 1).all()
    _fails(_EXCHANGE.format(between="", far=1), "race: ")


def test_a_syncwarp_is_not_enough_between_warps():
    _fails(_EXCHANGE.format(between="bar.warp.sync 0xffffffff;", far=32), "race: ")


def test_a_write_over_what_others_still_read_is_a_race():
    body = _EXCHANGE.format(between="bar.sync 0;", far=32) + "\n{barrier}\nmov.u32 %s, tile;\nmad.lo.u32 %s, %thread, 4, %s;\nst.shared.u32 [%s], 2;"
    _run(body.format(barrier="bar.sync 0;"))
    _fails(body.format(barrier=""), "race: (write over|read of) ")
    _fails(body.format(barrier=""), "race: (write over|read of) ", seed=3)


def test_neighbouring_halves_of_a_word_are_no_race():
    _run("mov.u32 %s, tile;\nmad.lo.u32 %s, %thread, 2, %s;\n.reg .b16 %h;\ncvt.u16.u32 %h, %thread;\nst.shared.u16 [%s], %h;")


def test_two_writes_to_one_byte_are_a_race_and_atomics_are_not():
    _fails("mov.u32 %s, tile;\nst.shared.u32 [%s], %thread;", "race: two writes to a shared byte")
    _run("mov.u32 %s, tile;\nred.shared.add.u32 [%s], %thread;")


def test_named_barriers_order_those_who_meet_at_them():
    half = "setp.ge.u32 %p, %thread, 64;\n@%p bra OTHERS;\n" + _EXCHANGE.format(between="bar.sync {number}, 64;", far=32) + "\nOTHERS:"
    _run(half.format(number=1), threads=128)
    producer = "setp.ge.u32 %p, %thread, 32;\n@%p bra CONSUMER;\nst.shared.u32 [%s], %thread;\n{arrive}\nbra DONE;\nCONSUMER:\n{wait}\n" \
               "ld.shared.u32 %x, [%s+-128];\nst.global.u32 [%at+-128], %x;\nDONE:"
    out = poisoned(64, np.uint32)
    _run(producer.format(arrive="bar.arrive 2, 64;", wait="bar.sync 2, 64;"), out)
    assert (out[:32] == np.arange(32)).all()
    _fails(producer.format(arrive="", wait=""), "race: ")


def test_threads_that_exchange_through_global_memory_need_a_barrier():
    body = "st.global.u32 [%at], %thread;\n{barrier}\nxor.b32 %y, %thread, 32;\nmul.wide.u32 %g, %y, 4;\nadd.u64 %g, %g, %arg0;\nld.global.u32 %x, [%g];"
    _run(body.format(barrier="bar.sync 0;"))
    with pytest.raises(EmulatorError, match="race: read of global memory that is written"):
        _run(body.format(barrier=""))
    _fails("st.global.u32 [%arg0], %thread;", "race: two writes to global memory")


def test_blocks_that_write_the_same_memory_race():
    out = poisoned(64, np.uint32)
    _fails(_STORE, "race: two blocks write the same memory", out, blocks=2)
    _run("red.global.add.u32 [%at], %thread;", out, blocks=2)


def test_a_block_may_read_what_others_wrote_after_an_atomic_only():
    read = "mov.u32 %n, %ctaid.x;\nsetp.eq.u32 %p, %n, 0;\n@%p st.global.u32 [%at], %thread;\n{between}\n@!%p ld.global.u32 %x, [%at];"
    _fails(read.format(between=""), "race: read of what another block writes", blocks=2)
    counter = "red.global.add.u32 [%arg1], 1;"
    _run(read.format(between=counter), poisoned(64, np.uint32), np.zeros(1, np.uint32), blocks=2)


# divergence and deadlock ----------------------------------------------------------------------------------------------------

def test_a_barrier_that_some_threads_miss_is_found():
    _fails("setp.lt.u32 %p, %thread, 40;\n@%p bar.sync 0;\nbar.sync 0;", "divergent barrier")


def test_a_barrier_within_a_warp_that_parts_is_found():
    _fails("setp.lt.u32 %p, %thread, 40;\n@%p bra A;\nbar.sync 0;\nbra B;\nA:\nbar.sync 0;\nB:", "divergent barrier: the lanes of a warp")


def test_threads_that_have_left_are_not_waited_for():
    _run("setp.lt.u32 %p, %thread, 32;\n@%p exit;\nbar.sync 0;")


def test_a_shuffle_that_some_lanes_miss_is_found():
    _fails("setp.lt.u32 %p, %thread, 8;\n@%p shfl.sync.idx.b32 %x, %y, 0, 31, 0xffffffff;\nbar.warp.sync 0xffffffff;", "divergent collective")


def test_a_shuffle_reads_no_lane_outside_its_mask():
    _run("setp.lt.u32 %p, %thread, 8;\n@%p shfl.sync.idx.b32 %x, %y, 7, 31, 0xff;")
    _fails("setp.lt.u32 %p, %thread, 8;\n@%p shfl.sync.idx.b32 %x, %y, 8, 31, 0xff;", "shuffle from a lane that is not in the member mask")


def test_a_lane_has_to_be_in_its_own_mask():
    _fails("bar.warp.sync 0xff;", "a lane is not in its own member mask")


def test_a_loop_that_does_not_end_is_stopped():
    _fails("A:\nbra A;", "a loop does not end", threads=1)


# asynchronous copies --------------------------------------------------------------------------------------------------------

_COPY = "cp.async.ca.shared.global [%s], [%at], 4;\ncp.async.commit_group;\n{wait}\n{barrier}\nld.shared.u32 %x, [%s];\n" \
        "mad.lo.u64 %g, %wide, 4, %arg1;\nst.global.u32 [%g], %x;"


def _copied(wait: str, late: bool = True) -> np.ndarray:
    source, out = frozen(np.arange(64, dtype=np.uint32) + 5), poisoned(64, np.uint32)
    _run(_COPY.format(wait=wait, barrier=""), source, out, race_check=False, late=late)
    return out


def test_a_copy_that_is_not_waited_for_has_not_arrived():
    assert (_copied("cp.async.wait_group 0;") == np.arange(64) + 5).all()
    assert (_copied("cp.async.wait_group 1;") == 0xFFFFFFFF).all()
    assert (_copied("cp.async.wait_group 1;", late=False) == np.arange(64) + 5).all()


def test_a_copy_fills_with_zeros_what_it_does_not_read():
    source, out = frozen(np.arange(32, dtype=np.uint32) + 5), poisoned(64, np.uint32)
    body = "setp.lt.u32 %p, %thread, 32;\nselp.u32 %n, 4, 0, %p;\n" \
           + _COPY.replace("[%at], 4;", "[%at], 4, %n;").format(wait="cp.async.wait_all;", barrier="")
    _run(body, source, out)
    assert (out == np.where(np.arange(64) < 32, np.arange(64) + 5, 0)).all()


_PIPE = """
    .reg .b32 %bar, %tile;
    mov.u32 %bar, bar;
    mov.u32 %tile, tile;
    setp.eq.u32 %p, %thread, 0;
    @%p mbarrier.init.shared.b64 [%bar], {count};
    bar.sync 0;
    @%p mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {bytes};
    @%p cp.async.bulk.{copy};
WAIT:
    mbarrier.try_wait.parity.shared.b64 %q, [%bar], {parity};
    @!%q bra WAIT;
    ld.shared.u32 %x, [%s];
    mad.lo.u64 %g, %wide, 4, %arg{out};
    st.global.u32 [%g], %x;
"""
_WHOLE = "shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%arg0], 256, [%bar]"


def _pipe(count: int = 1, size: int = 256, parity: int = 0) -> np.ndarray:
    source, out = frozen(np.arange(64, dtype=np.uint32) + 5), poisoned(64, np.uint32)
    _run(_PIPE.format(count=count, bytes=size, parity=parity, copy=_WHOLE, out=1), source, out)
    return out


def test_a_bulk_copy_is_there_when_its_mbarrier_says_so():
    assert (_pipe() == np.arange(64) + 5).all()


@pytest.mark.parametrize("wrong", [{"count": 2}, {"size": 252}, {"size": 260}])
def test_an_mbarrier_with_wrong_counts_never_completes(wrong: dict[str, int]):
    with pytest.raises(EmulatorError, match="deadlock: the phase of an mbarrier never ends"):
        _pipe(**wrong)


def test_waiting_for_the_other_phase_is_a_race():
    with pytest.raises(EmulatorError, match="race: read of a shared byte that is written"):
        _pipe(parity=1)


def test_more_arrivals_than_an_mbarrier_expects_are_found():
    _fails("mov.u32 %s, bar;\nsetp.eq.u32 %p, %thread, 0;\n@%p mbarrier.init.shared.b64 [%s], 71;\nbar.sync 0;\nmbarrier.arrive.shared.b64 _, [%s], 2;",
           "more arrivals at an mbarrier than it expects")


def test_others_may_use_an_mbarrier_once_they_know_of_its_initialisation():
    body = "mov.u32 %s, bar;\nsetp.eq.u32 %p, %thread, 0;\n@%p mbarrier.init.shared.b64 [%s], 32;\n{barrier}\nsetp.ge.u32 %q, %thread, 32;\n@%q mbarrier.arrive.shared.b64 _, [%s];"
    _run(body.format(barrier="bar.sync 0;"))
    _fails(body.format(barrier=""), "race: two writes to a shared byte")


def test_an_mbarrier_has_to_be_initialised():
    _fails("mov.u32 %s, bar;\nmbarrier.arrive.shared.b64 _, [%s];", "mbarrier that was not initialised")


@pytest.mark.parametrize("swizzle", [0, 128])
def test_a_tensor_copy_brings_its_box_and_zeros_outside(swizzle: int):
    source, out = frozen(np.arange(40, dtype=np.uint32).reshape(5, 8)), poisoned(64, np.uint32)
    box = (2, 32) if swizzle else (8, 8)
    copy = "tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [p0, {%n, %y}], [%bar]"
    body = "mov.u32 %n, 4;\nmov.u32 %y, 3;\n" + _PIPE.format(count=1, bytes=256, parity=0, copy=copy, out=1)
    text = module(["u64", "u64"], _DECLARED + body, "sm_90a", _TILE).replace(".param .u64 p0", ".param .align 64 .b8 p0[128]").replace(
        "ld.param.u64 %arg0, [p0];\n    cvta.to.global.u64 %arg0, %arg0;", "mov.u64 %arg0, 0;")
    Module(text).launch("micro", (1,), (64,), [tensor_map(source, box, swizzle), out], race_check=True, memory=[source])
    want = np.zeros(box, np.uint32)
    want[:2, :4] = source[3:5, 4:8]
    if swizzle:             # 128-byte rows: the chunks of row 1 are XORed with 1
        want[1] = want[1].reshape(8, 4)[np.arange(8) ^ 1].reshape(32)
    assert (out == want.reshape(64)).all()


# launches -------------------------------------------------------------------------------------------------------------------

def test_an_unknown_instruction_is_listed_and_fails_when_it_runs():
    built = Module(_kernel("setp.eq.u32 %p, %thread, 99;\n@%p tcgen05.alloc.b32 [%s], 32;"))
    assert built.unsupported == ["tcgen05.alloc.b32"]
    built.launch("micro", (1,), (64,), [poisoned(64, np.uint32)])
    with pytest.raises(EmulatorError, match=r"unsupported PTX: tcgen05\.alloc\.b32"):
        built.launch("micro", (1,), (128,), [poisoned(128, np.uint32)])


def test_a_block_is_no_larger_than_the_kernel_was_compiled_for():
    built = Module(_kernel(_STORE).replace("\n{\n", "\n.maxntid 32, 1, 1\n{\n", 1))
    built.launch("micro", (1,), (32,), [poisoned(64, np.uint32)])
    with pytest.raises(EmulatorError, match="it may have 32 threads"):
        built.launch("micro", (1,), (64,), [poisoned(64, np.uint32)])


def test_a_fault_names_the_line_of_the_source():
    text = _kernel('.loc 1 17 3\n' + _STORE).replace(".visible .entry", '.file 1 "/src/kernel.cu"\n.visible .entry', 1)
    with pytest.raises(EmulatorError, match=r"at kernel\.cu:17, 4 bytes"):
        Module(text).launch("micro", (1,), (64,), [poisoned(3, np.uint32)])


_FUNCTION = """
.func (.param .b32 sum) sum_over(.param .b32 sum_over_0, .param .b32 sum_over_1)
{
    .reg .pred %p;
    .reg .b32 %total, %step, %other;
    ld.param.b32 %total, [sum_over_0];
    ld.param.b32 %step, [sum_over_1];
AGAIN:
    setp.eq.u32 %p, %step, 0;
    @%p bra DONE;
    shfl.sync.bfly.b32 %other, %total, %step, 31, 0xffffffff;
    add.u32 %total, %total, %other;
    shr.u32 %step, %step, 1;
    bra AGAIN;
DONE:
    st.param.b32 [sum], %total;
    ret;
}
"""
_CALL = """
    {{
    .param .b32 a;
    .param .b32 b;
    .param .b32 got;
    st.param.b32 [a], {value};
    st.param.b32 [b], {step};
    call.uni (got), sum_over, (a, b);
    ld.param.b32 {value}, [got];
    }}
"""


def test_functions_are_called_and_their_collectives_meet():
    body = "mov.u32 %x, %thread;" + _CALL.format(value="%x", step=16) + "mul.lo.u32 %x, %x, 2;" + _CALL.format(value="%x", step=1) + "st.global.u32 [%at], %x;"
    out = poisoned(64, np.uint32)
    built = Module(_kernel(body).replace(".shared", _FUNCTION + "\n.shared", 1))
    assert built.unsupported == []
    built.launch("micro", (1,), (64,), [out])
    assert (out == np.repeat([4 * 496, 4 * (496 + 1024)], 32)).all()


def test_seeds_change_the_order_and_a_right_kernel_does_not_notice():
    order = "atom.global.add.u32 %x, [%arg1], 1;\nst.global.u32 [%at], %x;"
    seen = []
    for seed in (0, 1, 2):
        out = poisoned(64, np.uint32)
        _run(order, out, np.zeros(1, np.uint32), seed=seed)
        seen.append(out.tolist())
    assert seen[0] == list(range(64)) and seen[0] != seen[1] != seen[2]
    assert all(sorted(s) == list(range(64)) for s in seen)
