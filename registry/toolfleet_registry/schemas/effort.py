"""Prices the validation of a value before it is done, so that no value can block an event loop.

`visits` counts the schemas that are applied to one value, and so how many faults there can be. `prices` says how long
that takes, in units of 10 ns, for a value of the weight 1: see `prices` and `load`. Neither is ever less than the
validator's real work; `make proofs` compares the prices with the clock.

Bounds on a schema's size and depth, and on a value's, say nothing of the cost of one keyword: a schema of 28
`multipleOf` and a reply of 120 kB hold a worker's loop for some 20 s, and the interpreter's lock, so that a thread does
not help.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolfleet_registry.schemas.patterns import ENDLESS, NO_PATTERNS, Patterns, patterns_of
from toolfleet_registry.schemas.prices import COMPARED, compared_options, compares_items, price_of
from toolfleet_registry.schemas.subschemas import Schema, SchemaDocument, SchemaLocation, Step

MOST_SCHEMAS = 2_500  # in one document; compiled, each takes some 2 to 5 kB, and some 10 µs to be priced
LONGEST_CHAIN = 64  # schemas within each other for the same value: the validator works on the stack
DEEPEST = 100  # levels of a value, as `http_bodies.MAX_DEPTH` has it
TOO_MUCH = ENDLESS
"""Units: as much as endless."""


class TooIntricate(ValueError):
    """A schema is too costly to be used with any arguments; the text says why."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The validation work of a schema.

    `visits[n]`, `prices[n]`: for one value n levels down; the last entry is for all deeper ones.

    `patterns`: for each member of the value ("*" for those without a name in the schema), the patterns that its texts
    are matched with. `largest_enum` counts the values of the longest list of allowed ones. `compares_items`: whether an
    array must have no two equal items.
    """

    schemas: int
    visits: tuple[int, ...]
    prices: tuple[int, ...]
    patterns: Mapping[str, "Patterns"]
    largest_enum: int
    compares_items: bool

    @property
    def most_visits(self) -> int:
        """The most visits of any one value."""
        return max(self.visits)


def effort_of(document: SchemaDocument) -> Effort:
    """Compute a schema's effort. Raises `TooIntricate`, and `ReferenceUnknown`."""
    return _Survey(document).effort()


@dataclass(slots=True)
class _Node:
    """One schema. `here`: those for the same value, each looked at so many `times`; `below`: for members and items of it."""

    visits: int
    price: int
    times: int
    patterns: Patterns
    here: list[int] = field(default_factory=list)
    below: list[tuple[Step, int]] = field(default_factory=list)


_Group: TypeAlias = tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]
"""What is for each member, or each item, and what for single ones: schemas, and how often each."""

_Below: TypeAlias = tuple[_Group, _Group]
"""For the members of an object, and for the items of an array: no value is both."""


class _Survey:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._nodes: list[_Node] = []
        self._numbers: dict[int, int] = {}
        self._largest_enum = 0
        self._compares_items = False
        self._comparison: int | None = None
        self._walk()

    def effort(self) -> Effort:
        visits, prices, below = self._together()
        near = self._distances(below)
        steps = {number: _sorted(below[number]) for number in near if below[number]}
        lengths = {number: len(below[number]) for number in steps}
        return Effort(
            schemas=len(self._numbers),
            visits=self._by_level(visits, near, steps, lengths),
            prices=self._by_level(prices, near, steps, lengths),
            patterns=self._patterns(below),
            largest_enum=self._largest_enum,
            compares_items=self._compares_items,
        )

    def _walk(self) -> None:
        waiting = [self._document.root]
        self._enter(self._document.root)
        while waiting:
            schema = waiting.pop()
            node = self._nodes[self._numbers[id(schema)]]
            for step, child in self._document.inside(schema):
                if not isinstance(child, dict):
                    continue  # true and false are free, and what is neither the validator refuses
                if id(child) not in self._numbers:
                    self._enter(child)
                    waiting.append(child)
                number = self._numbers[id(child)]
                if step is SchemaLocation.HERE:
                    node.here.append(number)
                else:
                    node.below.append((step, number))

    def _enter(self, schema: Schema) -> None:
        if len(self._nodes) >= MOST_SCHEMAS:
            raise TooIntricate(f"it has more than {MOST_SCHEMAS} schemas in it")
        self._numbers[id(schema)] = len(self._nodes)
        times = _VISITS if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        node = _Node(_visits(schema), price_of(schema, self._document.root), times, patterns_of(schema))
        self._nodes.append(node)
        self._largest_enum = max(self._largest_enum, _length(schema.get("enum")))
        if compares_items(schema):
            self._compares_items = True
            node.below.append((SchemaLocation.ITEMS, self._whole_comparison()))
        if options := compared_options(schema):
            node.below.extend(
                [(step, self._whole_comparison()) for step in (SchemaLocation.MEMBERS, SchemaLocation.ITEMS)] * options
            )

    def _whole_comparison(self) -> int:
        """Return the node that stands for the comparison of a whole value with another one, at all depths."""
        if self._comparison is None:
            number = self._comparison = len(self._nodes)
            below: list[tuple[Step, int]] = [(SchemaLocation.MEMBERS, number), (SchemaLocation.ITEMS, number)]
            self._nodes.append(_Node(0, COMPARED, 1, NO_PATTERNS, below=below))
        return self._comparison

    def _together(self) -> tuple[list[int], list[int], list[Counter[tuple[Step, int]]]]:
        """Sum up, for each schema with all that apply to the same value: its visits and price, and the schemas below."""
        visits, prices = [0] * len(self._nodes), [0] * len(self._nodes)
        below = [Counter[tuple[Step, int]]() for _ in self._nodes]
        chain, entries = [0] * len(self._nodes), 0
        for number in self._inner_first():
            node = self._nodes[number]
            chain[number] = 1 + max((chain[child] for child in node.here), default=0)
            if chain[number] > LONGEST_CHAIN:
                raise TooIntricate(f"it has more than {LONGEST_CHAIN} schemas for one value within each other")
            visits[number] = min(TOO_MUCH, node.visits + node.times * sum(visits[child] for child in node.here))
            prices[number] = min(TOO_MUCH, node.price + node.times * sum(prices[child] for child in node.here))
            below[number].update(node.below)
            for child in node.here:
                below[number].update({step: min(TOO_MUCH, n * node.times) for step, n in below[child].items()})
                entries += len(below[child])
            if visits[number] >= _MOST_FOR_ONE or entries > _MOST_ENTRIES:
                raise TooIntricate("it is too intricate to be checked: parts of it that hold each other multiply")
        return visits, prices, below

    def _inner_first(self) -> list[int]:
        """All schemas, each after those for the same value in it."""
        order, state = list[int](), [0] * len(self._nodes)  # 0: new, 1: under way, 2: done
        for start in range(len(self._nodes)):
            waiting = [start]
            while waiting:
                number = waiting[-1]
                if state[number] == 0:
                    state[number] = 1
                    for child in self._nodes[number].here:
                        if state[child] == 1:
                            raise TooIntricate("it refers to itself without end")
                        if state[child] == 0:
                            waiting.append(child)
                    continue
                waiting.pop()
                if state[number] == 1:
                    state[number] = 2
                    order.append(number)
        return order

    def _by_level(
        self, units: list[int], near: dict[int, int], steps: dict[int, _Below], lengths: dict[int, int]
    ) -> tuple[int, ...]:
        found, now, work, level_work = [units[0]], units, 0, sum(lengths.values())
        for level in range(1, DEEPEST + 1):
            after = [0] * len(units)
            for number, step in steps.items():
                if near[number] <= DEEPEST - level:  # from further away no value is deep enough to come there
                    after[number] = _largest(step, now)
                    work += lengths[number]
            if after == now:
                break
            found.append(after[0])
            if after[0] == 0:
                break
            if work + level_work > _MOST_WORK:
                found.append(TOO_MUCH)
                break
            now = after
        return tuple(found)

    def _distances(self, below: list[Counter[tuple[Step, int]]]) -> dict[int, int]:
        """Return how many levels below the value each reachable schema is first met."""
        found, now = {0: 0}, [0]
        for level in range(1, DEEPEST + 1):
            after = {child for number in now for _, child in below[number]} - found.keys()
            found.update(dict.fromkeys(after, level))
            now = list(after)
        return found

    def _patterns(self, below: list[Counter[tuple[Step, int]]]) -> Mapping[str, Patterns]:
        """Return each pattern that is reached through a member, once; "" is for a value that is no object."""
        if not any(node.patterns != NO_PATTERNS for node in self._nodes):
            return {}
        found = {"": self._matched(self._reached(below, [0]))}
        for step in {step for step, _ in below[0]}:
            reached = self._reached(below, [number for near, number in below[0] if near == step])
            name = step if isinstance(step, str) else "*"
            found[name] = found.get(name, NO_PATTERNS) + self._matched(reached)
        # Names of members are matched as well, by the keywords next to them.
        own = self._matched(self._here([0]))
        found["*"] = found.get("*", NO_PATTERNS) + own
        return {name: patterns for name, patterns in found.items() if patterns != NO_PATTERNS}

    def _matched(self, numbers: set[int]) -> Patterns:
        return sum((self._nodes[number].patterns for number in numbers), NO_PATTERNS)

    def _here(self, waiting: list[int]) -> set[int]:
        return self._reached([Counter()] * len(self._nodes), waiting)

    def _reached(self, below: list[Counter[tuple[Step, int]]], waiting: list[int]) -> set[int]:
        seen = set(waiting)
        while waiting:
            number = waiting.pop()
            for child in (*self._nodes[number].here, *(child for _, child in below[number])):
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return seen


def _sorted(below: Counter[tuple[Step, int]]) -> _Below:
    found: dict[Step, list[tuple[int, int]]] = {SchemaLocation.MEMBERS: [], SchemaLocation.ITEMS: []}
    for (step, number), times in below.items():
        found.setdefault(step, []).append((number, times))
    members, items = found.pop(SchemaLocation.MEMBERS), found.pop(SchemaLocation.ITEMS)
    named = [each for step, each in found.items() if isinstance(step, str)]
    listed = [each for step, each in found.items() if not isinstance(step, str)]
    return (members, named), (items, listed)


def _largest(below: _Below, units: list[int]) -> int:
    """The most that any one member or item may take."""
    return min(TOO_MUCH, max([_sum(every, units) + _most(single, units) for every, single in below]))


def _most(single: list[list[tuple[int, int]]], units: list[int]) -> int:
    return max([_sum(each, units) for each in single], default=0)


def _sum(schemas: list[tuple[int, int]], units: list[int]) -> int:
    return sum([units[number] * times for number, times in schemas])


def _visits(schema: Schema) -> int:
    values = schema.get("enum")
    units = 1 + _length(schema.get("required"))
    if isinstance(values, list) and any(isinstance(value, dict | list) for value in values):
        units += _COMPARISON * len(values)  # scalar ones are looked up
    dependent = schema.get("dependentRequired")
    if isinstance(dependent, dict):
        units += sum(_length(names) for names in dependent.values())
    return units


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


_VISITS = 3  # at what holds for the same value, where it must be known what of it was looked at: measured
_MOST_FOR_ONE = 1_000_000  # units: no value could be checked in time
_MOST_ENTRIES = 32_000  # of schemas in what holds them: some 1 µs each
_MOST_WORK = 40_000  # steps of `_by_level`, which is done twice: some 6 ms
_COMPARISON = 5  # units to compare a value with an object
