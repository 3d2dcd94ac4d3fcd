"""Answers with a problem what cannot be done with these tools, modules, keys or letters."""

from collections.abc import Generator
from contextlib import contextmanager

from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable, OperationRefused


@contextmanager
def refusals() -> Generator[None]:
    """Raise `Problem` (409, or 404 for what is not there) for what an operation in this block refuses."""
    try:
        yield
    except OperationRefused as exc:
        raise Problem(409, "operation_refused", str(exc)) from exc
    except NoSuchDeadLetter as exc:  # dropped just now
        raise not_found("There is no such dead letter, or not any more.") from exc
    except NotReplayable as exc:
        raise Problem(409, "not_replayable", str(exc)) from exc
