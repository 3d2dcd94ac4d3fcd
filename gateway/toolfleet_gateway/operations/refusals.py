"""Answers refused operations on tools, modules or keys with a problem."""

from collections.abc import Generator
from contextlib import contextmanager

from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.errors import OperationRefused


@contextmanager
def refusals() -> Generator[None]:
    """Raise `Problem` (409) for a refused operation in this block."""
    try:
        yield
    except OperationRefused as exc:
        raise Problem(409, "operation_refused", str(exc)) from exc
