"""The files that say what is installed agree with each other, and none names a package index."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imp import models

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-cuda.lock", "requirements-build.lock")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]


def pins(lock: str) -> dict[str, Version]:
    """The versions a lock file pins."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {name: Version(version) for name, version in found}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_pins_with_hashes_and_nothing_else(lock):
    lines = (ROOT / lock).read_text().splitlines()
    pin = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_]+ [!=]= '[A-Za-z0-9]+')? \\")
    hashed = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert pin.fullmatch(line) or hashed.fullmatch(line), line
        if line.endswith("\\"):
            assert hashed.fullmatch(following), f"{line} has no hash"


def test_every_dependency_is_pinned_within_its_bounds():
    runtime = pins("requirements.lock")
    for need in DEPENDENCIES:
        assert need.specifier.contains(runtime[canonicalize_name(need.name)]), need
    developing = pins("requirements-dev.lock")
    for need in map(Requirement, PYPROJECT["dependency-groups"]["dev"]):
        assert need.specifier.contains(developing[canonicalize_name(need.name)]), need
    cuda = pins("requirements-cuda.lock")
    for need in map(
        Requirement, PYPROJECT["project"]["optional-dependencies"]["cuda"] + PYPROJECT["dependency-groups"]["gpu"]
    ):
        assert need.specifier.contains(cuda[canonicalize_name(need.name)]), need


def test_development_runs_on_the_versions_that_serve():
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


def test_cuda_packages_come_beside_what_is_developed_with():
    developing, cuda = pins("requirements-dev.lock"), pins("requirements-cuda.lock")
    assert pins("requirements.lock").items() <= cuda.items()
    for name in developing.keys() & cuda.keys():
        assert developing[name] == cuda[name], name


def test_bounds_leave_room_for_the_versions_of_nixpkgs():
    """nixpkgs checks the bounds against what it ships, which is older or newer than the lock."""
    for need in DEPENDENCIES:
        assert {part.operator for part in need.specifier} == {">="}, need


def test_the_nix_package_has_the_dependencies_of_the_project():
    nix = (ROOT / "nix/package.nix").read_text()
    listed = re.search(r"pythonDependencies = ps: \[(.*?)\];", nix, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"ps\.(\S+)", listed[1])) == {canonicalize_name(need.name) for need in DEPENDENCIES}


def test_every_installed_package_is_accounted_for():
    table = (ROOT / "docs/DEPENDENCIES.md").read_text()
    rows = re.findall(r"^\| ([a-z0-9]\S*) \| .* \| .* \| .* \| .* \|$", table, re.MULTILINE)
    assert set(rows) - {"package"} == set(pins("requirements.lock"))


def test_nix_fetches_the_same_model_as_the_server():
    nix = (ROOT / "nix/model.nix").read_text()
    (wheel,) = models.DEFAULT.wheels
    sri = base64.b64encode(bytes.fromhex(wheel.sha256)).decode()
    assert f'hash = "sha256-{sri}"' in nix
    assert f'outputHash = "{models.DEFAULT.sha256}"' in nix
    assert f'version = "{wheel.version}"' in nix
    assert f"unzip -p $wheel {wheel.member} > $out" in nix
    assert f'runCommand "{models.DEFAULT.file}"' in nix


def test_flake_lock_pins_one_input_of_the_flake():
    lock = json.loads((ROOT / "flake.lock").read_text())
    assert lock["version"] == 7
    assert lock["nodes"]["root"]["inputs"] == {"nixpkgs": "nixpkgs"}
    node = lock["nodes"]["nixpkgs"]
    original, locked = node["original"], node["locked"]
    url = f"{original['type']}:{original['owner']}/{original['repo']}/{original['ref']}"
    assert f'inputs.nixpkgs.url = "{url}";' in (ROOT / "flake.nix").read_text()
    assert re.fullmatch("[0-9a-f]{40}", locked["rev"])
    assert len(base64.b64decode(locked["narHash"].removeprefix("sha256-"), validate=True)) == 32


def test_the_licence_is_the_one_the_project_names():
    text = (ROOT / "LICENSE").read_text()
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


# --- the Makefile ----------------------------------------------------------------------------------------------------


def make(*arguments: str, path: str, home: Path) -> subprocess.CompletedProcess[str]:
    """make, run where nothing is set up yet."""
    environment = {"PATH": path, "HOME": str(home)}
    command = ["/usr/bin/make", "-f", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH without any Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "test", "touch"):
        (folder / tool).symlink_to(f"/bin/{tool}" if tool == "sh" else f"/usr/bin/{tool}")
    for lock in LOCKS:
        (tmp_path / lock).write_text("")
    return folder


def interpreter(path: Path, status: int) -> None:
    """Something that, asked whether it is a usable Python, answers with an exit status."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)


def test_without_a_usable_python_make_says_what_to_install(tools, tmp_path):
    interpreter(tools / "python3", 1)
    result = make("serve", path=str(tools), home=tmp_path)
    assert result.returncode != 0
    assert "imp needs Python 3.12 or newer with its venv module" in result.stderr


def test_make_prefers_a_tried_python_and_passes_over_unusable_ones(tools, tmp_path):
    versions = tmp_path / ".pyenv" / "versions"
    interpreter(versions / "3.13.0" / "bin" / "python3", 1)  # without venv
    interpreter(versions / "3.11.7" / "bin" / "python3", 0)
    interpreter(versions / "3.12.1" / "bin" / "python3", 0)
    interpreter(tools / "python3.13", 127)  # pyenv's shim for a version that is not selected
    interpreter(tools / "python3", 0)
    shown = make("-n", "serve", path=str(tools), home=tmp_path).stdout
    assert f"{versions}/3.12.1/bin/python3 -m venv --clear .venv" in shown
    interpreter(tools / "python3.14", 0)
    shown = make("-n", "serve", path=str(tools), home=tmp_path).stdout
    assert "python3.14 -m venv --clear .venv" in shown
    shown = make("-n", "serve", "PYTHON=/opt/python", path=str(tools), home=tmp_path).stdout
    assert "/opt/python -m venv --clear .venv" in shown
