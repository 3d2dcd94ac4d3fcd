"""How large a value is, as far as it matters for checking it."""

from dataclasses import dataclass
from typing import Any

from toolfleet_registry.schemas.effort import TOO_MUCH, Effort
from toolfleet_registry.schemas.patterns import NO_PATTERNS, Patterns

_OF_A_VALUE = 8  # characters that a value stands for, beside its texts


@dataclass(frozen=True, slots=True)
class Load:
    """`levels`: how many values, names of members included, lie how many levels down. `characters`: of all texts."""

    levels: tuple[int, ...]
    characters: int

    @property
    def values(self) -> int:
        """All values and names."""
        return sum(self.levels)

    def units(self, effort: Effort) -> int:
        """Of effort, at most, to check it; the patterns are not among them."""
        return sum(count * effort.at(level) for level, count in enumerate(self.levels))

    @property
    def text(self) -> int:
        """Characters, at most, of all its values as JSON, each written out on its own."""
        return (self.characters + _OF_A_VALUE * self.values) * len(self.levels)


def load_of(value: Any, *, most: int) -> Load | None:
    """`None` for more than `most` values."""
    levels, characters, now, values = list[int](), 0, [value], 0
    while now:
        after = list[Any]()
        count = len(now)
        for each in now:
            if isinstance(each, str):
                characters += len(each)
            elif isinstance(each, dict):
                characters += sum(map(len, each))
                after.extend(each.values())
                count += len(each)
            elif isinstance(each, list | tuple):
                after.extend(each)
        levels.append(count)
        values += count
        if values + len(after) > most:
            return None
        now = after
    return Load(tuple(levels), characters)


def units_of_patterns(effort: Effort, value: Any, *, most: int) -> int:
    """Units, at most, to match the texts in it with the patterns that its schema has for them; counted until `most`."""
    if not effort.patterns:
        return 0
    if not isinstance(value, dict):
        return _units(effort.patterns.get("", NO_PATTERNS), value, most)
    everywhere, units = effort.patterns.get("*", NO_PATTERNS), 0
    for name, member in value.items():
        units += _units(effort.patterns.get(name, NO_PATTERNS) + everywhere, [name, member], most)
        if units > most:
            break
    return units


def _units(patterns: Patterns, value: Any, most: int) -> int:
    if patterns == NO_PATTERNS:
        return 0
    load = load_of(value, most=most)
    return TOO_MUCH if load is None else patterns.a_character * load.characters + patterns.a_text * load.values
