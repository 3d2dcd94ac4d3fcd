"""Starts the tasks that wait, a few at a time, and looks after what came of the others."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import subprocess
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task import SHUTDOWN, Task
from modules.claude_code.task_store import PROMPT, TaskStore
from modules.command_isolation import isolation_for
from modules.kept_commands import Job, SandboxPlan, State

_POLL_SECONDS = 0.25
_SWEEP_SECONDS = 60.0
_PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""Why a task cannot be started now, and perhaps can a moment later."""

logger = logging.getLogger(__name__)


class Dispatcher:
    """One of the modules on a root starts its tasks; should it die, another one does, or the same one started again."""

    def __init__(self, store: TaskStore, settings: ClaudeCodeSettings) -> None:
        self._store = store
        self._settings = settings
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._lock: int | None = None
        self._turn = threading.Lock()
        self._is_closed = False
        self._told = set[str]()
        self._next_sweep = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Dispatch until the end of the block. Tasks run on then, unless the settings say that they may not."""
        await asyncio.to_thread(self._store.prepare)
        looking = asyncio.create_task(self._look_for_ever())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait({looking})
            await asyncio.to_thread(self._close)

    def look(self) -> None:
        """Look after all tasks once. Blocks."""
        with self._turn:
            if not self._is_closed:
                self._look()

    def _look(self) -> None:
        self._keepers = [keeper for keeper in self._keepers if keeper.poll() is None]  # which buries the others
        if not self._is_in_charge():
            return
        states = [(task, self._state(task)) for task in self._store.tasks(only_open=True)]
        room = self._settings.concurrency - sum(state == "running" for _, state in states)
        for task in (task for task, state in states if state == "waiting"):
            if room <= 0:
                break
            room -= self._starts(task)
        if time.monotonic() > self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            if removed := self._store.sweep():
                logger.info("removed %d tasks that ended long ago", removed)

    def _state(self, task: Task) -> State | None:
        """`None` for a task whose record is broken: it is left alone, and the others go on."""
        try:
            return self._store.command(task).state()
        except (OSError, ValueError, TypeError) as exc:
            self._tell(task, exc)
            return None

    def _starts(self, task: Task) -> bool:
        """Start it, or end it if that cannot be: one task must not stop the others'."""
        try:
            self._start(task)
        except (OSError, ValueError) as exc:
            self._tell(task, exc)
            if not (isinstance(exc, OSError) and exc.errno in _PASSING):
                with contextlib.suppress(OSError):
                    self._store.command(task).give_up()
            return False
        return True

    def _tell(self, task: Task, exc: Exception) -> None:
        if task.task_id not in self._told:
            self._told.add(task.task_id)
            logger.error("the task %s cannot be looked after or started: %r", task.task_id, exc)

    def _start(self, task: Task) -> None:
        command, workspace = self._store.command(task), self._store.workspace(task)
        workspace.mkdir(mode=0o700, exist_ok=True)
        paths = {"{prompt_file}": str(command.folder / PROMPT), "{workspace}": str(workspace)}
        job = Job(
            argv=[_filled(word, paths) for word in self._settings.command],
            cwd=str(workspace),
            env=_environment(command.folder / "home", self._settings.pass_env),
            stdin=paths["{prompt_file}"],
            timeout_seconds=task.timeout_seconds,
            log_bytes=self._settings.log_bytes,
            processes=self._settings.processes,
            file_bytes=self._settings.file_mb * 2**20,
            grace_seconds=self._settings.grace_seconds,
            sandbox=self._sandbox(command.folder, workspace),
        )
        if keeper := command.start(job):
            self._keepers.append(keeper)

    def _sandbox(self, record: Path, workspace: Path) -> SandboxPlan | None:
        """The agent has its workspace and its home to itself, and of its record it sees the prompt."""
        settings = self._settings
        if isolation_for(settings.isolation, network=settings.network, module="claude_code") == "none":
            return None
        named = [Path(word) for word in settings.command]
        readable = [
            record / PROMPT,
            *settings.readable,
            *(path for path in named if path.is_absolute() and path.is_file()),
        ]
        return SandboxPlan(
            owner=str(workspace),
            readable=[str(path) for path in readable],
            writable=[str(workspace), str(record / "home")],
            network=settings.network,
        )

    def _is_in_charge(self) -> bool:
        if self._lock is None:
            lock = os.open(self._store.root / ".dispatcher", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                self._lock = lock
        return self._lock is not None

    def _close(self) -> None:
        with self._turn:
            self._is_closed = True
            if not self._settings.outlive and self._is_in_charge():
                self._end_all()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _end_all(self) -> None:
        open_tasks = self._store.tasks(only_open=True)
        running = [self._store.command(task) for task in open_tasks if self._state(task) == "running"]
        for command in running:
            command.cancel(SHUTDOWN)
        give_up_at = time.monotonic() + self._settings.grace_seconds + 2
        while time.monotonic() < give_up_at and any(command.state() == "running" for command in running):
            time.sleep(0.05)
        for keeper in self._keepers:
            keeper.poll()

    async def _look_for_ever(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception:  # whatever it is, the next look may go well
                logger.exception("looking after the tasks failed; it is tried again")
            await asyncio.sleep(_POLL_SECONDS)


def _filled(word: str, paths: dict[str, str]) -> str:
    for placeholder, path in paths.items():
        word = word.replace(placeholder, path)
    return word


def _environment(home: Path, passed: frozenset[str]) -> dict[str, str]:
    """All that the agent knows of its surroundings: nothing of the module's environment but what is named."""
    with contextlib.suppress(FileExistsError):
        (home / "tmp").mkdir(mode=0o700, parents=True)
    known = {name: os.environ[name] for name in passed if name in os.environ}
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": str(home), "TMPDIR": str(home / "tmp"), "LANG": "C.UTF-8", **known}
