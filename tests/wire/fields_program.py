"""Prints the fields of every class of messages in whichever version is on the path, as JSON."""

import importlib
import json
import pkgutil

import toolfleet_registry
import toolfleet_tasks
from toolfleet_registry.contracts import Message

_OPTIONAL = {"receiver", "seen_redis", "seen_sql"}  # need packages of an agent's core; no messages are in them


def _subclasses(kind: type[Message]) -> list[type[Message]]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]


def messages() -> list[type[Message]]:
    """Every class of messages."""
    for package in (toolfleet_registry, toolfleet_tasks):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in _OPTIONAL:
                importlib.import_module(f"{package.__name__}.{module.name}")
    return _subclasses(Message)


if __name__ == "__main__":
    found = {kind.__name__: sorted(kind.model_fields) for kind in messages()}
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)) + "\n}")  # noqa: T201
