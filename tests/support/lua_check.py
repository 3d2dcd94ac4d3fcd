"""Checks the `.lua` files of all rooms: their syntax, that they use no global that Redis does not have, and that each has a use.

Lua 5.1 itself compiles them; which globals a function reads or writes stands in its bytecode.
"""

import keyword
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from lupa.lua51 import LuaError, LuaRuntime

from toolfleet_gateway.auth.key_limits import FILES as GATEWAY_FILES
from toolfleet_registry.lua_files import FILES as REGISTRY_FILES
from toolfleet_registry.once.redis import FILES as ONCE_FILES
from toolfleet_registry.redis.script import Names, ScriptFolder
from toolfleet_tasks.scripts import FILES as TASKS_FILES
from toolfleet_tasks.webhooks.dedup import FILES as WEBHOOKS_FILES

FOLDERS = (GATEWAY_FILES, REGISTRY_FILES, ONCE_FILES, TASKS_FILES, WEBHOOKS_FILES)
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
ROOT = Path(__file__).parents[2]

IN_REDIS = frozenset(
    [
        "KEYS",
        "ARGV",
        "redis",
        "cjson",
        "error",
        "string",
        "table",
        "math",
        "ipairs",
        "pairs",
        "pcall",
        "select",
        "tonumber",
        "tostring",
        "type",
        "unpack",
    ]
)
"""The globals that scripts may read; they write none."""
_MOST_CHARACTERS = 132  # a line

_GETGLOBAL, _SETGLOBAL = 5, 7
_KIND_BITS, _CONSTANT_SHIFT = 0x3F, 14
_NIL, _BOOLEAN, _NUMBER, _STRING = 0, 1, 3, 4


def faults_in(folder: ScriptFolder) -> Iterator[str]:
    """What is wrong with a folder's files, each as `<file>: <what>`."""
    used = set[str]()
    for name, text in folder.sources.items():
        yield from (f"{name}.lua: {fault}" for fault in _of_text(text))
    try:
        names = list(folder.names)
    except ValueError as exc:
        yield str(exc)
        return
    for name in names:
        head = folder.source(name)
        yield from (f"{name}: {fault}" for fault in (*_of_names(head.keys, head.args), *_of_script(folder, name, used)))
    yield from (
        f"{name}.lua: nothing uses `{made}`"
        for name in folder.sources
        for made in folder.file(name).blocks
        if not folder.file(name).is_script and made not in used
    )


def all_faults() -> list[str]:
    """Of every folder; and files that are in none of them."""
    known = [each.folder / f"{name}.lua" for each in FOLDERS for name in each.sources]
    found = {path for room in ROOMS for path in (ROOT / room).rglob("*.lua")}
    strays = sorted(str(path.relative_to(ROOT)) for path in found.difference(known))
    return [*(f"{path}: nothing loads it" for path in strays), *(one for each in FOLDERS for one in faults_in(each))]


def globals_of(text: str) -> tuple[set[str], set[str]]:
    """The globals that a script reads, and those that it writes. Raises `LuaError` where it cannot be compiled."""
    lua: Any = cast("Any", LuaRuntime)(encoding=None)  # bytes go in and out
    dump = lua.eval(b"function(text) return string.dump(assert(loadstring(text, '=script'))) end")
    return _Bytecode(dump(text.encode())).globals()


def _of_script(folder: ScriptFolder, name: str, used: set[str]) -> Iterator[str]:
    try:
        script = folder.script(name)
        read, written = globals_of(script.text)
        used.update(re.findall(r"(?m)^local (?:function )?(\w+)", script.text))
        used.update(re.findall(r"(?m)^local \w+, (\w+)", script.text))
        _ = script.parameters, script.parameters_of  # Python can compile them, too
    except KeyError as exc:
        yield f"there is no {exc}"
        return
    except LuaError as exc:
        yield f"{exc}"
        return
    yield from (f"`{each}` is not defined" for each in sorted(read - IN_REDIS))
    yield from (f"`{each}` is global: write `local`" for each in sorted(written))


def _of_text(text: str) -> Iterator[str]:
    yield from (
        f"line {at} is too long" for at, line in enumerate(text.splitlines(), 1) if len(line) > _MOST_CHARACTERS
    )
    yield from (f"`{each}` has a name: see the head" for each in sorted(set(re.findall(r"\b(?:KEYS|ARGV)\b", text))))
    if "[[" in text or "--[" in text:
        yield "long brackets are not understood by whoever takes the comments out"


def _of_names(keys: Names, args: Names) -> Iterator[str]:
    names = [re.sub("=.*", "", name) for name in (*keys.signature, *args.signature)]
    yield from (f"`{name}` is named twice" for name in sorted({name for name in names if names.count(name) > 1}))
    yield from (f"`{name}` cannot be a name" for name in names if keyword.iskeyword(name) or name in IN_REDIS)


class _Bytecode:
    """What `string.dump` of Lua 5.1 has made: a header of 12 bytes, and the main function."""

    def __init__(self, dump: bytes) -> None:
        self._dump, self._at = dump, 12
        self._integer, self._size, self._word, self._float = dump[7], dump[8], dump[9], dump[10]

    def globals(self) -> tuple[set[str], set[str]]:
        """Those that are read, and those that are written."""
        read, written = set[str](), set[str]()
        self._function(read, written)
        return read, written

    def _function(self, read: set[str], written: set[str]) -> None:
        self._text()
        self._skip(2 * self._integer + 4)
        code = [self._number(self._word) for _ in range(self._count())]
        constants = [self._constant() for _ in range(self._count())]
        for word in code:
            if word & _KIND_BITS in {_GETGLOBAL, _SETGLOBAL}:
                (read if word & _KIND_BITS == _GETGLOBAL else written).add(constants[word >> _CONSTANT_SHIFT])
        for _ in range(self._count()):
            self._function(read, written)
        self._skip(self._count() * self._integer)  # the lines
        for _ in range(self._count()):
            self._text()
            self._skip(2 * self._integer)
        for _ in range(self._count()):
            self._text()

    def _constant(self) -> str:
        kind = self._number(1)
        if kind == _STRING:
            return self._text()
        self._skip({_NIL: 0, _BOOLEAN: 1, _NUMBER: self._float}[kind])
        return ""

    def _text(self) -> str:
        size = self._number(self._size)
        text = self._dump[self._at : self._at + max(size - 1, 0)]
        self._skip(size)
        return text.decode(errors="replace")

    def _count(self) -> int:
        return self._number(self._integer)

    def _number(self, size: int) -> int:
        (value,) = struct.unpack_from({1: "<B", 4: "<I", 8: "<Q"}[size], self._dump, self._at)
        self._skip(size)
        return int(value)

    def _skip(self, size: int) -> None:
        self._at += size


if __name__ == "__main__":
    found = all_faults()
    sys.exit("\n".join(found) or None)
