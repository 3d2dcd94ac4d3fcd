"""`toolfleet call` that somebody interrupts says which call it was, and what became of it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from select import select

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.up import COMMAND
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_cli.commands.call import result_of
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["for people", "for programs"])
def test_a_call_that_runs_is_named(
    bed: TestBed, worker: WorkerProcess, owls: ModuleServer, tmp_path: Path, options: list[str]
) -> None:
    """It may have been executed. Nothing is on stdout, and the exit code is 130."""
    argv = [*COMMAND, "call", "owls.nap_once", "seconds:=60", *options]
    env = {**environment_of(bed.settings), "TERM": "xterm", "COLUMNS": "120"}
    owls.forget()
    ours, terminal = os.openpty()
    shown = b""
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=terminal) as command:
        os.close(terminal)
        while b"owls.nap_once is running" not in shown:  # the module may have the call before the command knows its id
            assert select([ours], [], [], PATIENCE_SECONDS)[0], shown
            shown += os.read(ours, 2**16)
        wait_until_sync(lambda: owls.call_ids("nap_once"), "the module has the call")
        command.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # its end
            while select([ours], [], [], PATIENCE_SECONDS)[0] and (more := os.read(ours, 2**16)):
                shown += more
        out, _ = command.communicate(timeout=3 * PATIENCE_SECONDS)
    os.close(ours)
    (call_id,) = owls.call_ids("nap_once")

    assert (command.returncode, out) == (130, b""), shown
    assert (
        f"Call {call_id} is cancelled. It had started: it may have been executed, or still run for a moment.\r\n"
    ).encode() in shown


async def test_a_call_that_waits_to_be_sent_is_taken_back(
    owls: ModuleServer, owner: Caller, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id is not known yet, and whether it was sent is not either."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        settings = Settings(redis_url=url, module_services={"owls": owls.url}, unserved_seconds=60)
        async with ToolFleet(settings=settings) as fleet:
            asked = ToolCall(tool_name="owls.nap_once")
            waiting = asyncio.create_task(result_of(fleet, asked, owner, None, shows=False))
            session = await fleet._sessions.opened()
            await wait_until(lambda: session._dispatcher._workers._changes, "it waits for a worker")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    assert capsys.readouterr().err == (
        "The call of owls.nap_once is cancelled. If it was sent just before, it may have been executed.\n"
    )
