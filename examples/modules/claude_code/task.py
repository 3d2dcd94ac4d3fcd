"""A coding task: what was asked for, and where it stands."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from modules.kept_commands import Ending, State, Why

TaskState = Literal["queued", "running", "completed", "failed", "cancelled", "timed_out"]

SHUTDOWN = "shutdown"
"""Noted with a cancellation that nobody asked for: the module was stopped."""


class TaskRefused(Exception):
    """A task is not taken on. The message is for the model."""


class Task(BaseModel):
    """What was asked for. Never changes; lies in the task's record beside the prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    user_id: str
    prompt_digest: str
    timeout_seconds: float
    created_at: float
    """Seconds of the epoch."""


class TaskStatus(BaseModel):
    """Where a task stands. `error` says in a sentence why it did not complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    status: TaskState
    workspace: str
    """The folder's absolute path, which `deployer.deploy` takes as `project_path`."""
    created_at: str
    seconds: float
    """How long it has run; 0 while it waits."""
    exit_code: int | None = None
    """`None` unless the agent ended by itself; negative: the signal that ended it."""
    error: str | None = None
    summary: str = ""
    """The last lines that the agent printed."""
    files: list[str] = []
    """The first of its files, sorted; hidden ones are not among them."""
    more_files: bool = False


_FAILURES: Mapping[Why, str] = {
    "processes": "The agent had more processes at once than it may have, and was ended.",
    "not_started": "The agent could not be started; the module's operator has to look at CLAUDE_CODE_COMMAND.",
    "failed": "What looked after the agent broke; nobody knows how far the agent had come.",
    "lost": "What looked after the agent was killed; nobody knows how far the agent had come.",
}


def judge(state: State, ending: Ending | None, *, has_workspace: bool) -> tuple[TaskState, str | None]:
    """What a command's state means for its task, and a sentence about it if it did not complete."""
    if ending is None:
        return ("queued" if state == "waiting" else "running"), None
    match ending.why:
        case "cancelled" if ending.note != SHUTDOWN:
            return "cancelled", "The task was cancelled."
        case "timed_out":
            return "timed_out", "The agent took longer than the task's time."
        case "ended" if ending.exit_code == 0 and has_workspace:
            return "completed", None
        case _:
            return "failed", _why_failed(ending)


def _why_failed(ending: Ending) -> str:
    if ending.why == "cancelled":
        return "The module was stopped while the agent ran. Start the task anew."
    if ending.why == "ended" and ending.exit_code == 0:
        return "The agent has removed its workspace."
    return _FAILURES.get(ending.why, f"The agent ended with exit code {ending.exit_code}; its log says why.")


def in_words(seconds_of_the_epoch: float) -> str:
    """A time as people and models read it."""
    return datetime.fromtimestamp(seconds_of_the_epoch, UTC).isoformat(timespec="seconds")
