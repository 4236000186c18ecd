"""The fake driver shows the mistakes of its callers; its checks run on unmodified cuda.bindings in a process of their own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake
from tests.gpu.fake import apart

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")
pytestmark = pytest.mark.skipif(not fake.has_compiler(), reason="needs gcc and g++")

CHECKS = Path(fake.__file__).parent / "checks.py"
NAMES = [n.name for n in ast.parse(CHECKS.read_text()).body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    return apart.results(CHECKS, tmp_path_factory.mktemp("fake") / "report.xml")


@pytest.mark.parametrize("name", NAMES)
def test_the_driver(name: str, results: dict[str, str | None]):
    of_it = {case: wrong for case, wrong in results.items() if case.split("[")[0] == name}
    assert of_it
    assert not any(of_it.values()), "\n".join(filter(None, of_it.values()))


def _said(program: str, **settings: int) -> str:
    environment = {**os.environ, **fake.environment(**settings)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=apart.ROOT).stdout.strip()


def test_a_process_may_find_another_device_or_none():
    program = """
from cuda.bindings import driver as cu
status, = cu.cuInit(0)
print(status.name, *(cu.cuDeviceGetAttribute(a, 0)[1] for a in (
    cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)))
print(cu.cuDeviceTotalMem(0)[1])"""
    assert _said(program, capability=89, total_bytes=1 << 30).split() == ["CUDA_SUCCESS", "8", "9", str(1 << 30)]
    assert _said(program, no_device=1).startswith("CUDA_ERROR_NO_DEVICE")


def test_a_compiled_kernel_is_found_by_its_machine_code(tmp_path: Path):
    pytest.importorskip("cuda.bindings.nvrtc")
    program = f"""
import ctypes, sys
from pathlib import Path
import numpy as np
import imp.cuda.compile as compiling
from imp.cuda.driver import Device
from imp.cuda.kernel import Kernel
compiling.KERNELS = Path({str(tmp_path)!r})
made = compiling.Compiler(Path({str(tmp_path)!r}), "sm_90a").compile(compiling.Source("twice.cu"))
device = Device()
stream = device.stream()
memory, values = device.alloc(128), np.arange(32, dtype=np.float32)
stream.upload(memory.address, values.ctypes.data, 128)
Kernel(device.load(made.cubin), "twice", "P", 32).launch(stream, (1, 1, 1), memory.address)
stream.download(values.ctypes.data, memory.address, 128)
print(values.tolist() == [2 * i for i in range(32)])"""
    (tmp_path / "twice.cu").write_text('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }')
    environment = {**os.environ, **fake.environment(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=apart.ROOT)
    assert done.stdout.strip() == "True", done.stderr
