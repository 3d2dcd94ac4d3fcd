"""Writes the page of all settings: name, default and reason, read from the classes that declare them."""

import functools
from typing import Any

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
in an error with its number.
"""


def settings_page() -> str:
    """Return the page: one chapter for each group of settings, in the order of their names."""
    owners = sorted({_owner(name) for name in Settings.model_fields}, key=lambda owner: owner.__name__)
    return wrapped("\n".join([_HEAD, *(_chapter(owner) for owner in owners)]))


def _owner(name: str) -> type:
    """Return the class that declares the setting."""
    return next(kind for kind in reversed(Settings.__mro__) if name in getattr(kind, "__annotations__", {}))


def _chapter(owner: type) -> str:
    names = [name for name in Settings.model_fields if _owner(name) is owner]
    title = owner.__name__.removesuffix("Settings") or "The fleet"
    return "\n".join([f"## {title}\n", *(_entry(owner, name, Settings.model_fields[name]) for name in names)])


def _entry(owner: type, name: str, field: FieldInfo) -> str:
    reason = " ".join(_reasons(owner).get(name, "").split())
    return f"### `{PREFIX}{name}`\n\nDefault: {_default(field)}. {reason}\n".replace(
        PREFIX + name, (PREFIX + name).upper(), 1
    )


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ({}, "", frozenset(), ()):
        return "none"
    if isinstance(value, frozenset | set | list | tuple):
        value = ",".join(sorted(map(str, value)))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


@functools.cache
def _reasons(owner: type) -> dict[str, str]:
    """Return the docstrings that stand below the settings of a class."""
    declared = griffe.load(f"{owner.__module__}.{owner.__qualname__}")
    return {name: one.docstring.value for name, one in declared.members.items() if one.docstring is not None}
