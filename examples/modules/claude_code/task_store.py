"""Tasks on disk: a record each in `<root>/.tasks/`, beside its workspace `<root>/{task_id}/`."""

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task import Task, TaskRefused, TaskStatus, in_words, judge
from modules.claude_code.workspace_files import list_files
from modules.kept_commands import Ending, KeptCommand
from modules.workspaces import RECORDS, is_workspace_name

PROMPT = "prompt.txt"

_DRAFT = ".draft-"
_DRAFT_SECONDS = 3600.0  # nobody takes so long to write a record: it was left behind
_SUMMARY_BYTES = 1000
_SUMMARY_LINES = 8


class TaskStore:
    """All tasks under one root. Blocks: for threads. Several modules may share a root."""

    def __init__(self, settings: ClaudeCodeSettings) -> None:
        self.root = settings.root.resolve()
        self._settings = settings
        self._records = self.root / RECORDS
        self._known: dict[str, Task] = {}
        self._ended: set[str] = set()  # an end is for good, and need not be looked up again
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the folders, if they are not there."""
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, user_id: str, prompt: str, *, timeout_seconds: float, call_id: str | None) -> Task:
        """A new task; for a call id that has made one, that task. Raises `TaskRefused`."""
        self.prepare()
        data = prompt.encode("utf-8", "replace")
        task = Task(
            task_id=_task_id(user_id, call_id),
            user_id=user_id,
            prompt_digest=hashlib.sha256(data).hexdigest(),
            timeout_seconds=timeout_seconds,
            created_at=time.time(),
        )
        with self._lock:
            made = self.get(task.task_id, user_id) or self._make(task, data)
        if made.prompt_digest != task.prompt_digest:
            raise TaskRefused("This call has already started a task, with another prompt.")
        self.workspace(made).mkdir(mode=0o700, exist_ok=True)
        return made

    def get(self, task_id: str, user_id: str | None = None) -> Task | None:
        """The task; with a `user_id` only if it is that user's."""
        task = self._known.get(task_id) or (self._read(task_id) if is_workspace_name(task_id) else None)
        return task if task and user_id in {None, task.user_id} else None

    def tasks(self, *, user_id: str | None = None, only_open: bool = False) -> list[Task]:
        """Those that are kept, the oldest first."""
        found = (self.get(name, user_id) for name in self._names() if not (only_open and name in self._ended))
        tasks = sorted((task for task in found if task), key=lambda task: (task.created_at, task.task_id))
        return [task for task in tasks if not (only_open and self._has_ended(task))]

    def workspace(self, task: Task) -> Path:
        """Where the agent works."""
        return self.root / task.task_id

    def command(self, task: Task) -> KeptCommand:
        """The agent that works on it."""
        return KeptCommand(self._records / task.task_id)

    def status(self, task: Task, *, details: bool = True) -> TaskStatus:
        """Where it stands; without `details` neither files nor summary."""
        command, workspace = self.command(task), self.workspace(task)
        state = command.state()
        ending = command.ending()
        has_workspace = workspace.is_dir() and not workspace.is_symlink()
        status, error = judge(state, ending, has_workspace=has_workspace)
        started_at = command.started_at()
        until = ending.ended_at if ending else time.time()
        files, more = list_files(workspace) if details and has_workspace else ([], False)
        return TaskStatus(
            task_id=task.task_id,
            status=status,
            workspace=str(workspace),
            created_at=in_words(task.created_at),
            seconds=round(max(0.0, until - started_at), 1) if started_at else 0.0,
            exit_code=ending.exit_code if ending and ending.why == "ended" else None,
            error=error,
            summary=_last_lines(command) if details else "",
            files=files,
            more_files=more,
        )

    def sweep(self) -> int:
        """Remove the tasks that ended long ago, their workspaces first. Returns how many they were."""
        oldest = time.time() - self._settings.keep_hours * 3600
        removed = 0
        for task in self.tasks():
            ending = self._ending(task)
            if ending and ending.ended_at < oldest:
                shutil.rmtree(self.workspace(task), ignore_errors=True)
                shutil.rmtree(self.command(task).folder, ignore_errors=True)
                self._known.pop(task.task_id, None)
                self._ended.discard(task.task_id)
                removed += 1
        for draft in self._records.glob(f"{_DRAFT}*"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - _DRAFT_SECONDS:
                    shutil.rmtree(draft, ignore_errors=True)
        return removed

    def _make(self, task: Task, prompt: bytes) -> Task:
        if len(self.tasks(user_id=task.user_id, only_open=True)) >= self._settings.open_tasks:
            raise TaskRefused(f"{self._settings.open_tasks} of your tasks wait or run; wait for one, or cancel one.")
        draft = self._records / f"{_DRAFT}{secrets.token_hex(8)}"
        (draft / "home" / "tmp").mkdir(mode=0o700, parents=True)
        _write(draft / PROMPT, prompt)
        _write(draft / "task.json", task.model_dump_json().encode())
        # In one step: whoever dies before it leaves no task behind, whoever comes second gets the first one's.
        try:
            draft.rename(self._records / task.task_id)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            made = self._read(task.task_id)
            if made is None:
                raise
            return made
        return task

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._records) as entries:
            yield from (entry.name for entry in entries if is_workspace_name(entry.name))

    def _read(self, task_id: str) -> Task | None:
        with contextlib.suppress(OSError, ValueError):  # not there, or not ours
            task = Task.model_validate_json((self._records / task_id / "task.json").read_bytes())
            self._known[task_id] = task
            return task
        return None

    def _ending(self, task: Task) -> Ending | None:
        """How it ended; `None` also where that cannot be read: one broken record must not hide the others'."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return self.command(task).ending()
        return None

    def _has_ended(self, task: Task) -> bool:
        if self._ending(task) is None:
            return False
        self._ended.add(task.task_id)
        return True


def _task_id(user_id: str, call_id: str | None) -> str:
    """The same for the same call, however often it arrives; one that cannot be guessed for a call without an id."""
    if call_id is None:
        return f"t{secrets.token_hex(10)}"
    return f"t{hashlib.sha256(f'{len(user_id)}:{user_id}:{call_id}'.encode()).hexdigest()[:20]}"


def _last_lines(command: KeptCommand) -> str:
    text = command.log(-_SUMMARY_BYTES, _SUMMARY_BYTES).text
    return "\n".join(text.splitlines()[-_SUMMARY_LINES:])


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
