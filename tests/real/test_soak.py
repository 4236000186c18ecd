"""A short soak of the real server; bench/soak.py is the long one."""

from __future__ import annotations

import pytest

from bench import soak


@pytest.mark.slow
def test_a_crowd_that_comes_and_goes_leaves_nothing_behind(smollm2_path):  # G07-05
    process = soak.server(smollm2_path, streams=16)
    try:
        found = soak.soak(process.url, 10, 16, seed=1, pid=None, may_refuse=False)  # too short to judge memory by
    finally:
        code = process.stop(60)
    assert found == [] and code == 0 and "Traceback" not in process.log, process.log
