"""A call's message in Celery's worker: what `inspect`, Celery's events and therefore Flower get to see of it.

Which arguments it has, never their values; how it ended, never with what. Whoever asks Celery is not the call's caller.
"""

import re
from typing import Any, get_args

from celery.worker.request import Request

from toolfleet_registry.contracts import ErrorCode
from toolfleet_tasks.worker import HIDDEN

_NAMES_ONLY = ("=…)", "()")  # how `envelope.args_shown` ends
_CODES = frozenset(get_args(ErrorCode))
_WORDS = _CODES | {"done", "failed"}
_SUCCESS = re.compile(r'"success": ?(true|false)')  # before what a module has said
_CODE = re.compile(r'"error_code": ?"(\w+)"')


class FleetRequest(Request):  # type: ignore[misc] # Celery ships no types
    """Set by `Request` of the task."""

    @property
    def argsrepr(self) -> str:
        """The names of the arguments."""
        shown = str(self._argsrepr or "()")
        return shown if shown.endswith(_NAMES_ONLY) else HIDDEN

    @property
    def kwargsrepr(self) -> str:
        """Ours has none."""
        return "{}"

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Celery's signature
        """For `inspect`: without the arguments, whether or not somebody asks for them."""
        del safe
        shown: dict[str, Any] = super().info(safe=True)
        return shown | {"args": self.argsrepr, "kwargs": self.kwargsrepr}

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """As Celery does it, without results, texts of errors and tracebacks: the worker's log has what may be told."""
        if type == "task-succeeded":
            fields["result"] = word_in(fields["result"])
        elif "exception" in fields:
            fields["exception"] = _kind(fields["exception"], fields.get("traceback"))
            fields["traceback"] = None
        super().send_event(type, **fields)


def word_in(shown: object) -> str:
    """How a call ended, by what Celery shows of what its task returned: a word of ours, or with stock parts its result."""
    text = str(shown).strip("'")
    if text in _WORDS:
        return text
    success = _SUCCESS.search(text)
    if success is None or success[1] == "true":
        return "done"
    # A result may hold such a name as well, and anything behind it.
    return next((code for code in reversed(_CODE.findall(text)) if code in _CODES), "failed")


def _kind(exception: object, traceback: object) -> str:
    """The error code that a retry is made for, or the name of an exception's class."""
    code = str(traceback or "").rstrip().rpartition(": ")[2]
    return code if code in _CODES else str(exception).partition("(")[0]
