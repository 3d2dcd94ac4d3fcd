"""Translates YAML from the standard input to JSON: in a process of its own, with bounded time and memory.

Runs as a program. The schema is YAML 1.2's for JSON, which OpenAPI names: `yes` and dates are texts. Merge keys (`<<`)
are merged. Anchors and aliases count as if they were written out.
"""

import json
import re
import resource
import sys
from typing import Any

import yaml

_CPU_SECONDS = 30
_MEMORY_BYTES = 2 * 2**30
MOST_VALUES = 2_000_000
"""Values of a document, with all that its aliases stand for."""

WRONG = 3
"""The exit code of what is no YAML; the standard error says why."""

_MOST_DEPTH = 100
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVERS = (
    ("merge", r"<<", "<"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
)


class JsonLoader(_BASE):  # type: ignore[misc] # chosen when it runs
    """Knows JSON's types only."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - the library's own place for them


for _tag, _form, _starts in _RESOLVERS:
    JsonLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), ["" if each == "\0" else each for each in _starts]
    )
JsonLoader.add_constructor("tag:yaml.org,2002:merge", lambda loader, node: loader.construct_scalar(node))  # a value
JsonLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


def main() -> int:
    """Translate. Returns the exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        value = yaml.load(sys.stdin.buffer.read(), JsonLoader)  # noqa: S506 - it makes nothing but JSON's types
        _check(value)
        sys.stdout.buffer.write(json.dumps(value, allow_nan=False).encode())
    except yaml.MarkedYAMLError as exc:
        line = "" if exc.problem_mark is None else f" (line {exc.problem_mark.line + 1})"
        return _wrong(f"It is no YAML: {exc.problem}{line}.")
    except (yaml.YAMLError, ValueError, TypeError) as exc:
        return _wrong(
            f"It is no YAML that can be JSON: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}."
        )
    except (RecursionError, MemoryError):
        return _wrong("It is nested too deep, or too large.")
    return 0


def _check(value: Any) -> None:
    """Check a value.

    Raises `ValueError` for one that is too large when it is written out, and for keys that are no texts.
    """
    level, count = [value], 0
    for _ in range(_MOST_DEPTH):
        count += len(level)
        if count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
        after = list[Any]()
        for each in level:
            if isinstance(each, dict):
                _name(each)
                after.extend(each.values())
            elif isinstance(each, list):
                after.extend(each)
            if len(after) > MOST_VALUES:
                raise ValueError(f"it has more than {MOST_VALUES} values")
        level = after
        if not level:
            return
    raise ValueError(f"it is nested deeper than {_MOST_DEPTH} levels")


def _name(members: dict[Any, Any]) -> None:
    """Keys of responses are written as numbers often: they are texts."""
    for key in [key for key in members if not isinstance(key, str)]:
        if isinstance(key, bool) or not isinstance(key, int):
            raise ValueError(f"a key is {type(key).__name__}")
        members[str(key)] = members.pop(key)


def _wrong(words: str) -> int:
    sys.stderr.write(words[:500])
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
