"""How much a program may use."""

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Limits(BaseSettings):
    """`CODE_EXECUTOR_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="CODE_EXECUTOR_", frozen=True, env_ignore_empty=True)

    wall_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """From start to end: well under a call's limit, so that the model is told what its program printed."""
    cpu_seconds: int = Field(default=5, gt=0)
    """Of each process."""
    memory_mb: int = Field(default=512, gt=0)
    """Address space of each process; Python itself takes about 20."""
    processes: int = Field(default=16, gt=0)
    """Alive at once; watched where there is a /proc."""
    file_mb: int = Field(default=16, gt=0)
    """Of each file that the program writes."""
    disk_mb: int = Field(default=64, gt=0)
    """Of all its files together, which lie in memory; without namespaces nobody counts."""
    output_bytes: int = Field(default=20_000, gt=0)
    """Kept of what it prints, for each of its two streams: the beginning and the end."""
    saved_files: int = Field(default=16, ge=0)
    """Kept at most of those in its output folder."""
    saved_mb: int = Field(default=16, gt=0)
    """Of all these files together; one file may have `FILE_MANAGER_MAX_BYTES`."""
    concurrency: int = Field(default=2, gt=0)
    """Programs at once: they compute, so more than there are cores would only slow each other."""
    queue_seconds: float = Field(default=5, ge=0, allow_inf_nan=False)
    """How long a call waits for its turn, before it is sent away with the advice to come back."""
    isolation: Literal["best", "namespaces", "user", "landlock", "none"] = "best"
    """How programs are kept apart (`isolation.py`). With `best` as well as the machine allows, and not less well than with
    `landlock`; where it does not allow that, or what is named otherwise, the module does not start."""
    network: bool = False
    """Whether programs reach the network, this machine's own services included. Without namespaces they always do."""
