"""Declares the settings of how modules are reached, and where those may be that are added; a part of `Settings`."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import Networks, read_json
from toolfleet_registry.contracts.names import is_module_name
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.headers import check_headers


class ModuleSpec(ToolLines):
    """One `[module.NAME]`, of a module of any kind."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ModuleSettings(BaseSettings, defer_build=True):
    """Settings of modules' networks, and of the headers that they are sent with each request."""

    module: Annotated[dict[str, ModuleSpec], NoDecode] = {}
    """Module name -> what is said of its tools: `[module.owls]` with `effects = {count = "read"}` for tools that do not say what a repeat
    would do, `permission = "admin"`, which raises what they ask for, and `approval = ["pay"]`, which has people approve calls (`approvers`: who, in
    the place of admins). For workers and beat, the same for all of them: they keep it with
    the module's manifest, where agents read it."""
    module_headers: Annotated[dict[str, dict[str, SecretStr]], NoDecode] = Field(default={}, repr=False)
    """JSON: module name -> header -> value, sent with each request to the module, such as `Authorization` with a token. For workers: an
    agent asks modules only where there is no fleet. Never logged or shown; read at start."""

    module_networks: Networks = ()
    """CIDRs in which they may be, comma-separated or JSON, as whoever may add one could else have workers ask any address that they
    reach. None: everywhere but at link-local and cloud metadata addresses, of which those count that a CIDR names; and one that is added
    over HTTP at public addresses only."""

    @field_validator("module", mode="before")
    @classmethod
    def _read_module(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @field_validator("module")
    @classmethod
    def _check_module(cls, module: dict[str, ModuleSpec]) -> dict[str, ModuleSpec]:
        if wrong := [name for name in module if not is_module_name(name)]:
            raise ValueError(f"module name {wrong[0][:80]!r} may have letters, digits, '_' and '-' only")
        return module

    @field_validator("module_headers", mode="before")
    @classmethod
    def _check_headers(cls, value: Any) -> Any:
        return check_headers(read_json(value) if isinstance(value, str) else value)
