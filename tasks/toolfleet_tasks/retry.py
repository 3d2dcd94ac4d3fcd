"""Whether an attempt is followed by the one retry, and after which delay. Pure functions, one table.

| outcome      | retried once                                   | a repeat by the agent is harmless |
|--------------|------------------------------------------------|-----------------------------------|
| success      | -                                              | -                                 |
| not sent     | always                                         | yes                               |
| turned away  | always, after Retry-After                      | yes                               |
| permanent    | never                                          | no, and useless                   |
| failed       | if the effect is undeclared, read, idempotent  | if it is read or idempotent       |
| unknown      | if the effect is read or idempotent            | if it is read or idempotent       |
"""

import random

from toolfleet_registry.contracts import Effect
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.settings import LONGEST_RETRY_DELAY

MAX_ATTEMPTS = 2
_SHORTEST_DELAY, _LONGEST_JITTER = 0.1, 0.9  # seconds: long enough for a restart of a connection, short for a person


def is_repeatable(outcome: Outcome, effect: Effect | None) -> bool:
    """Whether repeating the call cannot double an effect."""
    if outcome in {Outcome.NOT_SENT, Outcome.TURNED_AWAY}:
        return True
    return outcome in {Outcome.FAILED, Outcome.UNKNOWN} and effect in {"read", "idempotent"}


def is_retried(outcome: Outcome, effect: Effect | None) -> bool:
    """Whether the fleet itself tries such an attempt once more."""
    return is_repeatable(outcome, effect) or (outcome is Outcome.FAILED and effect is None)


def retry_delay(
    attempt: Attempt, effect: Effect | None, *, attempts: int, seconds_left: float, longest: float
) -> float | None:
    """Seconds until the retry, or `None` if there is none.

    `attempts` counts those made, this one included; `longest` is what the broker allows a message to be held. The
    module's own Retry-After is honoured up to 30 s; a delay that does not fit the time left means no retry.
    """
    if attempts >= MAX_ATTEMPTS or not is_retried(attempt.outcome, effect):
        return None
    delay = _jitter() if attempt.retry_after_seconds is None else attempt.retry_after_seconds
    fits = delay < seconds_left and delay <= min(longest, LONGEST_RETRY_DELAY)
    return delay if fits else None


def _jitter() -> float:
    return random.uniform(_SHORTEST_DELAY, _LONGEST_JITTER)  # noqa: S311 - spreads load, guards nothing
