"""Jobs with real processes: a worker, beat and a module; `tests/virtual/jobs` has the rest."""

import time
from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.modules.works import HERE, Works, make_works, running
from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED


@pytest.fixture(scope="module")
def works() -> Works:
    return make_works(ends_after=2)


@pytest.fixture(scope="module")
def bed(works: Works, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with running(tmp_path_factory.mktemp("jobs"), works) as bed:
        yield bed


def test_programs_without_a_loop_have_jobs_too(bed: TestBed, owner: Caller) -> None:
    """The same methods, without `await`."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        job = fleet.jobs.start(ToolCall(tool_name="works.ship"), conversation=HERE, caller=owner)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while (found := fleet.jobs.get(job.job_id, owner)) is not None and found.state not in ENDED:
            assert time.monotonic() < give_up_at

        assert found is not None
        assert found.state == "completed"
        assert fleet.jobs.cancel(job.job_id, owner) == found
        assert found in fleet.jobs.list(owner)
