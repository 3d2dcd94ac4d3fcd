"""`claude_code` when something dies: the module, what looks after an agent, or a start in the middle."""

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from modules.claude_code.dispatcher import Dispatcher
from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task import Task
from modules.claude_code.task_store import TaskStore
from modules.kept_commands import Job, KeptCommand
from support.modules.workshop import agent, claude_code, commands_in, finished, kill, processes_of, result, until
from support.waiting import wait_until, wait_until_sync

# Says that it has begun, and goes on when it is told to.
PATIENT = (
    "import os, pathlib, sys, time\n"
    "open('begun', 'a').write(f'{os.getpid()}\\n')\n"
    "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    "print('went')"
)


def begun(workspace: str) -> list[int]:
    path = Path(workspace, "begun")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def test_a_task_outlives_its_module(folder: Path) -> None:
    """Killed and started again, the module finds the running task, which has run once; a repeat of the call finds it, too."""
    wanted = {"prompt": "x", "call_id": "call-1"}
    with claude_code(folder, command=agent(PATIENT)) as module:
        task = await result(module, "run_task", **wanted)
        await wait_until(lambda: begun(task["workspace"]), "the agent runs")
        kill(module)
    assert commands_in(folder, "begun")

    with claude_code(folder, command=agent(PATIENT)) as module:
        again = await result(module, "run_task", **wanted)
        assert again == {**task, "status": "running"}
        Path(task["workspace"], "go").touch()
        done = await finished(module, task["task_id"])

    assert (done["status"], done["exit_code"], done["summary"]) == ("completed", 0, "went")
    assert len(begun(task["workspace"])) == 1


async def test_a_task_ends_while_its_module_is_dead(folder: Path) -> None:
    """Its end was written down by then; tasks that waited are started by the next module."""
    with claude_code(folder, command=agent(PATIENT), concurrency=1) as module:
        first = await result(module, "run_task", prompt="first")
        second = await result(module, "run_task", prompt="second")
        await wait_until(lambda: begun(first["workspace"]), "the agent runs")
        kill(module)
    Path(first["workspace"], "go").touch()
    await wait_until(lambda: not commands_in(folder, "begun"), "the agent has ended")
    Path(second["workspace"], "go").touch()

    with claude_code(folder, command=agent(PATIENT), concurrency=1) as module:
        assert (await finished(module, first["task_id"]))["status"] == "completed"
        assert (await finished(module, second["task_id"]))["status"] == "completed"


async def test_a_task_whose_keeper_was_killed_has_failed(folder: Path) -> None:
    """Nobody knows what the agent had done, so that the task is not run again; what the agent left behind is ended."""
    leaving = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    with claude_code(folder, command=agent(leaving + PATIENT)) as module:
        task = await result(module, "run_task", prompt="x")
        await wait_until(lambda: begun(task["workspace"]), "the agent runs")
        record = folder / "workspaces" / ".tasks" / task["task_id"]
        os.kill(json.loads((record / "started.json").read_text())["keeper"], signal.SIGKILL)
        done = await finished(module, task["task_id"])

        assert (done["status"], done["exit_code"]) == ("failed", None)
        assert "nobody knows how far" in done["error"]
        await wait_until(
            lambda: not [it for it in processes_of(folder).values() if "time.sleep" in it], "all are ended"
        )
        assert len(begun(task["workspace"])) == 1


async def test_a_module_that_is_stopped_may_take_its_tasks_along(folder: Path) -> None:
    """As `toolfleet up` has it: the task has failed, and says why."""
    with claude_code(folder, command=agent(PATIENT), outlive=False) as module:
        task = await result(module, "run_task", prompt="x")
        await wait_until(lambda: begun(task["workspace"]), "the agent runs")
    assert not commands_in(folder, "begun")

    with claude_code(folder, command=agent(PATIENT)) as module:
        done = await until(module, "task_status", {"failed"}, task_id=task["task_id"])
        assert done["error"] == "The module was stopped while the agent ran. Start the task anew."


async def test_two_modules_on_one_root_start_each_task_once(folder: Path) -> None:
    """One of them starts tasks, whichever took them on; when it dies, the other one does."""
    with claude_code(folder, command=agent(PATIENT)) as one:
        (folder / "other").mkdir()
        with claude_code(folder, command=agent(PATIENT)) as other:
            tasks = [await result(module, "run_task", prompt="x") for module in (one, other, other)]
            await wait_until(lambda: all(begun(task["workspace"]) for task in tasks[:2]), "two of them run")
            kill(one)
            for task in tasks:
                Path(task["workspace"], "go").touch()
                assert (await finished(other, task["task_id"]))["status"] == "completed"

    assert [len(begun(task["workspace"])) for task in tasks] == [1, 1, 1]


def test_a_start_that_was_cut_short_leaves_no_task(folder: Path) -> None:
    """Before the record is whole there is none; after that a repeat of the call completes what is missing."""
    store = TaskStore(ClaudeCodeSettings(root=folder))
    draft = folder / ".tasks" / ".draft-1"
    draft.mkdir(parents=True)
    (draft / "prompt.txt").write_text("half a pro")
    assert store.tasks() == []

    task = store.create("ada", "x", timeout_seconds=1, call_id="call-1")
    store.workspace(task).rmdir()
    assert TaskStore(ClaudeCodeSettings(root=folder)).create("ada", "x", timeout_seconds=1, call_id="call-1") == task
    assert store.workspace(task).is_dir()


def test_a_record_that_cannot_be_read_stops_nobody(folder: Path) -> None:
    """Other tasks run."""
    settings = ClaudeCodeSettings(root=folder, command=["/bin/true"])
    store = TaskStore(settings)
    for name, text in {"broken": "{", "empty": "", "foreign": "[]"}.items():
        (folder / ".tasks" / name).mkdir(parents=True)
        (folder / ".tasks" / name / "task.json").write_text(text)
    task = store.create("ada", "x", timeout_seconds=5, call_id=None)
    dispatcher = Dispatcher(store, settings)

    wait_until_sync(lambda: ended(dispatcher, store, task), "the task completes")


def ended(dispatcher: Dispatcher, store: TaskStore, task: Task) -> bool:
    dispatcher.look()
    return store.status(task).status == "completed" and not dispatcher._keepers


def test_a_task_that_cannot_be_started_stops_nobody(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has failed, and its place is free; tasks whose records are broken are left alone, and told of once."""
    store = TaskStore(ClaudeCodeSettings(root=folder))
    blocked, locked, odd, good = (
        store.create(word, word, timeout_seconds=5, call_id=None) for word in ("ada", "bob", "cid", "dan")
    )
    store.workspace(blocked).rmdir()
    store.workspace(blocked).touch()
    (store.command(locked).folder / "lock").mkdir()
    (store.command(odd).folder / "end.json").write_text("{")
    dispatcher = Dispatcher(store, ClaudeCodeSettings(root=folder, command=["/bin/true"], concurrency=1))

    wait_until_sync(lambda: ended(dispatcher, store, good), "the last one completes")
    failed = store.status(blocked)
    assert failed.status == "failed"
    assert failed.error is not None
    assert "could not be started" in failed.error
    assert len([record for record in caplog.records if locked.task_id in record.getMessage()]) == 1
    assert store.sweep() == 0


def test_a_task_that_cannot_be_started_for_a_moment_is_started_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is full is not the task's fault."""
    start, refusals = KeptCommand.start, [errno.EAGAIN, errno.ENOSPC]

    def fails_at_first(command: KeptCommand, job: Job) -> "subprocess.Popen[bytes] | None":
        if refusals:
            raise OSError(refusals.pop(), "no room")
        return start(command, job)

    monkeypatch.setattr(KeptCommand, "start", fails_at_first)
    settings = ClaudeCodeSettings(root=folder, command=["/bin/true"])
    store = TaskStore(settings)
    task = store.create("ada", "x", timeout_seconds=5, call_id=None)
    dispatcher = Dispatcher(store, settings)

    wait_until_sync(lambda: ended(dispatcher, store, task), "the task completes")


@pytest.fixture
def job(folder: Path) -> Job:
    return Job(
        argv=["/bin/true"],
        cwd=str(folder),
        env={},
        timeout_seconds=5,
        log_bytes=8000,
        processes=10,
        file_bytes=2**20,
    )


def test_a_command_is_never_started_twice(folder: Path, job: Job) -> None:
    """Not while it runs, and not when its keeper was killed at any point after it had begun."""
    command = KeptCommand(folder / "one")
    command.folder.mkdir()
    keeper = command.start(job)
    assert keeper is not None
    assert command.start(job) is None
    keeper.wait()
    assert (command.state(), command.start(job)) == ("ended", None)

    lost = KeptCommand(folder / "two")
    lost.folder.mkdir()
    (lost.folder / "started.json").write_text('{"keeper": 1, "started_at": 1}')
    assert lost.start(job) is None
    assert lost.state() == "ended"
    ending = lost.ending()
    assert ending is not None
    assert ending.why == "lost"


def test_a_process_id_that_was_given_to_another_is_left_alone(folder: Path) -> None:
    """After a keeper's death the agent's id may be anybody's: here it is ours."""
    lost = KeptCommand(folder / "one")
    lost.folder.mkdir()
    (lost.folder / "started.json").write_text('{"keeper": 1, "started_at": 1}')
    (lost.folder / "running.json").write_text(json.dumps({"pid": os.getpid(), "start": "1"}))

    assert lost.state() == "ended"  # and we live


def test_a_keeper_at_rest_does_next_to_nothing(folder: Path, job: Job) -> None:
    """It looks less and less often while nothing changes, and hears of the end at once."""
    command = KeptCommand(folder / "one")
    command.folder.mkdir()
    keeper = command.start(replace(job, argv=["sleep", "600"], timeout_seconds=None, end_with_parent=True))
    assert keeper is not None
    assert keeper.stdin is not None
    seen: list[tuple[float, int]] = []

    def rests() -> bool:
        status = Path(f"/proc/{keeper.pid}/status").read_text()
        seen.append((time.monotonic(), int(re.findall(r"\bvoluntary_ctxt_switches:\s+(\d+)", status)[0])))
        then = [woken for at, woken in seen if at < seen[-1][0] - 0.8]
        return command.started_at() is not None and bool(then) and seen[-1][1] - then[-1] <= 6

    try:
        wait_until_sync(rests, "it looks ten times a second at most")
    finally:
        keeper.stdin.close()
        keeper.wait()


async def test_who_looks_does_not_disturb(folder: Path, job: Job) -> None:
    """Many who ask for the state at once are not taken for a keeper, and keep none from starting for long."""
    command = KeptCommand(folder / "one")
    command.folder.mkdir()
    states = await asyncio.gather(*(asyncio.to_thread(command.state) for _ in range(50)))
    assert set(states) == {"waiting"}

    command.cancel("no more")
    ending = command.ending()
    assert ending is not None
    assert (ending.why, ending.note) == ("cancelled", "no more")
    assert command.start(job) is None
