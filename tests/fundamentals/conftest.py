"""What the tutorial's tests start from: a running fleet with a module `owls`."""

import pytest

from support.fleet import TestBed
from support.worker_process import WorkerProcess
from toolfleet import Settings


@pytest.fixture
def settings(bed: TestBed, worker: WorkerProcess) -> Settings:
    """The settings of the running fleet."""
    return bed.settings
