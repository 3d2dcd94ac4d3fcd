"""Loads Lua scripts from `.lua` files, and builds their parameters for Redis from named keys and arguments.

The comments at the head of a file say what the loader must know of it; all of these lines may be left out, or come again:

    -- keys: record, limits...
    -- args: token, seconds, terms(daily, cooldown)...
    -- include: now, overload/room
    -- lazily: dead_letters/bury(bury)
    -- constants: LONGEST_LEASE_MS

Names of keys and arguments, in their order, are local variables of the script. `limits...` is a list of the rest; one of
groups, `terms(daily, cooldown)...`, is a list of tables. A list that others follow travels with its length before it.
`intent?`, which comes last, may be nil. Included files stand before
the script, each once; they see its keys and arguments. Redis makes their functions anew in each run, which costs more than most
commands: of what a file includes `lazily` only the named functions are made, which make the rest when they are called. Constants are
numbers and texts that Python has, too.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

_NAME_PATTERN = r"(\w+)(?:\(([\w, ]+)\))?(\.\.\.|\?)?(?:, *|$)"

Parameters = tuple[Any, ...]
"""The parameters after the script in `EVAL` and `EVALSHA`: the number of keys, keys, arguments."""

# Not compiled here: a process that runs no script does without.
_DIRECTIVE = r"-- (keys|args|include|lazily|constants): *(.*)"


class NamedList(NamedTuple):
    """A list of keys or arguments. `parts`: of each member, if it is a group."""

    name: str
    parts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of places that a member takes."""
        return len(self.parts) or 1

    @property
    def values(self) -> str:
        """Python's expression for its values, with a trailing comma."""
        return f"*_flat({self.name}, {self.size}), " if self.parts else f"*{self.name}, "

    def lua(self, table: str, first: str, last: str) -> str:
        """The lines that define it in Lua, out of these places of a table."""
        if not self.parts and first == "1":
            return f"local {self.name} = {table}"
        fields = ", ".join(f"{part} = {table}[i + {at}]" for at, part in enumerate(self.parts))
        member = f"{{{fields}}}" if fields else f"{table}[i]"
        step = f"for i = {first}, {last}, {self.size} do {self.name}[#{self.name} + 1] = {member} end"
        return f"local {self.name} = {{}}\n{step}"


class Names(NamedTuple):
    """The names of keys, or of arguments: `fixed` ones, then one that may be nil, or lists."""

    fixed: tuple[str, ...]
    optional: str = ""
    lists: tuple[NamedList, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Names":
        """Parse one file. Raises `ValueError`."""
        fixed, optional, lists, end = list[str](), "", list[NamedList](), 0
        for found in re.finditer(_NAME_PATTERN, text):
            is_list = found[3] == "..."
            if found.start() != end or optional or (lists and not is_list) or (found[2] and not is_list):
                break
            end = found.end()
            if is_list:
                lists.append(NamedList(found[1], tuple(re.findall(r"\w+", found[2] or ""))))
            elif found[3]:
                optional = found[1]
            else:
                fixed.append(found[1])
        if end != len(text):
            raise ValueError(f"what follows {text[:end]!r} is no name, or comes after a list: {text[end:]!r}")
        return cls(tuple(fixed), optional, tuple(lists))

    def lua(self, table: str) -> Iterator[str]:
        """The lines that define the names in Lua."""
        named = (*self.fixed, *filter(None, [self.optional]))
        if named:
            part = table if not self.lists else f"{table}, 1, {len(named)}"
            yield f"local {', '.join(named)} = unpack({part})"
        first = f"{len(named) + 1}"
        for each in self.lists[:-1]:
            last = f"{first} + {each.size} * {table}[{first}]"
            yield each.lua(table, f"{first} + 1", last)
            first = f"{last} + 1"
        if self.lists:
            yield self.lists[-1].lua(table, first, f"#{table}")

    @property
    def signature(self) -> Sequence[str]:
        """The same names as Python's parameters."""
        last = [f"{self.optional}=None"] if self.optional else [f"{each.name}=()" for each in self.lists]
        return [*self.fixed, *last]

    @property
    def alternatives(self) -> tuple["Names", "Names"]:
        """The names without the optional one, and with it."""
        return self._replace(optional=""), self._replace(fixed=(*self.fixed, self.optional), optional="")

    @property
    def values(self) -> str:
        """Python's expressions for the values, each with a comma behind it."""
        values = "".join(f"{name}, " for name in self.fixed)
        values += "".join(f"len({each.name}), {each.values}" for each in self.lists[:-1])
        return values + (self.lists[-1].values if self.lists else "")

    @property
    def number(self) -> str:
        """Python's expression for how many there are."""
        lists = [f"{each.size} * len({each.name})" for each in self.lists]
        return " + ".join([f"{len(self.fixed) + max(len(lists) - 1, 0)}", *lists])

    def checked(self, name: str) -> str:
        """Python's expression for a sequence of that name, if it has as many."""
        most = "None" if self.lists else len(self.fixed) + bool(self.optional)
        step = self.lists[0].size if len(self.lists) == 1 else 1
        return f"_counted({name}, {len(self.fixed)}, {most}, {step})"


class ScriptFolder:
    """The `.lua` files below a folder, all of which are read at once: a process that runs is not changed by an upgrade.

    `constants` are those that the files may ask for.
    """

    def __init__(self, folder: Path, constants: Mapping[str, float | str] | None = None) -> None:
        self._constants = constants or {}
        self.folder = folder
        self.sources = dict(_read(str(folder), ""))

    def script(self, name: str) -> "Script":
        """The script of this file, without its suffix. Raises `KeyError` where there is none."""
        return Script(name, self.sources[name], self)

    def source(self, name: str) -> "Source":
        """Read one file's head. Raises `ValueError` where it cannot be understood."""
        return Source.read(name, self.sources[name])

    def constant(self, name: str) -> str:
        """The line that defines a constant in Lua."""
        value = self._constants[name]
        return f"local {name} = {value!r}"


class Script:
    """A script that runs inside Redis. `digest` is what Redis calls it, once it has seen its `text`.

    `parameters(**named)` takes every key and argument by its name, `parameters_of(keys, **named)` the keys as one sequence in
    their order. Both raise `TypeError` for one too many or too few.
    """

    def __init__(self, name: str, source: str, folder: ScriptFolder) -> None:
        self.name, self._source, self._folder = name, source, folder

    @cached_property
    def text(self) -> str:
        """Lua, with what it includes, and without comments."""
        head = Source.read(self.name, self._source)
        files = _included(head, self._folder, {})
        constants = dict.fromkeys(constant for file in files.values() for constant in file.constants)
        lines = [*map(self._folder.constant, constants), *head.keys.lua("KEYS"), *head.args.lua("ARGV")]
        made = set[str]()
        for file in files.values():
            lines += _made_lazily(file, self._folder, files, constants, made)
            lines.append(file.body)
        return "\n".join(lines)

    @cached_property
    def digest(self) -> str:
        """The SHA-1 of the text."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def parameters(self) -> Callable[..., Parameters]:
        """Build the parameters from named keys and arguments."""
        head = Source.read(self.name, self._source)
        names = [*head.keys.signature, *head.args.signature]
        signature = f"*, {', '.join(names)}" if names else ""
        return self._compiled(signature, _tuple_of(head.keys, head.args))

    @cached_property
    def parameters_of(self) -> Callable[..., Parameters]:
        """Build the parameters from keys in their order, and named arguments."""
        head = Source.read(self.name, self._source)
        names = ", ".join(("keys, *" if head.args.signature else "keys", *head.args.signature))
        counted = f"len(keys), *{head.keys.checked('keys')}, "
        return self._compiled(names, _tuple_of(Names(()), head.args, before=counted))

    def command(self, **named: Any) -> Parameters:
        """Return the whole command for a script that is sent as text each time, and so works even if Redis has lost its scripts."""
        return ("EVAL", self.text, *self.parameters(**named))

    def _compiled(self, signature: str, values: str) -> Callable[..., Parameters]:
        """A function that has the names in its signature, as a dataclass's: it costs no more than the tuple itself."""
        space: dict[str, Any] = {"_flat": _flat, "_counted": _counted}
        function = f"{self.name.replace('/', '_')}"
        exec(f"def {function}({signature}): return {values}", space)  # noqa: S102 - of names out of our own files
        return space[function]  # type: ignore[no-any-return]


class Source(NamedTuple):
    """The content of one file: the names at its head, and its body without comments."""

    keys: Names
    args: Names
    include: tuple[str, ...]
    lazily: tuple[tuple[str, tuple[str, ...]], ...]
    constants: tuple[str, ...]
    body: str

    @classmethod
    def read(cls, name: str, text: str) -> "Source":
        """Parse one file. Raises `ValueError`."""
        said: dict[str, list[str]] = {"keys": [], "args": [], "include": [], "lazily": [], "constants": []}
        for line in text.splitlines():
            if not line.startswith("--"):
                break
            if found := re.fullmatch(_DIRECTIVE, line.rstrip()):
                said[found[1]].append(found[2])
        try:
            keys, args = (Names.read(", ".join(said[kind])) for kind in ("keys", "args"))
        except ValueError as exc:
            raise ValueError(f"the head of {name}.lua cannot be read: {exc}") from exc
        include, constants = (tuple(re.findall(r"[\w/]+", " ".join(said[kind]))) for kind in ("include", "constants"))
        lazily = tuple(
            (file, tuple(re.findall(r"\w+", functions)))
            for file, functions in re.findall(r"([\w/]+)\(([\w, ]+)\)", " ".join(said["lazily"]))
        )
        lines = (line.strip() for line in text.splitlines())
        body = "\n".join(line for line in lines if line and not line.startswith("--"))
        return cls(keys, args, include, lazily, constants, body)


def _read(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """The names and texts of all files below; pathlib would take several times as long, in each process that starts."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".lua"):
                with open(entry.path, encoding="utf-8") as file:  # noqa: PTH123 - as above
                    yield prefix + entry.name.removesuffix(".lua"), file.read()
            elif entry.is_dir():
                yield from _read(entry.path, f"{prefix}{entry.name}/")


def _included(source: Source, folder: ScriptFolder, found: dict[str, Source]) -> dict[str, Source]:
    """A file behind those that it includes, by name, each once."""
    for name in source.include:
        if name not in found:
            _included_as(name, folder, found)
    found[""] = source
    return found


def _included_as(name: str, folder: ScriptFolder, found: dict[str, Source]) -> None:
    source = folder.source(name)
    for other in source.include:
        if other not in found:
            _included_as(other, folder, found)
    found[name] = source


def _made_lazily(
    file: Source, folder: ScriptFolder, included: Mapping[str, Source], constants: Iterable[str], made: set[str]
) -> Iterator[str]:
    """The functions that a file includes lazily, each of which makes itself when it is called; those that are `made` are left out."""
    for name, functions in file.lazily:
        if name in included:
            continue
        parts = {found: each for found, each in _included_alone(name, folder).items() if found not in included}
        body = "\n".join(_parts_alone(parts, folder, included, constants, made))
        for function in functions:
            if function not in made:
                made.add(function)
                yield f"local function {function}(...)\n{body}\nreturn {function}(...)\nend"


def _parts_alone(
    parts: Mapping[str, Source],
    folder: ScriptFolder,
    included: Mapping[str, Source],
    constants: Iterable[str],
    made: Iterable[str],
) -> Iterator[str]:
    """The lines of what one function makes when it is called, in which others may be made as lazily."""
    files = parts.values()
    needed = dict.fromkeys(constant for part in files for constant in part.constants if constant not in constants)
    yield from map(folder.constant, needed)
    made_here = set(made)
    for part in files:
        yield from _made_lazily(part, folder, {**included, **parts}, {*constants, *needed}, made_here)
        yield part.body


def _included_alone(name: str, folder: ScriptFolder) -> dict[str, Source]:
    found = dict[str, Source]()
    _included_as(name, folder, found)
    return found


def _tuple_of(keys: Names, args: Names, *, before: str = "") -> str:
    """Python's expression for the parameters; whether an optional one is there is asked first, so that a tuple is built at once."""
    if keys.optional:
        without, with_it = (_tuple_of(names, args) for names in keys.alternatives)
        return f"{without} if {keys.optional} is None else {with_it}"
    if args.optional:
        without, with_it = (_tuple_of(keys, names, before=before) for names in args.alternatives)
        return f"({without} if {args.optional} is None else {with_it})"
    return f"({before or f'{keys.number}, {keys.values}'}{args.values})"


def _flat(groups: Iterable[Sequence[Any]], size: int) -> Iterator[Any]:
    members = list(groups)
    if any(len(group) != size for group in members):
        raise TypeError(f"each group must have {size} members")
    return chain.from_iterable(members)


def _counted(keys: Sequence[Any], least: int, most: int | None, step: int) -> Sequence[Any]:
    if len(keys) < least or (most is not None and len(keys) > most) or (most is None and (len(keys) - least) % step):
        raise TypeError(f"{len(keys)} keys do not fit: the script names {least}")
    return keys
