"""`toolfleet call` that somebody interrupts says which call it was, and what became of it."""

import signal
import subprocess
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.up import COMMAND
from support.waiting import wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet_cli.local.environment import environment_of


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["for people", "for programs"])
def test_a_call_that_runs_is_named(
    bed: TestBed, worker: WorkerProcess, owls: ModuleServer, tmp_path: Path, options: list[str]
) -> None:
    """It may have been executed. Nothing is on stdout, and the exit code is 130."""
    argv = [*COMMAND, "call", "owls.nap_once", "seconds:=60", *options]
    owls.forget()
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environment_of(bed.settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        wait_until_sync(lambda: owls.call_ids("nap_once") or command.poll() is not None, "the module has the call")
        command.send_signal(signal.SIGINT)
        told, said = command.communicate(timeout=60)
    (call_id,) = owls.call_ids("nap_once")

    assert (command.returncode, told) == (130, ""), said
    assert said == (
        f"Call {call_id} is taken back. It had begun: it may have been executed, or still run for a moment.\n"
    )
