"""Provides randomness: jitter that spreads load, and ids that no other process has.

A simulation replaces the names here.

None of it is a secret: secrets are made with `secrets`.
"""

import os as _os
import random as _random
import uuid as _uuid
from collections.abc import Callable

# The functions themselves, as in `machine_clock`; of the generator that is seeded again after a fork.
random: Callable[[], float] = _random.random
"""Return a number from 0 to 1."""

uniform: Callable[[float, float], float] = _random.uniform
"""Return a number between two."""

randrange: Callable[[int], int] = _random.randrange
"""Return a whole number from 0 up to, and without, another."""

uuid4: Callable[[], _uuid.UUID] = _uuid.uuid4
"""Return a unique id."""


_DIGITS = 32  # of an id
_AT_ONCE = 64  # ids that one question to the system is enough for

_unused: list[str] = []

forget: Callable[[], None] = _unused.clear
"""Drop all unused ids, so that the next ones are drawn again: after a fork, and when a simulation starts over."""
if hasattr(_os, "register_at_fork"):  # Windows has no forks
    _os.register_at_fork(after_in_child=forget)


def _drawn() -> str:
    drawn = _os.urandom(_AT_ONCE * _DIGITS // 2).hex()
    first, *others = [drawn[at : at + _DIGITS] for at in range(0, len(drawn), _DIGITS)]
    _unused.extend(others)
    return first


def _uuid4_text() -> str:
    try:
        digits = _unused.pop()
    except IndexError:
        digits = _drawn()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


uuid4_text: Callable[[], str] = _uuid4_text
"""Return such an id as `str(uuid4())` has it, in a third of the time: an agent makes one for each call."""
