"""More random schedules than `make test` plays: thousands, none of which changes a text or keeps a block."""

from __future__ import annotations

import pytest

from tests.sched.test_schedules import CHUNK, SEEDS, test_any_schedule_gives_the_reference_output

MORE = 2000


@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MORE, CHUNK))
def test_any_other_schedule_gives_the_reference_output(first, kernel_folder):
    test_any_schedule_gives_the_reference_output(first, kernel_folder)
