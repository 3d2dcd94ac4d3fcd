"""Names tools with hostile schemas, each for what it is sent or for what it answers, and has the values that go with them."""

import json
import random
from typing import Any

from chaos.plan import HOSTILE_ARGUMENTS, HOSTILE_REPLY, MODULES
from support.schemas.hostile_schemas import HOSTILE, Hostile

_LARGEST_SCHEMA = 16_000  # bytes: a manifest is read every few seconds
_PAIRS = [pair for pair in HOSTILE.values() if len(json.dumps(pair[0])) <= _LARGEST_SCHEMA]

OWNER = MODULES[-1]
"""The module that offers them."""


def definitions() -> list[dict[str, Any]]:
    """Their lines in its manifest."""
    common = {"description": "", "effect": "read"}
    ref = [{"name": "ref", "type": "string", "description": ""}]
    named = [(f"{OWNER}.{HOSTILE_ARGUMENTS}{number}", schema) for number, (schema, _) in enumerate(_PAIRS)]
    takes = [{"name": name, "input_schema": {"type": "object", **schema}, **common} for name, schema in named]
    named = [(f"{OWNER}.{HOSTILE_REPLY}{number}", schema) for number, (schema, _) in enumerate(_PAIRS)]
    return takes + [{"name": name, "parameters": ref, "output_schema": schema, **common} for name, schema in named]


def answer(tool: str) -> dict[str, Any]:
    """What the tool says beside what it did."""
    return _pair(tool)[1] if HOSTILE_REPLY in tool else {}


def calls(dice: random.Random, ref: str) -> list[tuple[str, dict[str, Any]]]:
    """One tool of each kind, by its name, with what it is to be sent."""
    number = dice.randrange(len(_PAIRS))
    sent = {**_PAIRS[number][1], "ref": f"{ref}-sent"}
    replying = f"{OWNER}.{HOSTILE_REPLY}{dice.randrange(len(_PAIRS))}"
    return [(f"{OWNER}.{HOSTILE_ARGUMENTS}{number}", sent), (replying, {"ref": f"{ref}-answered"})]


def _pair(tool: str) -> Hostile:
    return _PAIRS[int(tool.rpartition("_")[2])]
