"""The example core, in a hurry: after its death others take over within a second.

It kills itself just before and after it writes at the positions that `DIE_AT` names, each time once. `DIE_AT`: a JSON list
such as `["before 6", "after 6"]`; `DIE_MARKS`: a folder that remembers where it has died.
"""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from agents.conversations import Conversations, Finish
from agents.history import History, Said
from agents.main import app
from toolfleet_tasks import receiver

__all__ = ["app"]

_POINTS = frozenset(json.loads(os.environ["DIE_AT"]))
_MARKS = Path(os.environ["DIE_MARKS"])

# What it had begun is free again a second after its death; real cores have more patience with each other.
receiver.LEASE_SECONDS = 1.0


def _die(point: str) -> None:
    mark = _MARKS / point
    if point in _POINTS and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


_write = Conversations._append


def _write_or_die(
    self: Conversations, conversation_id: str, history: History, said: Sequence[Said], finish: Finish | None
) -> History:
    position = len(history.said)
    _die(f"before {position}")
    written = _write(self, conversation_id, history, said, finish)
    _die(f"after {position}")
    return written


Conversations._append = _write_or_die  # type: ignore[method-assign] # where it writes
