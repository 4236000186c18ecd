"""MaskBench and the JSON-Schema-Test-Suite, run through the front end: what passes, and what does not and why.

A schema passes if all its valid values are accepted and all invalid ones rejected, as they are written in the data.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.schema.load import Draft
from tests.constrain.schemas import SHARED, Writer

MASKBENCH = SHARED / "data" / "jsonschema" / "maskbench"
SUITE = SHARED / "data" / "jsonschema" / "suite"
DRAFTS = {"draft7": Draft.DRAFT7, "draft2019-09": Draft.DRAFT2019, "draft2020-12": Draft.DRAFT2020}


@dataclass
class Group:
    """A schema with values, each valid or not."""

    name: str
    keyword: str
    schema: object
    tests: list[tuple[object, bool]]


@dataclass
class Outcome:
    """What became of a group: pass, under (an invalid value is accepted), over (a valid one is not), refused."""

    group: Group
    verdict: str
    detail: str
    seconds: float


@dataclass
class Table:
    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def share(self, verdict: str) -> float:
        return self.count(verdict) / len(self.outcomes)

    def slow(self, seconds: float) -> list[str]:
        return [outcome.group.name for outcome in self.outcomes if outcome.seconds > seconds]

    def __str__(self) -> str:
        counts = Counter(outcome.verdict for outcome in self.outcomes)
        lines = [f"{len(self.outcomes)} groups: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())]
        failed = Counter((o.group.keyword, o.verdict) for o in self.outcomes if o.verdict != "pass")
        lines += [f"  {keyword:24} {verdict:8} {n}" for (keyword, verdict), n in sorted(failed.items())]
        times = sorted(outcome.seconds for outcome in self.outcomes)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        return "\n".join([*lines, f"  compile: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.1f} ms, most {times[-1] * 1e3:.0f} ms"])


def maskbench(every: int = 1) -> Iterator[Group]:
    for path in sorted(MASKBENCH.glob("*.json"))[::every]:
        data = json.loads(path.read_text())
        tests = [(test["data"], test["valid"]) for test in data["tests"]]
        yield Group(path.stem, path.stem.split("---")[0], data["schema"], tests)


def suite(draft: str, folder: str = "", every: int = 1) -> Iterator[Group]:
    paths = sorted((SUITE / draft / folder).glob("*.json"))
    groups = [(path, group) for path in paths for group in json.loads(path.read_text())]
    for path, group in groups[::every]:
        tests = [(test["data"], test["valid"]) for test in group["tests"]]
        yield Group(f"{path.stem}: {group['description']}", Path(path).stem, group["schema"], tests)


def run(groups: Iterable[Group], **options: object) -> Table:
    return Table([_outcome(group, options) for group in groups])


def _outcome(group: Group, options: dict[str, object]) -> Outcome:
    began = time.thread_time()
    try:
        writer = Writer(group.schema, **options)
    except ConstraintError as error:
        seconds = time.thread_time() - began
        right = error.code is Code.UNSATISFIABLE and not any(valid for _, valid in group.tests)
        return Outcome(group, "pass" if right else "refused", error.message, seconds)
    seconds = time.thread_time() - began
    wrong = {True: [], False: []}
    for value, valid in group.tests:
        if writer.accepts(json.dumps(value, ensure_ascii=False)) != valid:
            wrong[valid].append(value)
    verdict = "under" if wrong[False] else "over" if wrong[True] else "pass"
    return Outcome(group, verdict, json.dumps(wrong[False] or wrong[True])[:200], seconds)
