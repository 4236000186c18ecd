"""Work beside streams gets its share of the time, the smallest first, and all of it where nothing streams."""

from __future__ import annotations

import threading

import pytest

from imp import spare_time
from imp.spare_time import SpareTime


class Clock:
    """A clock that waits move on, in the place of time.monotonic and Condition.wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(spare_time.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(threading.Condition, "wait", self.wait)

    def wait(self, timeout: float) -> bool:
        self.now += timeout
        return True


def test_without_streams_nobody_waits(monkeypatch):
    clock = Clock(monkeypatch)
    job = SpareTime(lambda: False).job()
    for _ in range(100):
        job.rest(0.01)
    assert clock.now == 0


def test_beside_streams_all_work_together_gets_its_share(monkeypatch):
    clock = Clock(monkeypatch)
    spare = SpareTime(lambda: True, share=0.2, burst_s=0.02)
    jobs = [spare.job(), spare.job()]
    used = 0.0
    for i in range(1000):
        jobs[i % 2].rest(0.002)
        used += 0.002
        clock.now += 0.002
    assert used / clock.now == pytest.approx(0.2, rel=0.03)


def test_little_work_after_a_quiet_while_does_not_wait(monkeypatch):
    clock = Clock(monkeypatch)
    spare = SpareTime(lambda: True, burst_s=0.02)
    for _ in range(3):
        clock.now += 60
        before, job = clock.now, spare.job()
        for _ in range(18):
            job.rest(0.001)
        assert clock.now == before


def test_who_has_used_least_goes_first():
    streaming = threading.Event()
    streaming.set()
    spare = SpareTime(streaming.is_set, share=0.01, burst_s=0.001)
    order, started = [], threading.Barrier(4)

    def work(name: str, took_s: float) -> None:
        job = spare.job()
        started.wait()
        job.rest(took_s)
        order.append(name)

    threads = [threading.Thread(target=work, args=(name, took)) for name, took in (("much", 0.009), ("little", 0.002), ("more", 0.005))]
    for thread in threads:
        thread.start()
    started.wait()
    for thread in threads:
        thread.join(20)
    # whoever came first waits alone at first; of those that wait, the one with the least is next
    assert set(order) == {"much", "little", "more"} and order.index("little") < order.index("much")


@pytest.mark.parametrize("over", ["nothing streams any more", "it is not wanted any more"])
def test_the_wait_ends_when(over):
    streaming, left = threading.Event(), threading.Event()
    streaming.set()
    job = SpareTime(streaming.is_set, share=0.0001, burst_s=0.001).job(left.is_set)
    waiting = threading.Thread(target=job.rest, args=(1.0,))
    waiting.start()
    if over == "nothing streams any more":
        streaming.clear()
    else:
        left.set()
    waiting.join(20)
    assert not waiting.is_alive()
