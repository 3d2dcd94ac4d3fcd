"""A real `toolfleet autoscale` process."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from support.fleet import TestBed, program
from support.worker_process import WorkerProcess
from toolfleet_cli.processes.autoscale import READY


@contextmanager
def autoscaling(bed: TestBed, *options: str) -> Generator[WorkerProcess]:
    """The command for the lane `fast`, and the workers that it starts."""
    command = [sys.executable, "-m", "toolfleet_cli", "autoscale", "fast", "--logs", str(bed.folder / "workers")]
    with program(bed, [*command, *options], "autoscale", ready=READY) as process:
        yield process
