"""A member of a small fleet dies, or pauses, at a write of its own, and what was asked of the fleet still ends well, and once.

`python -m simulation.kill_points` goes through all points of all rows; here some of them are gone through.
"""

import pytest

from bed.fleet import Bed
from simulation.kill_points import ROWS, walk

EVERY = {
    "call.once-works.worker": 1,
    "call.once-works.worker-pauses.2-workers": 4,
    "call.once-retries.worker": 23,
    "call.read-works.worker": 7,
    "call.once-works.agent": 5,
    "crowd.once-works.worker": 2,
    "line.once-works.worker.2-workers": 9,
    "line.read-works.worker.2-workers": 9,
    "approved.worker": 11,
    "approved.approver": 19,
    "job.worker": 151,
    "program.worker": 61,
    "program.worker.2-workers": 61,
    "program.beat": 41,
    "core.worker": 13,
    "stream.agent": 11,
}
"""Which points of which rows: all of them, or each so many."""


@pytest.mark.parametrize("name", EVERY)
async def test_what_was_asked_ends_well_whoever_dies(bed: Bed, name: str) -> None:
    (row,) = [row for row in ROWS if row.name == name]
    found = await walk(row, bed, every=EVERY[name])

    assert found.violations == []
    assert found.deaths
