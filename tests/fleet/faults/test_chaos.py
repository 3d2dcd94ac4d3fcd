"""The short form of the proof: a fleet under load of calls and jobs, and under every kind of fault. `make chaos` is the long one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.faults.faults import kinds_of
from chaos.plan import Plan
from support.servers.rabbitmq import is_installed
from support.waiting import PATIENCE_SECONDS
from support.worker_process import TESTS

# A run bounds itself to its minutes; this is for a run that does not.
_MARGIN_SECONDS = 50
_MINUTES = 3.3
# RabbitMQ takes its time to start, and each of its faults calls: half of these must succeed, also on a busy machine.
_MINUTES_ON_RABBITMQ = 5


@pytest.mark.load
@pytest.mark.timeout(_MINUTES * 60 + 2 * _MARGIN_SECONDS)
def test_every_call_has_one_result_every_job_one_end_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """Each fault that `chaos/README.md` lists happens once under load, and all that it lists holds."""
    kinds = kinds_of(Plan(calls=400, faults=0, seed=4, seconds=0, jobs=40))
    _run(f"--calls 400 --jobs 40 --faults {len(kinds)} --seed 4", _MINUTES, tmp_path)


@pytest.mark.load
@pytest.mark.timeout(_MINUTES_ON_RABBITMQ * 60 + 2 * _MARGIN_SECONDS)
def test_the_same_holds_where_calls_wait_in_rabbitmq(tmp_path: Path) -> None:
    """Each fault, and each of RabbitMQ's, happens once."""
    if not is_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    kinds = kinds_of(Plan(calls=400, faults=0, seed=4, seconds=0, jobs=40, on_rabbitmq=True))
    _run(f"--rabbitmq --calls 400 --jobs 40 --faults {len(kinds)} --seed 4", _MINUTES_ON_RABBITMQ, tmp_path)


def _run(options: str, minutes: float, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "chaos", "calls", *options.split(), "--minutes", str(minutes), "--folder", str(folder)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=minutes * 60 + _MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGTERM)  # it ends what it has started
            said, _ = run.communicate(timeout=PATIENCE_SECONDS)

    assert run.returncode == 0, said
