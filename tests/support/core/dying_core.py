"""The example core, in a hurry: after its death others take over within a second.

It kills itself just before and after it writes at the positions that the files in the folder `DIE_AT` are named after, such as
`before 6` and `after 6`: each time once, for it removes the file.
"""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from agent_core.conversations import Conversations, Finish
from agent_core.history import History, Said
from agent_core.main import app
from toolfleet_tasks.webhooks import receiver

__all__ = ["app"]

_POINTS = Path(os.environ["DIE_AT"])

# What it had begun is free again a second after its death; real cores have more patience with each other.
receiver.LEASE_SECONDS = 1.0


def _die(point: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (_POINTS / point).unlink()
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
