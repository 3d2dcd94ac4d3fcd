"""Answers with a problem what cannot be done with these tools, modules or keys."""

from collections.abc import Generator
from contextlib import contextmanager

from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.errors import OperationRefused


@contextmanager
def refusals() -> Generator[None]:
    """Raise `Problem` (409) for an `OperationRefused` in this block."""
    try:
        yield
    except OperationRefused as exc:
        raise Problem(409, "operation_refused", str(exc)) from exc
