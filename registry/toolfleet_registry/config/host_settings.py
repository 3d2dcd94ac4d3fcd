"""Declares the settings of hosts, which serve as modules what was not written as one; a part of `Settings`."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import Count, Seconds, read_json
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name

ToolSecurity = Literal["off", "warn", "strict"]


class HostSpec(BaseModel):
    """One `[hosts.NAME]`: a folder of tools, and the fence around its process."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    folder: Path
    """The folder of Python files; a relative one is beside the file that names it."""
    description: str = ""
    """What the module is for."""
    isolation: Literal["none", "bwrap"] = "none"
    """`bwrap`: its process has no network and cannot write outside of its own folder; needs bubblewrap."""
    memory_mb: Count | None = 4096
    """MiB of addresses that a process may have; no limit without."""
    cpu_seconds: Count | None = None
    """Seconds of CPU time that a process may use in its life."""
    open_files: Count | None = 1024
    """Files that a process may have open."""
    processes: Count | None = None
    """Processes that its user may have, all together; the kernel does not count root's."""
    variables: tuple[str, ...] = ()
    """Environment variables that its process gets; of all others it sees none."""


class HostSettings(BaseSettings):
    """How tool folders are read and watched."""

    hosts: Annotated[dict[str, HostSpec], NoDecode] = {}
    """Module name -> the tool folder that `toolfleet up` serves as this module: `[hosts.owls]` with `folder = "owls"`."""
    tool_security: ToolSecurity = "warn"
    """Whether files are scanned before they are imported: `warn` says what is found, `strict` refuses the file."""
    tool_allowed_imports: Annotated[frozenset[str], NoDecode] = frozenset()
    """Names that the scan has nothing against, of the modules and functions that it knows: comma-separated or JSON."""
    tool_debounce_ms: int = Field(default=500, ge=0, le=60_000)
    """How long changes of files are gathered at most, in milliseconds; they are loaded 50 ms after the last one."""
    tool_load_seconds: Seconds = 10
    """How long the import of one file may take."""
    tool_lazy: bool = False
    """Whether a file is imported with the first call of one of its tools only, for folders of thousands."""
    tool_processes: Count = os.cpu_count() or 1
    """How many calls of tools with `runs_in="process"` run at once in a host."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _read_hosts(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: dict[str, HostSpec]) -> dict[str, HostSpec]:
        for name in hosts:
            if not is_module_name(name) or name in {LOCAL, SCHEDULER}:
                raise ValueError(
                    f"a host cannot be named {name!r}: letters, digits, '_' and '-', and none of the fleet's own"
                )
        return hosts

    @field_validator("tool_allowed_imports", mode="before")
    @classmethod
    def _read_allowed(cls, value: Any) -> Any:
        if not isinstance(value, str) or value.lstrip().startswith("["):
            return read_json(value) if isinstance(value, str) else value
        return [name.strip() for name in value.split(",") if name.strip()]
