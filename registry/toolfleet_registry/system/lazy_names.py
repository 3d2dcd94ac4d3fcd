"""Imports a package's names on first use, so that importing the package costs next to nothing."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(package: str, exported: Mapping[str, str], *, install: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package (PEP 562): `exported` has the names of each module, with spaces in between.

    `name=other` stands for a module's `other`. Where something is not installed that a name needs, it raises
    `ImportError`, which says what to `install`.
    """
    where = {word.partition("=")[0]: (module, word) for module, words in exported.items() for word in words.split()}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, word = where[name]
        try:
            value = getattr(import_module(module), word.rpartition("=")[2])
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
