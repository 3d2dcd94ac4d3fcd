"""Prices the validation of a value before it is done, so that no value can block an event loop.

Nearly all arguments are small, which is seen at once, so that what guards against the others costs them nothing.

The validator compares numbers as fractions of any size: one that is no plain integer costs up to thousands of times as
much as a text. That is in a value's weight; here is for how many comparisons a schema asks.

What applies only perhaps (an alternative, a condition, a pattern of names) is left out.

`visits` counts the schemas that are applied to one value, and so how many faults there can be. `prices` says how long
that takes, in units of 10 ns, for a value of the weight 1: see `prices` and `load`. Neither is ever less than the
validator's real work; `make proofs` compares the prices with the clock.

Bounds on a schema's size and depth, and on a value's, say nothing of the cost of one keyword: a schema of 28
`multipleOf` and a reply of 120 kB hold a worker's loop for some 20 s, and the interpreter's lock, so that a thread does
not help.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolfleet_registry.schemas.patterns import ENDLESS, NO_PATTERNS, Patterns, patterns_of
from toolfleet_registry.schemas.subschemas import ReferenceUnknown, Schema, SchemaDocument, SchemaLocation, Step

MOST_VALUES = 48

PLAIN_INTEGER = 2**53
"""Integers below are compared as they are."""

PLAIN_FLOATS = 1e-19, 1e19
"""Floats between these, or 0, have an exponent that does not matter."""

MOST_BYTES = 100_000
"""Of a small value as JSON: each character may be written as an escape of six, and each number as some 25."""

_CHARACTERS = 16_000  # of all texts, those of names counted four times

_LEAST, _MOST = PLAIN_FLOATS

_OF_A_VALUE = 120  # characters that a value takes as long to copy as, in addition to its texts

_SHIFT = 7  # of a text, 2**7 characters weigh as much as a value; of a name, 2**5

_NAME_SHIFT = 5

_SMALLEST, _LARGEST = PLAIN_FLOATS

_OF_A_FLOAT = 10

_HEAVIEST = 2_000_000  # of one level: each unit of weight takes 10 ns or more

WEIGHT_OF_SMALL = 800
"""No small value (see `is_small`) weighs more."""

_COMPARED_AT_ONCE = 15  # integers that are not plain are compared each with each, where no two may be equal

COMPARED = 80
"""Units for each value within one that is compared: of an array up to 15 items are compared each with each."""

_NUMBER = 16  # to compare with a number

_DIVISION = 250  # to divide by a fraction

_LOOKUP = 3  # of a name or text

_NAMES = 15  # for the characters of a name that is none of ASCII

_CONTENT_READ = 1_700  # to read a text as JSON, 130 ns a character

_FRACTION = 10

_SQUARE_BITS = 4_000

_WIDE_BITS = 8

_EXTREME = 12

_LEAST_PRICE, _HIGHEST_PRICE = 1e-6, 1e15

_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})

_BY_NAME = frozenset({"required", "dependentRequired", "dependentSchemas", "dependencies"})

_CONTENT = frozenset({"contentMediaType", "contentEncoding"})

_READS_CONTENT = frozenset({"http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-07/schema"})

_PRICED = _BOUNDS | _BY_NAME | _CONTENT | {"enum", "const", "multipleOf", "propertyNames"}

Path: TypeAlias = tuple[str | int, ...]

_HOLDERS = (dict, list, tuple)

_MOST_OUTLINES = 2_000  # of one document: definitions that use each other can stand for endlessly many

MOST_SCHEMAS = 2_500  # in one document; compiled, each takes some 2 to 5 kB, and some 10 µs to be priced

LONGEST_CHAIN = 64  # schemas within each other for the same value: the validator works on the stack

DEEPEST = 100  # levels of a value, as `http_bodies.MAX_DEPTH` has it

TOO_MUCH = ENDLESS
"""Units: as much as endless."""

_Group: TypeAlias = tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]
"""What is for each member, or each item, and what for single ones: schemas, and how often each."""

_Below: TypeAlias = tuple[_Group, _Group]
"""For the members of an object, and for the items of an array: no value is both."""

_VISITS = 3  # at what holds for the same value, where it must be known what of it was looked at: measured

_MOST_FOR_ONE = 1_000_000  # units: no value could be checked in time

_MOST_ENTRIES = 32_000  # of schemas in what holds them: some 1 µs each

_MOST_WORK = 40_000  # steps of `_by_level`, which is done twice: some 6 ms

_COMPARISON = 5  # units to compare a value with an object


def is_small(value: Any) -> bool:
    """Return whether a value is surely JSON of at most `MOST_VALUES` values: ASCII texts and usual numbers.

    Takes some 3 µs.

    A value that has no plain type of Python's may be JSON too, and is checked elsewhere.
    """
    values, count = [value], 1
    texts: list[str] = []
    names: list[str] = []
    for kind, each in zip(map(type, values), values, strict=False):  # grows meanwhile
        if kind is str:
            texts.append(each)
        elif kind is dict or kind is list:
            count += len(each)
            if count > MOST_VALUES:
                return False
            if kind is list:
                values += each
                continue
            names += each
            values += each.values()
        elif not ((kind is int and -PLAIN_INTEGER < each < PLAIN_INTEGER) or _is_usual(each, kind)):
            return False
    try:
        name = "".join(names)
    except TypeError:  # a name that is no text
        return False
    characters = 4 * len(name) + sum(map(len, texts))
    return characters <= _CHARACTERS and name.isascii() and all(map(str.isascii, texts))


def _is_usual(each: Any, kind: type) -> bool:
    """Return whether a value that is neither a text, a container nor a usual integer is usual."""
    if kind is float:
        number: float = each
        return _LEAST < number < _MOST or -_MOST < number < -_LEAST or number == 0
    return each is None or kind is bool


def compares_items(schema: Mapping[str, Any]) -> bool:
    """Return whether the items of an array are compared with each other."""
    return bool(schema.get("uniqueItems"))


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


@dataclass(frozen=True, slots=True)
class Load:
    """`levels`: how many values, names of members included, lie how many levels down. `weights`: what they weigh.

    `characters`: of all texts; `squares`: the sum of their squares for each text. `wide`: integers that are not plain.
    """

    levels: tuple[int, ...]
    weights: tuple[int, ...]
    characters: int
    squares: int
    wide: int

    @property
    def values(self) -> int:
        """All values and names."""
        return sum(self.levels)

    def visits(self, effort: Effort) -> int:
        """Return the most visits of its validation."""
        return _sum(self.levels, effort.visits)

    def price(self, effort: Effort) -> int:
        """Units, at most, to check it; the patterns are not among them."""
        each_with_each = self.wide // _COMPARED_AT_ONCE if effort.compares_items else 0
        return min(TOO_MUCH, _sum(self.weights, effort.prices) * (1 + each_with_each))

    @property
    def text(self) -> int:
        """Characters, at most, to copy each of its values on its own."""
        return (self.characters + _OF_A_VALUE * self.values) * len(self.levels)


def load_of(value: Any, *, most: int) -> Load | None:
    """`None` for more than `most` values, or numbers that cannot be compared in time. Takes some 100 ns for each."""
    levels, weights, now, values = list[int](), list[int](), [value], 0
    characters = squares = wide = 0
    while now:
        after, lengths, name_lengths, numbers, names = list[Any](), list[int](), list[int](), list[Any](), 0
        for each in now:
            if isinstance(each, str):
                lengths.append(len(each))
            elif isinstance(each, int | float):
                numbers.append(each)
            elif isinstance(each, dict):
                names += len(each)
                name_lengths.append(sum(map(len, each)))
                after += each.values()
            elif isinstance(each, list | tuple):
                after += each
        heavy, weight = _numbers(numbers)
        weight += len(now) + names + (sum(lengths) >> _SHIFT) + (sum(name_lengths) >> _NAME_SHIFT)
        characters += sum(lengths) + sum(name_lengths)
        squares += sum([length * length for length in (*lengths, *name_lengths)])
        levels.append(len(now) + names)
        weights.append(weight)
        values, wide = values + levels[-1], wide + heavy
        if values + len(after) > most or weight > _HEAVIEST:
            return None
        now = after
    return Load(tuple(levels), tuple(weights), characters, squares, wide)


def _numbers(numbers: list[Any]) -> tuple[int, int]:
    """Return how many of these integers are not plain, and the extra weight of all of them."""
    if not numbers:
        return 0, 0
    wide = weight = 0
    for each in numbers:
        if isinstance(each, int):
            if not -PLAIN_INTEGER < each < PLAIN_INTEGER:
                wide, weight = wide + 1, weight + weight_of(each)
        elif _SMALLEST < each < _LARGEST or -_LARGEST < each < -_SMALLEST or not each:
            weight += _OF_A_FLOAT
        else:
            weight += weight_of(each)
        if weight > _HEAVIEST:
            break
    return wide, weight


def price_of_patterns(effort: Effort, value: Any, *, most: int) -> int:
    """Units, at most, to match the texts in it with the patterns that its schema has for them; more than `most` are many."""
    if not effort.patterns:
        return 0
    if not isinstance(value, dict):
        return _matched(effort.patterns.get("", NO_PATTERNS), value, most)
    everywhere, units, others = effort.patterns.get("*", NO_PATTERNS), 0, list[Any]()
    for name, member in value.items():
        patterns = effort.patterns.get(name)
        if patterns is None:
            others += (name, member)
        else:
            units += _matched(patterns + everywhere, [name, member], most)
    return units + _matched(everywhere, others, most)


def _sum(counts: Sequence[int], units: Sequence[int]) -> int:
    last = len(units) - 1
    return sum([count * units[min(level, last)] for level, count in enumerate(counts)])


def _matched(patterns: Patterns, value: Any, most: int) -> int:
    if patterns == NO_PATTERNS:
        return 0
    load = load_of(value, most=most)
    if load is None:
        return TOO_MUCH
    return patterns.a_character * load.characters + patterns.a_square * load.squares + patterns.a_text * load.values


def price_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> int:
    """Return the price of a schema without those inside it, in a document with that root."""
    units = 1 + isinstance(schema.get("type"), list)
    if not _PRICED & schema.keys():
        return units
    units += _NUMBER * len(_BOUNDS & schema.keys()) + _of_options(_options(schema))
    for keyword in _BY_NAME & schema.keys():
        units += _LOOKUP * _names_in(schema[keyword])
    if "multipleOf" in schema:
        units += _of_divisor(schema["multipleOf"])
    if "propertyNames" in schema:
        units += _NAMES
    if _CONTENT & schema.keys() and str(root.get("$schema")).rstrip("#") in _READS_CONTENT:
        units += _CONTENT_READ
    return units


def compared_options(schema: Mapping[str, Any]) -> int:
    """Return the number of objects and arrays that a value is compared with, at all depths."""
    return sum(isinstance(option, dict | list) for option in _options(schema))


def weight_of(number: float) -> int:
    """Return how many plain integers take as long as this number."""
    bits = number.bit_length() if isinstance(number, int) else abs(math.frexp(number)[1])
    return _FRACTION + bits * bits // _SQUARE_BITS


def _options(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else ()), *((schema["const"],) if "const" in schema else ())]


def _of_options(options: list[Any]) -> int:
    """Texts are looked up, if there is nothing else among them."""
    if all(isinstance(option, str) for option in options):
        return _LOOKUP * min(len(options), 2)
    return sum(map(_of_option, options))


def _of_option(option: Any) -> int:
    if isinstance(option, dict | list):
        return COMPARED
    if isinstance(option, int | float) and not isinstance(option, bool):
        return _NUMBER * _size_of(option)
    return _LOOKUP


def _of_divisor(divisor: Any) -> int:
    if isinstance(divisor, int) and not isinstance(divisor, bool):
        return _NUMBER * _size_of(divisor)
    if isinstance(divisor, float) and divisor:
        return _DIVISION * _size_of(divisor)
    return ENDLESS


def _size_of(number: float) -> int:
    """Return the number of plain numbers in a schema that take as long as this number."""
    if isinstance(number, int):
        return 1 + number.bit_length() // _WIDE_BITS
    if number and not _LEAST_PRICE <= abs(number) < _HIGHEST_PRICE:
        return _EXTREME
    return 1


def _names_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(len(each) for each in value.values() if isinstance(each, list))
    return len(value) if isinstance(value, list) else 0


@dataclass(slots=True)
class Outline:
    """The schemas for one place, all of which hold. Those of its members and items are found when they are asked for."""

    schemas: list[Schema]
    _book: "_Book" = field(repr=False)
    _members: dict[str, "Outline | None"] = field(default_factory=dict[str, "Outline | None"], repr=False)
    _items: dict[int, "Outline | None"] = field(default_factory=dict[int, "Outline | None"], repr=False)
    _rest: int = field(default=-1, repr=False)
    _defaults: dict[str, Any] | None = field(default=None, repr=False)

    def member(self, name: str) -> "Outline | None":
        """Return the outline of the member with that name; `None` if nothing is known of it."""
        if name in self._members:
            return self._members[name]
        found = self._book.outline(_member(schema, name) for schema in self.schemas)
        if any(_has_property(schema, name) for schema in self.schemas):  # other names are the value's: without end
            self._members[name] = found
        return found

    def item(self, index: int) -> "Outline | None":
        """Return the outline of the item at that index."""
        if self._rest < 0:
            self._rest = max((_listed(schema) for schema in self.schemas), default=0)
        index = min(index, self._rest)
        if index not in self._items:
            self._items[index] = self._book.outline(_item(schema, index) for schema in self.schemas)
        return self._items[index]

    def defaults(self) -> dict[str, Any]:
        """Return the members' defaults, where there is exactly one."""
        if self._defaults is None:
            names = {name for schema in self.schemas for name in _properties(schema)}
            found = {name: self._default(name) for name in sorted(names)}
            self._defaults = {name: values[0] for name, values in found.items() if values}
        return self._defaults

    def _default(self, name: str) -> list[Any]:
        found = list[Any]()
        for schema in self.schemas:
            child = _properties(schema).get(name)
            if isinstance(child, dict):
                # Its own goes before that of what it refers to, which says what holds elsewhere.
                inner = [child] if "default" in child else self._book.together([child])
                found.extend(each["default"] for each in inner if "default" in each)
        same = all(type(value) is type(found[0]) and value == found[0] for value in found)
        return found if same else []


Place: TypeAlias = tuple[Path, Outline, Any]
"""A value in a value, with what is known of it."""


def outline_of(document: SchemaDocument) -> Outline | None:
    """Return the outline of the whole value."""
    return _Book(document).outline([document.root])


def values_in(outline: Outline, value: Any, *, leaves: bool) -> Iterator[Place]:
    """Yield the value and every value in it that a schema describes; without `leaves` only those that contain others."""
    yield (), outline, value
    waiting = [_inside((), outline, value, leaves=leaves)]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        yield found
        waiting.append(_inside(*found, leaves=leaves))


def with_changes(value: dict[str, Any], changes: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Return a copy with these values at these paths; what holds none of them is shared with the original."""
    copies: dict[Path, Any] = {(): dict(value)}
    for path, new in changes:
        for length in range(1, len(path)):
            here = path[:length]
            if here not in copies:
                holder, step = copies[here[:-1]], here[-1]
                old = holder[step]
                holder[step] = copies[here] = dict(old) if isinstance(old, dict) else list(old)
        copies[path[:-1]][path[-1]] = new
    return copies[()]  # type: ignore[no-any-return] # the first one


def _inside(path: Path, outline: Outline, value: Any, *, leaves: bool) -> Iterator[Place]:
    if isinstance(value, dict):
        for name, child in value.items():
            if (leaves or isinstance(child, _HOLDERS)) and (inner := outline.member(name)) is not None:
                yield (*path, name), inner, child
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            if (leaves or isinstance(child, _HOLDERS)) and (inner := outline.item(index)) is not None:
                yield (*path, index), inner, child


class _Book:
    """The outlines of one document, each made once."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._outlines: dict[tuple[int, ...], Outline] = {}

    def outline(self, schemas: Iterable[Any]) -> Outline | None:
        given = [schema for schema in schemas if isinstance(schema, dict)]
        if not given:
            return None
        key = tuple(sorted(map(id, given)))
        if key not in self._outlines:
            if len(self._outlines) >= _MOST_OUTLINES:
                return None
            self._outlines[key] = Outline(self.together(given), self)
        return self._outlines[key]

    def together(self, schemas: list[Schema]) -> list[Schema]:
        """These, and all that hold wherever they hold."""
        found, seen = list[Schema](), set[int]()
        waiting = list[Any](reversed(schemas))
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append(schema)
            parts = schema.get("allOf")
            waiting.extend(reversed(parts) if isinstance(parts, list) else ())
            if isinstance(reference := schema.get("$ref"), str):
                try:
                    waiting.append(self._document.target(reference, schema))
                except ReferenceUnknown:
                    continue
        return found


def _properties(schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _has_property(schema: Schema, name: str) -> bool:
    return name in _properties(schema)


def _member(schema: Schema, name: str) -> Any:
    properties = _properties(schema)
    if name in properties:
        return properties[name]
    return None if "patternProperties" in schema else schema.get("additionalProperties")


def _item(schema: Schema, index: int) -> Any:
    for keyword, rest in (("prefixItems", "items"), ("items", "additionalItems")):
        listed = schema.get(keyword)
        if isinstance(listed, list):
            return listed[index] if index < len(listed) else schema.get(rest)
    return schema.get("items")


def _listed(schema: Schema) -> int:
    return max(
        (len(value) for key in ("prefixItems", "items") if isinstance(value := schema.get(key), list)), default=0
    )


class TooIntricate(ValueError):
    """A schema is too costly to be used with any arguments; the text says why."""


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
        """Return all schemas, each after those for the same value in it."""
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
    """Return the most that any one member or item may take."""
    return min(TOO_MUCH, max([_sum_of_one(every, units) + _most(single, units) for every, single in below]))


def _most(single: list[list[tuple[int, int]]], units: list[int]) -> int:
    return max([_sum_of_one(each, units) for each in single], default=0)


def _sum_of_one(schemas: list[tuple[int, int]], units: list[int]) -> int:
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
