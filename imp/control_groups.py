"""How much memory the control groups of this process leave it: version 2 and version 1, from /proc and where they are
mounted. A process is bounded by its own group and by every one above, as far as they can be seen from in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 1 << 60  # version 1 says none by a number of this size


@dataclass(frozen=True, slots=True)
class _Version:
    """What the files of a memory group are called."""

    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]  # lines of memory.stat: pages of files, which are given back when they are needed


_SECOND = _Version(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))
_FIRST = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def free_bytes(root: Path = Path("/")) -> int | None:
    """What the tightest group leaves this process, in bytes; None: no group bounds it.  root: where /proc lies."""
    return min(
        (free for version, folder in _groups(root) if (free := _free(version, folder)) is not None), default=None
    )


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """Every memory group this process is in, the innermost first."""
    paths = _paths(root)
    for line in _lines(root / "proc/self/mountinfo"):
        # proc(5): id parent device root mount-point options optional-fields... - type source super-options
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        mounted, point = fields[3], root / fields[4].lstrip("/")
        if kinds[0] == "cgroup2" and "" in paths:
            yield from ((_SECOND, folder) for folder in _upwards(point, mounted, paths[""]))
        elif kinds[0] == "cgroup" and "memory" in kinds[2].split(",") and "memory" in paths:
            yield from ((_FIRST, folder) for folder in _upwards(point, mounted, paths["memory"]))


def _paths(root: Path) -> dict[str, str]:
    """The group of this process by controller; that of version 2 under ""."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _upwards(point: Path, mounted: str, path: str) -> Iterator[Path]:
    """Folders from the group `path` up to where the group `mounted` is mounted. In a container the path may be one
    that only the host can see; then the mount itself is all there is."""
    inside = path.removeprefix(mounted.rstrip("/")) if path.startswith(mounted) else path
    folder = point / inside.strip("/")
    if ".." in folder.parts:
        folder = point
    yield from (each for each in (folder, *folder.parents) if each == point or point in each.parents)


def _free(version: _Version, folder: Path) -> int | None:
    limits = [int(text) for name in version.limits if (text := _text(folder / name)).isdigit()]
    used = _text(folder / version.used)
    if not limits or min(limits) >= NO_LIMIT or not used.isdigit():
        return None
    stat = dict(line.split(maxsplit=1) for line in _lines(folder / "memory.stat") if " " in line)
    cached = sum(int(stat.get(name, 0)) for name in version.cached)
    return max(0, min(limits) - max(0, int(used) - cached))


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    """What the file says; "" where it cannot be read: the group may be gone, or hidden from us."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
