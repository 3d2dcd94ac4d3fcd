"""Parses tool names: `module.method` here, and the narrower form that model providers accept."""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from toolfleet_registry.errors import InvalidToolName

LOCAL = "local"
"""The module whose tools are functions of our own: see the setting `local_tools`."""

SCHEDULER = "scheduler"
"""The module whose tools make jobs: see the setting `scheduler`."""

ARTIFACTS = "artifacts"
"""The module whose tools read large results: see the setting `artifact_store`."""

PROGRAMS = "programs"
"""The module whose tools run programs that call tools: see the setting `programs`."""

RUN_PROGRAM = f"{PROGRAMS}.run"
"""The tool that runs a program."""

RESERVED = frozenset({LOCAL, SCHEDULER, ARTIFACTS, PROGRAMS})
"""Names that no other module can have."""

MAX_PROVIDER_NAME = 64  # OpenAI, Anthropic and Gemini all accept ^[A-Za-z_][A-Za-z0-9_-]{0,63}$


@dataclass(frozen=True, slots=True, order=True)
class ToolName:
    """A tool's name, split on the first dot only: `git.issue.create` is method `issue.create` of `git`."""

    module: str
    method: str

    @classmethod
    @lru_cache(maxsize=4096)  # several times a call; wrong names, which may be of any length, are not kept
    def parse(cls, name: str) -> Self:
        """Read `module.method`. Raises `InvalidToolName`."""
        module, _, method = name.partition(".")
        # What cannot be printed cannot be told apart in a listing, and can command a terminal.
        if not _MODULE.fullmatch(module) or not _METHOD.fullmatch(method) or not method.isprintable():
            raise InvalidToolName(name)
        return cls(module, method)

    def __str__(self) -> str:
        return f"{self.module}.{self.method}"


def named_modules(text: str | None) -> frozenset[str] | None:
    """Return the names in a list with commas between them; `None` for no list."""
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def is_module_name(name: str) -> bool:
    """Return whether this is a valid module name: it becomes part of a queue's name and of Redis keys."""
    return _MODULE.fullmatch(name) is not None


def name_fault(name: str) -> str | None:
    """Return what is wrong with a readable tool name, or `None`.

    A tool with such a name is closed: other names may look just like it.
    """
    return (
        None
        if re.fullmatch(_SAFE, name)
        else f"its name {name!a} has more than ASCII letters, digits, '_', '-' and dots"
    )


def provider_name(name: str) -> str:
    """Return the name under which every provider accepts a tool; no two tools share one.

    A dot becomes two underscores, which is plain to read for ordinary names. A name for which that could be
    mistaken for another's, that has a character no provider takes, or that gets over 64 characters, keeps its
    readable start and ends in the first 10 hex digits of its SHA-256, after `-x`.
    """
    plain = name.replace(".", "__")
    if re.fullmatch(_PLAIN, plain) and not re.search(_AMBIGUOUS, name):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = re.sub(_ILLEGAL, "_", plain)
    if not readable[:1].isalpha():
        readable = f"_{readable}"
    return f"{readable[: MAX_PROVIDER_NAME - _DIGEST - 2]}-x{digest}"


_DIGEST = 10
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_SAFE = r"(?a)[A-Za-z0-9_.-]+"
_METHOD = re.compile(r"\S{1,192}")
_PLAIN = r"(?a)[A-Za-z_][A-Za-z0-9_-]{0,63}"
_ILLEGAL = r"(?a)[^A-Za-z0-9_-]"
# Two underscores in the name itself, one next to a dot, or our own suffix: each could spell another tool's plain form.
_AMBIGUOUS = r"__|_\.|\._|-x[0-9a-f]{10}$"
