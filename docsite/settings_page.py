"""Writes the page of all settings: name, default and reason, read from the classes that declare them."""

import functools
import inspect
import typing
from pathlib import Path
from typing import Any, Final

import griffe
from pydantic.fields import FieldInfo

from docsite.wrapping import wrapped
from toolfleet_registry.settings import PREFIX, Settings

_HEAD = """# Settings

A program reads its settings from the environment (`TOOLFLEET_…`), from the nearest `toolfleet.toml`, and from the fleet
that `toolfleet up` runs in this folder or above. The first one that has a setting counts. In `toolfleet.toml` a setting
has its name in small letters, without `TOOLFLEET_`:

```toml
# toolfleet.toml
slow_modules = ["deployer"]

[module_services]
research = "http://research:8000"
```

`toolfleet config` shows what is set, and where. A misspelt variable is named in a warning, a misspelt line of the file
in an error with its number. A setting that the version before had and this one has not is named in a warning, with what
holds in its place, and changes nothing.

Most fleets set only these:

| setting | who needs it |
|---|---|
| [`TOOLFLEET_REDIS_URL`](#toolfleet_redis_url) | everybody |
| [`TOOLFLEET_MODULE_SERVICES`](#toolfleet_module_services), [`TOOLFLEET_SLOW_MODULES`](#toolfleet_slow_modules) | workers and beat |
| [`TOOLFLEET_SIGNING_KEY`](#toolfleet_signing_key) | everybody, if others reach the broker |
| [`TOOLFLEET_CORE_URL`](#toolfleet_core_url), [`TOOLFLEET_CORE_SECRET`](#toolfleet_core_secret) | workers and beat, if jobs wake an agent over HTTP |
| [`TOOLFLEET_LOCAL_TOOLS`](#toolfleet_local_tools) | workers, for functions of your own |
| [`TOOLFLEET_REGISTRY_URL`](#toolfleet_registry_url) | everybody, if the registry is in SQL |
"""
_TITLES: Final = {
    "Settings": "The fleet",
    "ModuleSettings": "Modules",
    "LocalSettings": "Functions in the workers",
    "HostSettings": "Tool folders",
    "AgentSettings": "Agents",
    "ApprovalSettings": "Approvals",
    "ArtifactSettings": "Artifacts",
    "ProgramSettings": "Programs",
    "OverloadSettings": "Limits and overload",
    "RetrySettings": "Retry",
    "JobSettings": "Jobs and wake-ups",
    "WebhookSettings": "Webhooks",
    "SigningSettings": "Signing",
    "GatewaySettings": "Gateways",
    "ServerSettings": "Redis and clocks",
    "ProbeSettings": "Health",
    "MetricsSettings": "Metrics",
    "TraceSettings": "Traces",
}


def settings_page() -> str:
    """Return the page: one chapter for each class that declares settings. Raises KeyError for a class without a title."""
    owners = {_owner(name).__name__: _owner(name) for name in Settings.model_fields}
    if untitled := owners.keys() - _TITLES.keys():
        raise KeyError(*untitled)
    return wrapped("\n".join([_HEAD, *(_chapter(owners[name], title) for name, title in _TITLES.items())]))


def _owner(name: str) -> type:
    """Return the class that declares the setting."""
    return next(kind for kind in reversed(Settings.__mro__) if name in getattr(kind, "__annotations__", {}))


def _chapter(owner: type, title: str) -> str:
    names = [name for name in Settings.model_fields if _owner(name) is owner]
    return "\n".join([f"## {title}\n", *(_entry(owner, name, Settings.model_fields[name]) for name in names)])


def _entry(owner: type, name: str, field: FieldInfo) -> str:
    reason = " ".join(_reasons(owner).get(name, "").split())
    said = " ".join(filter(None, [f"Default: {_default(field)}.", _form(field, reason), reason]))
    return f"### `{(PREFIX + name).upper()}`\n\n{said}\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ({}, "", frozenset(), ()):
        return "none"
    if isinstance(value, frozenset | set | list | tuple):
        value = ",".join(sorted(map(str, value)))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _form(field: FieldInfo, reason: str) -> str:
    """Return how a value of several parts is written, unless the reason says it."""
    if "JSON" in reason:
        return ""
    kind = typing.get_origin(field.annotation)
    if kind is dict:
        return "JSON."
    return "Comma-separated, or JSON." if kind in {frozenset, tuple} else ""


@functools.cache
def _reasons(owner: type) -> dict[str, str]:
    """Return the docstrings that stand below the settings of a class."""
    path = Path(inspect.getfile(owner))
    declared = griffe.visit(owner.__module__, filepath=path, code=path.read_text())[owner.__qualname__]
    return {name: one.docstring.value for name, one in declared.members.items() if one.docstring is not None}
