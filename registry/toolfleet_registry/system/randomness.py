"""Gives out chance: jitter that spreads load, and ids that no other process has. A simulation replaces the names here.

Nothing of it is a secret: what nobody may guess is made with `secrets`.
"""

import random as _random
import uuid as _uuid
from collections.abc import Callable

# The functions themselves, as in `machine_clock`; of the generator that is seeded anew after a fork.
random: Callable[[], float] = _random.random
"""Return a number from 0 to 1."""

uniform: Callable[[float, float], float] = _random.uniform
"""Return a number between two."""

randrange: Callable[[int], int] = _random.randrange
"""Return a whole number from 0 up to, and without, another."""

uuid4: Callable[[], _uuid.UUID] = _uuid.uuid4
"""Return an id that nobody else has."""
