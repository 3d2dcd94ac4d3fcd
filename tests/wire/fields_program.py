"""Prints the fields of every class of messages in whichever version is on the path, as JSON."""

import importlib
import importlib.util
import json
import pkgutil
from types import ModuleType

import toolfleet_registry
import toolfleet_tasks
from toolfleet_registry.contracts import Message

_OPTIONAL = {
    "receiver",
    "seen_redis",
    "seen_sql",
    "dedup_redis",
    "dedup_sql",
}  # need packages of an agent's core; no messages are in them


def _subclasses(kind: type[Message]) -> list[type[Message]]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]


def messages() -> list[type[Message]]:
    """Every class of messages."""
    packages: list[ModuleType] = [toolfleet_registry, toolfleet_tasks]
    if importlib.util.find_spec("toolfleet_modules"):  # earlier versions have it in the registry
        packages.append(importlib.import_module("toolfleet_modules"))
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] not in _OPTIONAL:
                importlib.import_module(module.name)
    return _subclasses(Message)


if __name__ == "__main__":
    found = {kind.__name__: sorted(kind.model_fields) for kind in messages()}
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)) + "\n}")  # noqa: T201
