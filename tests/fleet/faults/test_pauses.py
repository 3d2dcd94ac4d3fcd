"""The short form of the proof: workers that stand still for longer than their leases. `make pauses` is the long one."""

from pathlib import Path

import pytest

from pauses.run import Plan, run


@pytest.mark.load
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["plain", "sdk"])
async def test_a_worker_that_stood_still_begins_nothing_that_others_have_ended(kind: str, tmp_path: Path) -> None:
    """No confirmed write is overwritten by an older one, and nothing that was looked up and repeated is done twice.

    A plain module is shielded by the workers' look at the clock alone, between which and the write a stop may still fall: some
    microseconds a call. One of the SDK refuses that as well.
    """
    ran = await run(Plan(kind, pauses=3, pairs=200, once=40), tmp_path)

    assert ran.told.confirmed
    assert (ran.overwritten, ran.doubled) == ([], [])
