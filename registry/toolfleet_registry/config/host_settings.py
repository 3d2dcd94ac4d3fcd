"""Declares the settings of hosts, which serve as modules what was not written as one; a part of `Settings`."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.host_specs import NAME_FORM, HostSpec, SecretSource
from toolfleet_registry.config.setting_values import Count, Seconds, read_json
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name

ToolSecurity = Literal["off", "warn", "strict"]


class HostSettings(BaseSettings, defer_build=True):
    """Settings of the hosted modules, and of reading and watching tool folders."""

    hosts: Annotated[dict[str, HostSpec], NoDecode] = {}
    """Module name -> what `toolfleet up` serves as this module: `[hosts.owls]` with `folder = "owls"`, say. A folder of Python files, an MCP server (`command` or `url`), or an OpenAPI document (`document`)."""
    secrets: Annotated[dict[str, SecretSource], NoDecode] = {}
    """Secret's name -> where hosts read it: `[secrets.GITHUB_TOKEN]` with `variable`, `file` or `command`. One that is not here is the environment variable of its name."""
    tool_security: ToolSecurity = "warn"
    """Whether files are scanned before they are imported: `warn` says what is found, `strict` refuses the file."""
    tool_allowed_imports: Annotated[frozenset[str], NoDecode] = frozenset()
    """Names that the scan has nothing against, of the modules and functions that it knows: comma-separated or JSON."""
    trusted_tool_namespaces: Annotated[frozenset[str], NoDecode] = frozenset()
    """Where functions may be that hosts name as tools by dotted paths, such as `acme.tools`: comma-separated or JSON."""
    tool_debounce_ms: int = Field(default=500, ge=0, le=60_000)
    """How long changes of files are gathered at most, in milliseconds; they are loaded 50 ms after the last one."""
    tool_load_seconds: Seconds = 10
    """How long the import of one file may take."""
    tool_lazy: bool = False
    """Whether a file is imported with the first call of one of its tools only, for folders of thousands."""
    tool_processes: Count = os.cpu_count() or 1
    """How many calls of tools with `runs_in="process"` run at once in a host."""

    host_replies_in_redis: bool = False
    """Whether announced hosts keep for a day what became of calls in the fleet's Redis, where the other processes of their module find it; else each keeps its own. Have it the same for all of them."""

    host_oauth_folder: Path = Path(".toolfleet/oauth")
    """Where hosts of MCP servers keep their tokens, a file that nobody else can read for each; a relative one is beside `toolfleet.toml`. The hosts of one module that are on one machine share it."""

    tool_environments: Path = Path(".toolfleet/environments")
    """Where packages are kept that tool files ask for, each set under its digest; a relative one is beside `toolfleet.toml`."""
    tool_environment_days: int = Field(default=30, ge=0, le=36_500)
    """After how many days a host that starts removes such packages, if no host has used them since; 0 keeps them all. They can be installed anew."""
    tool_install_seconds: Seconds = 300
    """How long `uv` may take to install such packages."""
    tool_install_options: Annotated[tuple[str, ...], NoDecode] = ()
    """More options for `uv pip install`, such as `--index-url` with its value: blank-separated or JSON."""

    @field_validator("hosts", "secrets", mode="before")
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

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, SecretSource]) -> dict[str, SecretSource]:
        for name in secrets:
            if not re.fullmatch(NAME_FORM, name):
                raise ValueError(f"a secret cannot be named {name[:80]!r}: name it as an environment variable")
        return secrets

    @field_validator("tool_install_options", mode="before")
    @classmethod
    def _read_options(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return read_json(value) if value.lstrip().startswith("[") else value.split()

    @field_validator("tool_allowed_imports", "trusted_tool_namespaces", mode="before")
    @classmethod
    def _read_allowed(cls, value: Any) -> Any:
        if not isinstance(value, str) or value.lstrip().startswith("["):
            return read_json(value) if isinstance(value, str) else value
        return [name.strip() for name in value.split(",") if name.strip()]
