"""Writes the page of the Python reference: one entry for each public name, which the site fills in."""

import importlib
from functools import cached_property

from toolfleet import ToolFleet

FACES = (
    "toolfleet.adapters.claude",
    "toolfleet.adapters.langchain",
    "toolfleet.adapters.openai_agents",
    "toolfleet.adapters.pydantic_ai",
    "toolfleet.formats",
    "toolfleet.middleware",
    "toolfleet.sdk",
    "toolfleet.stores",
    "toolfleet.tags",
    "toolfleet.webhooks",
)

_HEAD = """# Python

What the package `toolfleet` and its submodules offer. Everything else is internal, and may change with any version.

`SyncToolFleet`, what `ToolFleet.sync()` returns, has all methods of `ToolFleet` and of its namespaces, without `await`.
"""
_FIXTURES = """## Fixtures of pytest

They are there wherever Toolfleet is installed; nothing is imported. [Testing](../guides/sdk.md#testing) shows them.

::: toolfleet_cli.testing.plugin.OpenModule

::: toolfleet_cli.testing.in_process.InProcess

::: toolfleet_cli.testing.plugin.StartFleet

::: toolfleet_cli.testing.fleet.RunningFleet
"""


def python_page() -> str:
    """Return the page. A name that a module lists in `__all__` is public, and so are the namespaces of a fleet."""
    return "\n".join([_HEAD, _section("toolfleet"), *_namespaces(), *(_section(face) for face in FACES), _FIXTURES])


def _section(face: str) -> str:
    names: list[str] = importlib.import_module(face).__all__
    return "\n".join([f"## `{face}`\n", *(f"::: {face}.{name}\n" for name in names)])


def _namespaces() -> list[str]:
    fleet = ToolFleet("redis://localhost")
    names = [name for name, value in vars(ToolFleet).items() if isinstance(value, cached_property)]
    kinds = {name: type(getattr(fleet, name)) for name in names}
    return [f"## `fleet.{name}`\n\n::: {kind.__module__}.{kind.__qualname__}\n" for name, kind in kinds.items()]
