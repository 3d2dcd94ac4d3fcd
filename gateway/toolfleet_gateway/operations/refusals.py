"""Answers refused operations on tools, modules, keys or letters, and invalid cursors, with a problem."""

from collections.abc import Generator
from contextlib import contextmanager

from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable, OperationRefused


@contextmanager
def refusals() -> Generator[None]:
    """Raise `Problem` (409, or 404 if it is missing) for a refused operation in this block."""
    try:
        yield
    except OperationRefused as exc:
        raise Problem(409, "operation_refused", str(exc)) from exc
    except NoSuchDeadLetter as exc:  # dropped just now
        raise not_found("There is no such dead letter, or not any more.") from exc
    except NotReplayable as exc:
        raise Problem(409, "not_replayable", str(exc)) from exc


def no_cursor() -> Problem:
    """Return the problem of an invalid cursor."""
    return invalid_request("The cursor is none: send the `next` of an answer as it is.")
