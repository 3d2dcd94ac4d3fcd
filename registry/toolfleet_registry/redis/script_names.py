"""Reads the names of a script's keys and arguments, and writes them as Lua and as Python."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_NAME = r"(\w+)(?:\(([\w, ]+)\))?(\.\.\.|\?)?(?:, *|$)"


class NamedList(NamedTuple):
    """A list of keys or arguments. `parts`: of each member, if it is a group."""

    name: str
    parts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many places a member takes."""
        return len(self.parts) or 1

    @property
    def values(self) -> str:
        """Python's expression for what is in it, with a comma behind it."""
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
        """Raises `ValueError`."""
        fixed, optional, lists, end = list[str](), "", list[NamedList](), 0
        for found in re.finditer(_NAME, text):
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
        """Without the one that may be nil, and with it."""
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
