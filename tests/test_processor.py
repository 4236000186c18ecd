"""What processors are told by, on Linux and elsewhere."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from imp import processor

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
cpu MHz\t\t: 2000.000
flags\t\t: fpu avx2 avx_vnni avx512_vnni

processor\t: 1
cpu MHz\t\t: 2100.000
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.fixture
def described(monkeypatch, tmp_path):
    """described(text): what /proc/cpuinfo says from now on; None: there is none."""

    def say(text: str | None) -> None:
        path = tmp_path / "cpuinfo"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(processor, "_CPUINFO", path)
        forget()

    def forget() -> None:
        for each in (processor.features, processor.identity, processor._described):
            each.cache_clear()

    yield say
    forget()


def test_a_processor_is_its_kind_and_what_it_can_do(described):
    described(X86)
    assert processor.features() == {"fpu", "avx2", "avx_vnni", "avx512_vnni"}
    first = processor.identity()
    described(X86.replace("2000", "3000"))
    assert processor.identity() == first
    for change in (("143", "173"), ("avx2", "avx"), ("GenuineIntel", "AuthenticAMD")):
        described(X86.replace(*change))
        assert processor.identity() != first
    described(ARM)
    assert processor.features() == {"fp", "asimd"} and "0xd40" in processor.identity()


def test_llvm_is_asked_where_linux_says_nothing(described, monkeypatch):
    found = {"avx2": True, "avxvnni": True, "avx512vnni": True, "amx-int8": True, "sse4a": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: found)
    for text in (None, "processor\t: 0\nuarch\t: sifive\n"):
        described(text)
        assert processor.features() == {"avx2", "avx_vnni", "avx512_vnni", "amx_int8"}
        assert llvm.get_host_cpu_name() in processor.identity()
