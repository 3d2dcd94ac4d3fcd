"""Writes the page of the Python reference: one entry for each public name, which the site fills in."""

import importlib

FACES = ("toolfleet", "toolfleet.formats", "toolfleet.sdk", "toolfleet.stores", "toolfleet.tags", "toolfleet.webhooks")

_HEAD = """# Python

What the package `toolfleet` and its submodules offer. Everything else is internal, and may change with any version.
"""


def python_page() -> str:
    """Return the page. A name that a module lists in `__all__` is public."""
    return "\n".join([_HEAD, *(_section(face) for face in FACES)])


def _section(face: str) -> str:
    names: list[str] = importlib.import_module(face).__all__
    return "\n".join([f"## `{face}`\n", *(f"::: {face}.{name}\n" for name in names)])
