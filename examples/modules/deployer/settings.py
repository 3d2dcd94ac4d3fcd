"""Where projects come from, where releases lie, and how much each may use."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.command_isolation import Wanted

_CLONE = Path(__file__).resolve().parents[3]


class DeployerSettings(BaseSettings):
    """`DEPLOYER_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="DEPLOYER_", frozen=True, env_ignore_empty=True)

    root: Path = _CLONE / ".toolfleet" / "deployments"
    """Releases, records and logs."""
    workspaces: tuple[Path, ...] = (_CLONE / ".toolfleet" / "workspaces",)
    """The roots under which projects may lie, as a JSON list; `CLAUDE_CODE_ROOT` should be among them."""
    start_seconds: float = Field(default=20, gt=0, le=300)
    """For a process to be healthy, twice in a row; then it takes over, or is given up."""
    health_seconds: float = Field(default=2, gt=0, le=60)
    """Between two looks at a process, and for its answer."""
    restart_seconds: float = Field(default=0.5, gt=0, le=60)
    """The first pause before a process that has ended is started again, doubled each time."""
    drain_seconds: float = Field(default=2, ge=0, le=60)
    """For the connections of the release that was replaced."""
    grace_seconds: float = Field(default=3, ge=0, le=60)
    """For a process to end when it is asked to; then it is killed."""
    deployments: int = Field(default=10, gt=0)
    """Of one user, the stopped ones included."""
    all_deployments: int = Field(default=50, gt=0)
    keep_releases: int = Field(default=5, gt=1)
    """Of one deployment; `rollback` goes back as far."""
    project_files: int = Field(default=2000, gt=0)
    project_mb: int = Field(default=50, gt=0)
    connections: int = Field(default=200, gt=0)
    """To one deployment at once."""
    first_byte_seconds: float = Field(default=10, gt=0)
    """For a client to say something once it is connected: who is silent must not take the places of others."""
    idle_seconds: float = Field(default=120, gt=0)
    """After which a connection on which neither side says anything is ended."""
    log_bytes: int = Field(default=1_000_000, ge=8_000)
    """Kept of what a process prints: the beginning and the latest of it."""
    processes: int = Field(default=64, gt=0)
    """Of one deployment, alive at once; watched where there is a /proc."""
    memory_mb: int | None = Field(default=None, gt=0)
    """Address space of each of its processes. None by default: some runtimes reserve far more than they use."""
    file_mb: int = Field(default=256, gt=0)
    """Of each file that a process writes."""
    isolation: Wanted = "best"
    """How processes are kept apart (`command_isolation.py`). Where the machine does not allow `namespaces`, the module does not
    start with it."""
    network: bool = False
    """Whether processes in a sandbox reach the network, this machine's own services included. Without one they always do."""
    readable: tuple[Path, ...] = ()
    """What processes in a sandbox may read beside the system's programs, such as a runtime in /opt; a JSON list."""
