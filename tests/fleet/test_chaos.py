"""The short form of the proof: a fleet under load of calls and jobs, and under every kind of fault. `make chaos` is the long one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.faults import KINDS
from support.worker_process import TESTS

# The run bounds itself to less; this is for a run that does not.
_SECONDS = 250
_OPTIONS = f"--calls 400 --jobs 40 --faults {len(KINDS)} --seed 4 --minutes 3.3"


@pytest.mark.load
@pytest.mark.timeout(_SECONDS + 20)
def test_every_call_has_one_result_every_job_one_end_and_nothing_is_done_twice(fast_mode: None, tmp_path: Path) -> None:
    """Each fault that `chaos/README.md` lists happens once under load, and all that it lists holds."""
    options = [*_OPTIONS.split(), "--folder", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "chaos", *options],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGTERM)  # it ends what it has started
            said, _ = run.communicate(timeout=20)

    assert run.returncode == 0, said
