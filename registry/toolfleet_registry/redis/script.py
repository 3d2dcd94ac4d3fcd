"""Loads Lua scripts from `.lua` files, and builds their parameters for Redis from named keys and arguments.

A file is a subject. It begins with the functions that its scripts share; each script follows its name, with its keys, a
semicolon, and its arguments:

    -- include: now, storage
    -- lazily: dead_letters(bury)

    local function limit_of(key) ... end

    -- script: take(record, limits...; token, seconds, terms(daily, cooldown)...)
    return limit_of(record)

A script that fills a file has no name but the file's, and its head has its names: `-- keys: record, limits...`, `-- args: token`.

Names of keys and arguments, in their order, are local variables of the script. `limits...` is a list of the rest; one of
groups, `terms(daily, cooldown)...`, is a list of tables. A list that others follow travels with its length before it.
`intent?`, which comes last, may be nil.

Redis makes functions again in each run, which costs more than most commands: a script gets those of its file, and of included
files, as far as it uses their names. They see its keys and arguments. Functions that are included `lazily` are made,
with what they need, when they are called. A constant that Python has, too, is there for scripts that use its name.
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
_DIRECTIVE = r"-- (keys|args|include|lazily): *(.*)"


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
        """Return the lines that define it in Lua, out of these places of a table."""
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
        """Yield the lines that define the names in Lua."""
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
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.fixed, *filter(None, [self.optional]), *(each.name for each in self.lists))

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

    `constants` are those that scripts may use.
    """

    def __init__(self, folder: Path, constants: Mapping[str, float | str] | None = None) -> None:
        self.constants = constants or {}
        self.folder = folder
        self.sources = dict(_read(str(folder), ""))
        self._parsed = dict[str, LuaFile]()
        self._scopes = dict[tuple[str, ...], dict[str, Block]]()

    @property
    def names(self) -> Iterator[str]:
        """The names of all scripts. Raises `ValueError` where a file cannot be understood."""
        for name in self.sources:
            file = self.file(name)
            for part in file.parts:
                file.script(part)
                yield f"{name}/{part}"
            if file.is_script:
                yield name

    def script(self, name: str) -> "Script":
        """Return the script of this name: of a file without its suffix, or of one in a file. Raises `KeyError` where there is none."""
        file, _, part = name.rpartition("/")
        has_scripts = "\n-- script: " in self.sources.get(name, "")
        if has_scripts or (name not in self.sources and f"\n-- script: {part}(" not in self.sources.get(file, "")):
            raise KeyError(name)
        return Script(name, self)

    def file(self, name: str) -> "LuaFile":
        """Parse a file. Raises `KeyError` where there is none, and `ValueError` where it cannot be understood."""
        if name not in self._parsed:
            self._parsed[name] = LuaFile.read(name, self.sources[name])
        return self._parsed[name]

    def source(self, name: str) -> "Source":
        """Parse a script. Raises as `file` does."""
        if name in self.sources:
            return self.file(name).main
        file, _, part = name.rpartition("/")
        return self.file(file).script(part)

    def scope(self, *files: str) -> "Mapping[str, Block]":
        """Return the functions of files and of all that these include, by their names; of two with one name, the first."""
        if files not in self._scopes:
            found = self._scopes[files] = dict[str, Block]()
            for name in reversed(files):
                file = self.file(name)
                found |= self.scope(*file.main.include) if file.main.include else {}
                found |= file.blocks
        return self._scopes[files]

    def functions(self, name: str, *functions: str) -> str:
        """Return functions of a file, all if none are named, with what they need."""
        file = self.file(name)
        return "\n".join(_Composition(self, file.main._replace(words=functions or tuple(file.blocks))).lines)

    def constant(self, name: str) -> str:
        """Return the line that defines a constant in Lua."""
        return f"local {name} = {self.constants[name]!r}"


class Script:
    """A script that runs inside Redis. `digest` is what Redis calls it, once it has seen its `text`.

    `parameters(**named)` takes every key and argument by its name, `parameters_of(keys, **named)` the keys as one sequence in
    their order. Both raise `TypeError` for one too many or too few.
    """

    def __init__(self, name: str, folder: ScriptFolder) -> None:
        self.name, self._folder = name, folder

    @cached_property
    def text(self) -> str:
        """Lua, with what it uses of other files, and without comments."""
        source = self._folder.source(self.name)
        return "\n".join([*_Composition(self._folder, source).lines, source.body])

    @cached_property
    def digest(self) -> str:
        """The SHA-1 of the text."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def parameters(self) -> Callable[..., Parameters]:
        """Build the parameters from named keys and arguments."""
        head = self._folder.source(self.name)
        names = [*head.keys.signature, *head.args.signature]
        signature = f"*, {', '.join(names)}" if names else ""
        return self._compiled(signature, _tuple_of(head.keys, head.args))

    @cached_property
    def parameters_of(self) -> Callable[..., Parameters]:
        """Build the parameters from keys in their order, and named arguments."""
        head = self._folder.source(self.name)
        names = ", ".join(("keys, *" if head.args.signature else "keys", *head.args.signature))
        counted = f"len(keys), *{head.keys.checked('keys')}, "
        return self._compiled(names, _tuple_of(Names(()), head.args, before=counted))

    def command(self, **named: Any) -> Parameters:
        """Return the whole command for a script that is sent as text each time, and so works even if Redis has lost its scripts."""
        return ("EVAL", self.text, *self.parameters(**named))

    def _compiled(self, signature: str, values: str) -> Callable[..., Parameters]:
        """Return a function that has the names in its signature, as a dataclass's: it costs no more than the tuple itself."""
        space: dict[str, Any] = {"_flat": _flat, "_counted": _counted}
        function = f"{self.name.replace('/', '_')}"
        exec(f"def {function}({signature}): return {values}", space)  # noqa: S102 - of names out of our own files
        return space[function]  # type: ignore[no-any-return]


class Block:
    """A function, or a statement with local variables, at the top of a file."""

    def __init__(self, file: str, lines: Sequence[str]) -> None:
        found = re.match(r"local (?:function )?([\w, ]+)", lines[0])
        self.file, self._lines = file, lines
        self.names = tuple(re.findall(r"\w+", found[1])) if found else ()

    @cached_property
    def text(self) -> str:
        """The lines without comments."""
        return _stripped(self._lines)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The names that it uses, and does not make itself."""
        return _free_words("\n".join(self._lines), self.names)


class Source(NamedTuple):
    """A script: the names at its head, what it may use, and its body without comments.

    `lazily` has the files of the functions that are made when they are called.
    """

    file: str
    keys: Names
    args: Names
    include: tuple[str, ...]
    lazily: Mapping[str, str]
    body: str
    words: tuple[str, ...]


class LuaFile(NamedTuple):
    """A file: `main` is what stands before its scripts, or its only script; the functions there are its `blocks`.

    `parts`: the lines of the scripts with names of their own. `is_script`: whether it is one itself, and not functions for others.
    """

    name: str
    main: Source
    blocks: Mapping[str, Block]
    parts: Mapping[str, Sequence[str]]
    is_script: bool

    @classmethod
    def read(cls, name: str, text: str) -> "LuaFile":
        """Parse it, its scripts excepted. Raises `ValueError`."""
        first, *others = re.split(r"(?m)^-- script: *", text)
        found = list(_blocks(name, first))
        try:
            main = _read_source(name, first.splitlines())
        except ValueError as exc:
            raise ValueError(f"{name}.lua cannot be read: {exc}") from exc
        statement = next((block.text for block in found if not block.names and block.text), "")
        if statement and others:
            raise ValueError(
                f"{name}.lua has {statement!r} before its scripts: only functions and variables may stand there"
            )
        blocks = {made: block for block in found for made in block.names}
        parts = {re.split(r"\W", part, maxsplit=1)[0]: part.splitlines() for part in others}
        return cls(name, main, blocks, parts, is_script=bool(statement or main.keys.all or main.args.all))

    def script(self, part: str) -> Source:
        """Parse one of its scripts. Raises `KeyError` where there is none, and `ValueError`."""
        try:
            return _read_part(self.main, self.parts[part])
        except ValueError as exc:
            raise ValueError(f"{self.name}.lua cannot be read: {exc}") from exc


class _Composition:
    """The lines that stand before a script's body: constants, its parameters, and the functions that it needs.

    `outer`: what stands before the lines of a function that is made lazily.
    """

    there: set[Block]
    needed: dict[Block, None]
    known: set[str]
    constants: list[str]

    def __init__(self, folder: ScriptFolder, source: Source, outer: "_Composition | None" = None) -> None:
        self._folder, self._source, self._outer = folder, source, outer
        needed = self._closure(source, source.words)
        self.there = {*outer.there, *outer.needed} if outer else set[Block]()
        self.needed = {block: None for block in needed if block not in self.there}
        self.used_outside = [block for block in needed if block in self.there]
        used = {*source.words, *(word for block in self.needed for word in block.words)}
        self.known = {*outer.known, *outer.constants} if outer else set[str]()
        self.constants = [name for name in folder.constants if name in used and name not in self.known]
        self.written = dict[Block | str, str]()

    @property
    def lines(self) -> Iterator[str]:
        """One text for each of them."""
        yield from map(self._folder.constant, self.constants)
        yield from self._source.keys.lua("KEYS")
        yield from self._source.args.lua("ARGV")
        self.written = dict.fromkeys(self._outer.written, "") if self._outer else {}
        self._write(self._source, self._source.words)
        yield from filter(None, self.written.values())

    def _closure(self, source: Source, words: Iterable[str]) -> dict[Block, None]:
        """Return all functions that are needed at once, those that are made lazily left out."""
        found, scope = dict[Block, None](), self._folder.scope(source.file, *source.include)
        waiting = [(source.lazily, scope, word) for word in words]
        while waiting:
            lazily, scope, word = waiting.pop()
            block = None if word in lazily else scope.get(word)
            if block and block not in found:
                found[block], main = None, self._main(block.file)
                scope = self._folder.scope(main.file, *main.include)
                waiting += [(main.lazily, scope, word) for word in block.words]
        return found

    def _find(self, source: Source, word: str) -> Block | None:
        """Return the block that a name stands for where it is used, unless it is made lazily there."""
        return None if word in source.lazily else self._folder.scope(source.file, *source.include).get(word)

    def _write(self, source: Source, words: Iterable[str]) -> None:
        """Write the functions that these words stand for, each behind those that it uses."""
        for word in words:
            block = self._find(source, word)
            if block is not None and block in self.needed and block not in self.written:
                self._write(self._main(block.file), block.words)
                self.written[block] = block.text
            elif word in source.lazily and word not in self.written:
                self._write_lazily(word, source.lazily[word])

    def _write_lazily(self, function: str, file: str) -> None:
        """Write a function that makes itself when it is called, with what is not there by then."""
        block = self._folder.file(file).blocks[function]
        if block in self.needed:
            self._write(self._main(file), [function])
        elif block not in self.there:
            main = self._main(file)
            lazily = {name: other for name, other in main.lazily.items() if name != function}
            alone = main._replace(keys=Names(()), args=Names(()), lazily=lazily, words=(function,))
            inside = _Composition(self._folder, alone, self)
            for each in inside.used_outside:
                self._write(self._main(each.file), each.names)
            body = "\n".join(inside.lines)
            self.written[function] = f"local function {function}(...)\n{body}\nreturn {function}(...)\nend"

    def _main(self, file: str) -> Source:
        return self._folder.file(file).main


def _read(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of all files below; pathlib would take several times as long, in each process that starts."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".lua"):
                with open(entry.path, encoding="utf-8") as file:  # noqa: PTH123 - as above
                    yield prefix + entry.name.removesuffix(".lua"), file.read()
            elif entry.is_dir():
                yield from _read(entry.path, f"{prefix}{entry.name}/")


def _read_source(file: str, lines: Sequence[str], *names: Names) -> Source:
    """Parse a script without its name. `names`: its keys and arguments, if they do not stand in its comments."""
    said: dict[str, list[str]] = {"keys": [], "args": [], "include": [], "lazily": []}
    for line in lines:
        if not line.startswith("--"):
            break
        if found := re.fullmatch(_DIRECTIVE, line.rstrip()):
            said[found[1]].append(found[2])
    keys, args = names or (Names.read(", ".join(said[kind])) for kind in ("keys", "args"))
    lazily = {
        function: other
        for other, functions in re.findall(r"([\w/]+)\(([\w, ]+)\)", " ".join(said["lazily"]))
        for function in re.findall(r"\w+", functions)
    }
    include = tuple(re.findall(r"[\w/]+", " ".join(said["include"])))
    return Source(
        file, keys, args, include, lazily, _stripped(lines), _free_words("\n".join(lines), (*keys.all, *args.all))
    )


def _read_part(main: Source, lines: Sequence[str]) -> Source:
    """Parse one of a file's scripts, which begins with its signature."""
    last = next(at for at, line in enumerate(lines) if not line.rstrip().endswith((",", ";")))
    signature = " ".join(line.removeprefix("--").strip() for line in lines[: last + 1])
    found = re.fullmatch(r"(\w+)\((.*)\)", signature)
    if not found:
        raise ValueError(f"what follows `script:` is no signature: {signature!r}")
    keys, _, args = found[2].partition(";")
    source = _read_source(main.file, lines[last + 1 :], Names.read(keys.strip()), Names.read(args.strip()))
    include = tuple(dict.fromkeys((*source.include, *main.include)))
    return source._replace(include=include, lazily={**main.lazily, **source.lazily})


def _blocks(file: str, text: str) -> Iterator[Block]:
    """Yield the functions and local variables at the top of a file; indented and closing lines belong to the line before them."""
    block, begins = list[str](), re.compile(r"(?!--)(?!end|[)}])\S").match
    for line in text.splitlines():
        if begins(line):
            if block:
                yield Block(file, block)
            block = []
        block.append(line)
    if block:
        yield Block(file, block)


def _stripped(lines: Iterable[str]) -> str:
    """Return the lines without indentation, comments and empty ones."""
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("--"))


def _free_words(text: str, own: Iterable[str]) -> tuple[str, ...]:
    """Return the names in Lua that are not made there, in their order: neither local variables nor parameters, and no fields."""
    bare = re.sub(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|--[^\n]*", "", text)
    made = re.findall(r"\blocal ([\w, ]+)|\bfor ([\w, ]+?) (?:in|=) |\bfunction\b[ \w]*\(([^)]*)\)", bare)
    made += re.findall(r"\blocal (function) (\w+)\(([^)]*)", bare)
    names = {*own, "", *re.findall(r"\w+", " ".join(map(" ".join, made)))}
    words = [each.partition(".")[0] for each in dict.fromkeys(re.findall(r"[\w.]+", bare))]
    return tuple(dict.fromkeys(word for word in words if word not in names))


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
