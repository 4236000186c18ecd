"""How much memory there is, and what is planned with it."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imp.app import EXIT_CODES
from imp.memory import DEVICE, DeviceOutOfMemory, Growth, OutOfMemory, allocating, available_bytes, plan
from imp.model import arch
from imp.model.config import positions
from imp.weights.checkpoint import ContextTooLong
from tests.model import tiny
from tests.model.test_arch import checkpoint
from tests.real.process import ROOT

MIB = 1 << 20
GIB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def second_version(path: str, mounted: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": f"30 23 0:26 {mounted} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    }


def group(folder: str, limit: int | str, used: int, **stat: int) -> dict[str, str]:
    lines = "".join(f"{name} {size}\n" for name, size in stat.items())
    files = {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": lines}
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        pytest.param({}, 8 * GIB, id="no groups"),
        pytest.param(second_version("/a/b") | group("a/b/", 3 * GIB, GIB), 2 * GIB, id="its own group"),
        pytest.param(second_version("/a/b") | group("a/b/", "max", GIB), 8 * GIB, id="no limit"),
        pytest.param(
            second_version("/a/b") | group("a/b/", 3 * GIB, GIB) | group("a/", 2 * GIB, 1536 * MIB),
            512 * MIB,
            id="above",
        ),
        pytest.param(second_version("/") | group("", 3 * GIB, GIB), 2 * GIB, id="a container's own namespace"),
        pytest.param(second_version("/../../x") | group("", 3 * GIB, GIB), 2 * GIB, id="a path out of the namespace"),
        pytest.param(
            second_version("/docker/1/in", "/docker/1") | group("in/", 3 * GIB, GIB), 2 * GIB, id="a part is mounted"
        ),
        pytest.param(
            second_version("/a") | group("a/", 3 * GIB, 3 * GIB, inactive_file=GIB, active_file=GIB, anon=GIB),
            2 * GIB,
            id="pages of files can be had back",
        ),
        pytest.param(
            second_version("/a") | group("a/", 6 * GIB, GIB) | {"sys/fs/cgroup/a/memory.high": f"{2 * GIB}\n"},
            GIB,
            id="where it would be slowed down",
        ),
        pytest.param(second_version("/a") | group("a/", GIB, 2 * GIB), 0, id="more is used than may be"),
        pytest.param(
            second_version("/a") | group("a/", 9 * GIB, 0), 8 * GIB, id="the group may have more than there is"
        ),
    ],
)
def test_the_tightest_control_group_bounds_what_is_free(tmp_path, files, free):
    assert available_bytes(system(tmp_path, files)) == free


def test_groups_of_version_1_count_as_well(tmp_path):
    folder = "sys/fs/cgroup/memory/job/"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n",
        "proc/self/mountinfo": "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        folder + "memory.limit_in_bytes": f"{3 * GIB}\n",
        folder + "memory.usage_in_bytes": f"{2 * GIB}\n",
        folder + "memory.stat": f"cache 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{20 * GIB}\n",
    }
    assert available_bytes(system(tmp_path, files)) == 2 * GIB


def test_this_machine_has_some_memory():
    assert 0 < available_bytes() < 1 << 50


# -- the plan


def planned(**changes):
    asked = {"context": 8192, "rows": 0, "blocks": 0, "free_bytes": 8 * GIB, "kv_format": "fp16"} | changes
    return plan(GIB, MIB, **asked)


def test_blocks_are_a_share_of_what_is_free_and_the_context_what_they_hold():
    made = planned()
    assert made.blocks == (7 * GIB - 192 * MIB) // 4 // MIB and made.context == 8192
    assert planned(free_bytes=2 * GIB).context < 8192


def test_a_context_that_was_asked_for_is_never_cut():
    assert planned(free_bytes=2 * GIB, whole_context=True).context == 8192
    with pytest.raises(OutOfMemory, match=r"weights of 1024 MiB and a KV cache of 512 MiB \(512 blocks .* fp16\)"):
        planned(free_bytes=1600 * MIB, whole_context=True)


def test_a_context_that_was_asked_for_and_too_few_blocks_contradict_each_other():
    assert planned(blocks=512, whole_context=True).context == 8192
    with pytest.raises(OutOfMemory, match="a context of 8192 tokens was asked for, and 511 blocks of 16 tokens"):
        planned(blocks=511, whole_context=True)
    assert planned(blocks=511).context == 511 * 16, "where none was asked for, it is what they hold"


@pytest.mark.parametrize("changes", [{"free_bytes": GIB}, {"blocks": 7100}, {"free_bytes": GIB + 193 * MIB}])
def test_what_does_not_fit_is_refused_before_anything_is_allocated(changes):
    with pytest.raises(OutOfMemory, match="there is too little memory for weights of 1024 MiB"):
        planned(**changes)


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 TiB"), OSError(errno.ENOMEM, "no")])
def test_an_allocation_that_fails_is_told_with_the_plan(error):
    told = r"memory cannot be allocated \(.+\): weights of 1024 MiB and a KV cache"
    with pytest.raises(OutOfMemory, match=told), allocating(planned()):
        raise error


def test_other_errors_stay_what_they_are():
    with pytest.raises(PermissionError), allocating(planned()):
        raise PermissionError(errno.EACCES, "no")


def test_a_cache_that_grows_begins_with_one_sequence_and_may_take_most_of_what_is_free():
    made = planned(growable=True)
    assert made.blocks == 513 and made.context == 8192
    assert made.most_blocks == made.reserved_blocks == (7 * GIB - 192 * MIB) * 3 // 4 // MIB
    assert planned(growable=True, blocks=700).most_blocks == 700 and planned(growable=True, rows=2).most_blocks == 1024
    small = planned(growable=True, blocks=100)
    assert (small.blocks, small.most_blocks, small.context) == (100, 100, 1600)
    assert planned().most_blocks == 0 and planned().reserved_blocks == planned().blocks


def test_growth_stops_where_memory_does_and_looks_again_later(monkeypatch):
    free, now = [GIB], [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    growth = Growth(MIB, lambda: free[0])
    assert growth.grant(100) == 100 and growth.grant(1000) == 1024 - 192
    free[0] = 300 * MIB
    assert growth.grant(50) == 0  # it was short a moment ago
    now[0] += 2
    assert growth.grant(200) == 300 - 192
    free[0], now[0] = 0, now[0] + 2
    assert growth.grant(1) == 0


# -- the context


def test_a_context_longer_than_the_model_was_made_for_is_refused():
    assert (positions(0, 512), positions(100, 512), positions(512, 512)) == (512, 100, 512)
    with pytest.raises(ContextTooLong, match="513 tokens is asked for, but the model was made for 512"):
        positions(513, 512)


@pytest.mark.parametrize("name", sorted(tiny.CONFIGS))
def test_every_architecture_refuses_it_before_it_makes_tables(name):
    with pytest.raises(ContextTooLong):
        arch.build(checkpoint(name), 1 << 50)


def test_it_is_a_mistake_in_the_arguments():
    error = ContextTooLong("")
    assert next(code for kind, code in EXIT_CODES if isinstance(error, kind)) == 1


LIMITED = """
import resource, sys
from imp.__main__ import main
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


def test_a_server_that_may_not_have_the_memory_says_so_and_ends(smollm2_path):
    blocks = ["--set", "kv_cache.max_blocks=12000"]  # 4 GiB
    command = [sys.executable, "-c", LIMITED, str(3 << 30), "--check", "--model", str(smollm2_path), *blocks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("imp-server: error: ") and "12000 blocks of 16 tokens in fp16" in last, done.stderr


def test_a_device_gives_nearly_all_it_has_and_what_lacks_there_is_the_devices():
    sizes = {"block_bytes": MIB, "context": 1600, "rows": 10, "blocks": 0, "tier": DEVICE, "work_bytes": 100 * MIB}
    made = plan(200 * MIB, free_bytes=1000 * MIB, **sizes)
    assert made.blocks == 630 and made.tier == DEVICE, "nine tenths of what weights and work leave"
    assert plan(200 * MIB, free_bytes=9 * GIB, **sizes).blocks == 1000, "no more than all rows can use"
    with pytest.raises(DeviceOutOfMemory, match=r"on the device for weights of 200 MiB .* 100 MiB to work with: 300 MiB"):
        plan(200 * MIB, free_bytes=300 * MIB, **sizes)
    with pytest.raises(DeviceOutOfMemory, match=r"CUDA says no.*100 MiB to work with, on the device"), allocating(made):
        raise MemoryError("CUDA says no")
    assert next(code for kind, code in EXIT_CODES if issubclass(DeviceOutOfMemory, kind)) == 3
