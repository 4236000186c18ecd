#!/usr/bin/env python3
"""Lays out a stand-in for nixpkgs on a machine that cannot reach the real one.

usage: mkseed.py OUT WHEELHOUSE

OUT becomes a flake: the Nix files beside this script, a copy of the running CPython and of the shared objects that it
and the wheels need, a static busybox and patchelf, and the wheels with an index (seed.json) of their names, hashes and
dependencies. Nothing is downloaded here: WHEELHOUSE was filled by `pip download --require-hashes`, which checked every
file. WHEELHOUSE must hold the wheels of patchelf and packaging.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
UNUSED_STDLIB = ("test", "tests", "idlelib", "tkinter", "turtledemo", "__pycache__", "site-packages", "config-*")


def main(out: Path, wheelhouse: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("bin", "lib", "wheels"):
        (out / folder).mkdir(parents=True)
    for file in HERE.glob("*.nix"):
        shutil.copy(file, out)
    elfs = copy_python(out / "python")
    with tempfile.TemporaryDirectory() as unpacked:
        wheels, wheel_elfs = copy_wheels(out, wheelhouse, Path(unpacked))
        libraries = needed_libraries([*elfs, *wheel_elfs], Path(unpacked))
    for name, path in libraries.items():
        shutil.copy(path.resolve(), out / "lib" / name)
    busybox = shutil.which("busybox")
    if busybox is None:
        sys.exit("mkseed.py: there is no busybox; install busybox-static")
    shutil.copy(busybox, out / "bin" / "busybox")
    loader = next(name for name in libraries if name.startswith("ld-linux"))
    index = {"python": PYTHON, "loader": loader, "wheels": wheels}
    (out / "seed.json").write_text(json.dumps(index, indent=1, sort_keys=True))
    # the tree is an input of builds: the same contents are the same tree
    for path in (out, *out.rglob("*")):
        os.utime(path, (1, 1), follow_symlinks=False)
    print(f"stand-in for nixpkgs: {PYTHON}, {len(wheels)} wheels, {len(libraries)} shared objects")


def copy_python(to: Path) -> list[Path]:
    """The running interpreter and its standard library; the result is the files whose libraries are needed."""
    stdlib = to / "lib" / PYTHON
    ignored = shutil.ignore_patterns(*UNUSED_STDLIB, "_tkinter*", "*.a")
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=ignored)
    (stdlib / "site-packages").mkdir()
    (to / "bin").mkdir()
    executable = shutil.copy(Path(sys.base_prefix) / "bin" / PYTHON, to / "bin")
    return [Path(executable), *(stdlib / "lib-dynload").glob("*.so")]


def copy_wheels(out: Path, wheelhouse: Path, unpacked: Path) -> tuple[dict[str, dict[str, object]], list[Path]]:
    """The wheels and their index; the shared objects in them are unpacked. patchelf is taken out of its wheel."""
    sys.path.insert(0, str(next(wheelhouse.glob("packaging-*.whl"))))
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    index: dict[str, dict[str, object]] = {}
    requirements: dict[str, list[str]] = {}
    elfs = []
    for wheel in sorted(wheelhouse.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            # a wheel may carry another's dist-info below its own folders
            metadata_file = next(name for name in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            metadata = Parser().parsestr(archive.read(metadata_file).decode())
            name = canonicalize_name(metadata["Name"])
            if name == "patchelf":
                patchelf = out / "bin" / "patchelf"
                patchelf.write_bytes(archive.read(next(file for file in files if file.endswith("/patchelf"))))
                patchelf.chmod(0o755)
                continue
            elfs += [Path(archive.extract(file, unpacked / name)) for file in files if ".so" in Path(file).name]
        needs = map(Requirement, metadata.get_all("Requires-Dist") or [])
        requirements[name] = [
            canonicalize_name(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        index[name] = {"version": metadata["Version"], "file": wheel.name, "sha256": sha256}
        shutil.copy(wheel, out / "wheels")
    for name, entry in index.items():
        # what the lock leaves out on purpose is not missed
        entry["deps"] = sorted(set(requirements[name]) & set(index))
    return index, elfs


def needed_libraries(elfs: list[Path], unpacked: Path) -> dict[str, Path]:
    """The host's shared objects these files load, by the name they load them under."""
    libraries: dict[str, Path] = {}
    for elf in elfs:
        listing = subprocess.run(["ldd", str(elf)], capture_output=True, text=True, check=False).stdout
        for soname, path in re.findall(r"^\s*(?:(\S+) => )?(/\S+) \(0x", listing, re.MULTILINE):
            if not Path(path).is_relative_to(unpacked):
                libraries.setdefault(Path(soname or path).name, Path(path))
    return dict(sorted(libraries.items()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: mkseed.py OUT WHEELHOUSE")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
