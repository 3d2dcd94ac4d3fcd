"""What agent runs, how many at once, and how much each may use."""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.command_isolation import Wanted

_CLONE = Path(__file__).resolve().parents[3]
_SCRIPTED_AGENT = Path(__file__).with_name("scripted_agent.py")


class ClaudeCodeSettings(BaseSettings):
    """`CLAUDE_CODE_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="CLAUDE_CODE_", frozen=True, env_ignore_empty=True)

    root: Path = _CLONE / ".toolfleet" / "workspaces"
    """Workspaces are `<root>/{task_id}/`; what is known of the tasks lies in `<root>/.tasks/`."""
    command: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1)] = [
        sys.executable,
        "-u",
        str(_SCRIPTED_AGENT),
        "{prompt_file}",
    ]
    """The agent, as a JSON list; there is no shell. It starts in the workspace and finds the prompt on its standard input.

    `{prompt_file}` and `{workspace}` are replaced by their paths.
    """
    pass_env: frozenset[str] = frozenset()
    """Names of variables of the module that the agent gets, too, as a JSON list; by default none, they may be secrets."""
    timeout_seconds: float = Field(default=900, gt=0, le=86_400)
    """Of a task for which none is asked."""
    max_timeout_seconds: float = Field(default=3600, gt=0, le=86_400)
    grace_seconds: float = Field(default=5, ge=0, le=60)
    """For an agent to end when it is asked to; then it is killed."""
    concurrency: int = Field(default=2, gt=0, le=100)
    """Tasks that run at once; others wait in the order they came."""
    open_tasks: int = Field(default=20, gt=0)
    """Of one user that wait or run."""
    log_bytes: int = Field(default=1_000_000, ge=8_000)
    """Kept of what an agent prints: the beginning and the latest of it."""
    processes: int = Field(default=128, gt=0)
    """Of one task, alive at once; watched where there is a /proc."""
    file_mb: int = Field(default=256, gt=0)
    """Of each file that an agent writes."""
    isolation: Wanted = "best"
    """How agents are kept apart (`command_isolation.py`). Where the machine does not allow `namespaces`, the module does not
    start with it."""
    network: bool = False
    """Whether agents in a sandbox reach the network, this machine's own services included. An agent with a model needs it."""
    readable: tuple[Path, ...] = ()
    """What agents in a sandbox may read beside the system's programs, such as a runtime in /opt; a JSON list. Files that the
    command names by their absolute paths are read anyway."""
    keep_hours: float = Field(default=168, gt=0)
    """From a task's end on; then its workspace and all that is known of it are removed."""
    outlive: bool = True
    """Whether tasks run on when the module is stopped in good order. When it is killed they do in any case."""
