"""Reads which packages a Python file asks for (PEP 723), and those that a `requirements.txt` lists."""

import platform
import re
import tomllib
from collections.abc import Iterable
from typing import Any, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

Requirements: TypeAlias = frozenset[str]
"""Lines as PEP 508 has them, each in its normal form."""

_BLOCK = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.MULTILINE)  # of PEP 723
_MOST = 200  # packages of one file
_SHOWN = 200


class RequirementsFault(Exception):
    """The requirements cannot be read. The message says why, in one sentence."""


def requirements_in(text: str) -> Requirements:
    """The packages that a file's block `# /// script` names; none without such a block. Raises `RequirementsFault`."""
    if "# /// script" not in text:
        return frozenset()
    blocks = [each["content"] for each in _BLOCK.finditer(text) if each["type"] == "script"]
    if len(blocks) != 1:
        raise RequirementsFault("It has several blocks `# /// script`, or one without an end.")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0].splitlines())
    try:
        said = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as exc:
        raise RequirementsFault(f"Its block `# /// script` is no TOML: {str(exc)[:_SHOWN]}.") from None
    _check_python(said.get("requires-python"))
    named = said.get("dependencies", [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise RequirementsFault("`dependencies` is no list of texts.")
    return _normal(named)


def listed_requirements(text: str) -> Requirements:
    """The packages in a `requirements.txt`, a line each; comments are left out, and options refused. Raises `RequirementsFault`."""
    lines = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    named = [line for line in lines if line]
    if option := next((line for line in named if line.startswith("-")), None):
        raise RequirementsFault(f"{option[:_SHOWN]!r} is an option: the host has those, in `tool_install_options`.")
    return _normal(named)


def _check_python(wanted: Any) -> None:
    if wanted is None:
        return
    try:
        is_met = SpecifierSet(wanted).contains(platform.python_version(), prereleases=True)
    except (InvalidSpecifier, TypeError, AttributeError):
        raise RequirementsFault(f"`requires-python` is none: {str(wanted)[:_SHOWN]!r}.") from None
    if not is_met:
        raise RequirementsFault(f"It needs Python {wanted[:_SHOWN]}, and this is {platform.python_version()}.")


def _normal(named: Iterable[str]) -> Requirements:
    found = set[str]()
    for line in named:
        try:
            found.add(str(Requirement(line)))
        except InvalidRequirement:
            raise RequirementsFault(f"{line[:_SHOWN]!r} names no package.") from None
    if len(found) > _MOST:
        raise RequirementsFault(f"It asks for {len(found)} packages; at most {_MOST} are installed.")
    return frozenset(found)
