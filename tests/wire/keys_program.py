"""Prints the patterns of all Redis keys of whichever version is on the path, as JSON."""

import importlib
import json
from importlib.util import find_spec
from typing import Any

_NEWEST_FIRST = (
    "toolfleet_registry.redis.key_rules",
    "toolfleet_registry.redis.keys",
    "toolfleet_registry.key_rules",
    "toolfleet_registry.keys",
)


def rules() -> Any:
    """The rules of the keys, where this version has them."""
    return importlib.import_module(next(name for name in _NEWEST_FIRST if _is_there(name))).RULES


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(rule.pattern.pattern) for rule in rules()) + "\n]")  # noqa: T201
