"""Random schemas of every keyword, and values made to take long with them: numbers no machine has, texts without end."""

import random
from collections.abc import Callable
from typing import Any

from toolfleet_registry.schemas.subschemas import Schema

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    7,
    0.5,
    0.01,
    1.5,
    1e-10,
    1e-300,
    5e-324,
    1e300,
    1.79e308,
    1 / 3,
    1e15,
    2**53 + 1,
    2**63,
    2**64,
    10**30,
    10**300,
    -(10**1000),
    10**4200,
]
TEXTS = [
    "",
    "a",
    "abc",
    "a" * 1_000,
    "é" * 1_000,
    "😀" * 100,
    "ab" * 5_000,
    "a" * 100_000,
    "user@owls.test",
    "[[1]]" * 50,
]
PATTERNS = [
    "^a",
    "a$",
    "^[a-z]+$",
    ".*a.*b",
    "[ab]*a[ab]{20}c",
    "^(a|b|ab)*$",
    "(?=.*a)b",
    "^(?!x).*$",
    r"\p{L}+",
    r"^[\w.+-]{1,64}@[\w-]+$",
    "(a+)+b",
    r"(.)\1z",
    "[^x]{1,50}x",
    "^.{1,500}$",
    r"\S",
    r"^(\S+[@.]){1,5}\S+$",
]
NAMES = ["a", "b", "c", "é", "x" * 50]
TYPES = ["string", "integer", "number", "array", "object", "null", "boolean"]


class Chance:
    """Draws schemas and values, the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._keywords: dict[str, Callable[[int], Any]] = {
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), lambda _: self._number()),
            "multipleOf": lambda _: abs(self._number()) or 1,
            **dict.fromkeys(
                ("minLength", "maxLength", "minItems", "maxItems", "minProperties"), lambda _: self._count()
            ),
            "pattern": lambda _: self._random.choice(PATTERNS),
            **dict.fromkeys(("items", "contains", "additionalProperties", "propertyNames"), self._inner),
            **dict.fromkeys(("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"), self._inner),
            **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), self._list),
            **dict.fromkeys(("properties", "dependentSchemas"), lambda depth: self._named(NAMES, depth)),
            "patternProperties": lambda depth: self._named(PATTERNS, depth),
            "required": lambda _: self._random.sample(NAMES, 2),
            "dependentRequired": lambda _: {name: ["a"] for name in self._random.sample(NAMES, 3)},
            "const": lambda _: self.value(2, 30),
            "enum": lambda _: [self.value(1, 3) for _ in range(self._random.choice([1, 5, 50]))],
            "uniqueItems": lambda _: True,
            "format": lambda _: "email",
            "contentMediaType": lambda _: "application/json",
            "$ref": lambda _: self._random.choice(["#/$defs/a", "#/$defs/b", "#"]),
            "$dynamicRef": lambda _: "#dynamic",
        }

    def document(self) -> Schema:
        """A schema of an object, with definitions that may refer to each other."""
        dynamic = {"$dynamicAnchor": "dynamic", "items": self.schema(1)}
        document: Schema = {
            "type": "object",
            "$defs": {"a": self.schema(2), "b": self.schema(1), "dynamic": dynamic},
            "properties": {"x": self.schema(4), "a": self.schema(2)},
        }
        if self._random.random() < 0.2:
            document["$schema"] = "http://json-schema.org/draft-07/schema#"
        return document

    def schema(self, depth: int) -> Schema:
        """One that is at most so deep; half of them let everything through, so that no fault ends the check."""
        if depth <= 0 or self._random.random() < 0.15:
            return self._random.choice([{}, {"type": self._random.choice(TYPES)}, {"type": ["integer", "string"]}])
        keywords = self._random.sample(list(self._keywords), self._random.randint(1, 3))
        schema = {keyword: self._keywords[keyword](depth - 1) for keyword in keywords}
        return {"anyOf": [schema, {}]} if self._random.random() < 0.5 else schema

    def arguments(self) -> dict[str, Any]:
        """Up to some ten thousand values."""
        return {name: self._large() for name in self._random.sample(["x", "a"], self._random.randint(1, 2))}

    def value(self, depth: int, width: int) -> Any:
        """One value."""
        kind = self._random.random()
        if depth <= 0 or kind < 0.3:
            return self._random.choice([self._number(), self._random.choice(TEXTS), True, None, self._random.random()])
        if kind < 0.6:
            return [self.value(depth - 1, max(1, width // 2))] * self._random.randint(0, width)
        names = [f"{name}{number}" for number in range(width) for name in NAMES]
        return {name: self.value(depth - 1, width) for name in self._random.sample([*NAMES, *names], 3)}

    def _large(self) -> Any:
        count, kind = self._random.choice([10, 100, 1_000, 10_000, 40_000]), self._random.random()
        if kind < 0.4:
            return [self.value(1, 4)] * count
        if kind < 0.6:
            return [self._random.choice(NUMBERS[:10]) + number for number in range(count)]
        if kind < 0.7:
            return {f"{self._random.choice(NAMES)}{number}": self._number() for number in range(count)}
        if kind < 0.9:
            side = int(count**0.5)
            return [[self.value(1, 3)] * side] * side
        return self.value(5, 20)

    def _number(self) -> Any:
        return self._random.choice(NUMBERS)

    def _count(self) -> int:
        return self._random.choice([0, 1, 5, 10**6])

    def _inner(self, depth: int) -> Schema:
        return self.schema(depth)

    def _list(self, depth: int) -> list[Schema]:
        return [self.schema(depth) for _ in range(self._random.choice([1, 2, 3, 10]))]

    def _named(self, names: list[str], depth: int) -> dict[str, Schema]:
        return {name: self.schema(depth) for name in self._random.sample(names, 3)}
