"""Imports a package's names on first use, so that importing the package costs next to nothing."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(package: str, where: Mapping[str, str], *, install: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package (PEP 562): `where` says of each name which `module:name` it stands for.

    Where something is not installed that a name needs, it raises `ImportError`, which says what to `install`.
    """

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = where[name].partition(":")
        try:
            value = getattr(import_module(module), attribute or name)
        except ModuleNotFoundError as exc:
            message = f"{package}.{name} needs {(exc.name or module).partition('.')[0]!r}: pip install '{install}'."
            raise ImportError(message, name=exc.name) from exc
        setattr(sys.modules[package], name, value)
        return value

    return find


class LazyModule(ModuleType):
    """A library that many processes never use: it is imported when something of it is asked for.

    Type checkers are given the library itself, and names in annotations stand in quotation marks.
    """

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value
