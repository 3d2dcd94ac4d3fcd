"""Checks what a job's poll must bring, in JMESPath.

A condition is a mapping, path -> value or list of values (all must hold; a list: one of these), or an expression that must
be true as JMESPath has it. All paths of a condition have the steps of one walk together.
"""

from typing import Any

from toolfleet_registry.conditions.expressions import UNANSWERED, Walk, is_scalar, parsed, shown
from toolfleet_registry.contracts.jobs import Condition

_MOST_PATHS = 20  # in one condition
_MOST_VALUES = 100  # in a list of one


def check_condition(condition: Condition) -> None:
    """Raise `ValueError`, in one sentence, for a condition that cannot be asked."""
    if isinstance(condition, str):
        parsed(condition)
        return
    if not condition or len(condition) > _MOST_PATHS:
        raise ValueError(f"A condition has 1 to {_MOST_PATHS} paths.")
    for path, wanted in condition.items():
        parsed(path)
        values = wanted if isinstance(wanted, list) else [wanted]
        if not 0 < len(values) <= _MOST_VALUES or not all(is_scalar(value) for value in values):
            raise ValueError(
                f"The condition on {shown(path)} must have a text, a number, a truth value, null, or a list of 1 to "
                f"{_MOST_VALUES} of these."
            )


def fulfils(condition: Condition, value: Any) -> bool:
    """Whether `value` is as the condition wants it. Raises nothing: what cannot be asked of it is not fulfilled."""
    try:
        walk = Walk()
        if isinstance(condition, str):
            found = walk.found(condition, value)
            return found not in ("", [], {}, None) and found is not False
        return bool(condition) and all(_is_among(walk.found(path, value), wanted) for path, wanted in condition.items())
    except UNANSWERED:
        return False


def missing_path(condition: Condition, value: Any) -> str | None:
    """The first path of a mapping that leads nowhere in `value`, and is not wanted to: most likely mistyped. Raises nothing."""
    if isinstance(condition, str):  # asks for more than a place
        return None
    walk = Walk()
    try:
        return next(
            (
                path
                for path, wanted in condition.items()
                if not _is_among(None, wanted) and walk.found(path, value) is None
            ),
            None,
        )
    except UNANSWERED:
        return None


def _is_among(found: Any, wanted: Any) -> bool:
    values = wanted if isinstance(wanted, list) else [wanted]
    # Python takes 1 for true; JSON does not.
    return any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values)
