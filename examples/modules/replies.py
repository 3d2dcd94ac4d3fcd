"""What became of a module's latest calls, for the fleet that has lost a reply and asks.

In memory: after a restart the module knows nothing, and says so.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

# The fourth state, `none`, is a promise that no request for the call will begin any more; one that still waits in a
# socket would break it, so that only a module with a record that every request must pass can give it.
State = Literal["running", "done", "unknown"]


@dataclass(frozen=True, slots=True)
class _Note:
    state: State
    reply: bytes = b"{}"


class Replies:
    """Remembers the `most` latest calls by their ids; the oldest are forgotten first."""

    def __init__(self, *, most: int = 500) -> None:
        self._most = most
        self._notes = OrderedDict[str, _Note]()

    def note(self, call_id: str, state: State, reply: bytes = b"{}") -> None:
        """The call is now in this state; `reply` is what `/execute` has answered."""
        self._notes[call_id] = _Note(state, reply)
        self._notes.move_to_end(call_id)
        if len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def answer(self, call_id: str) -> dict[str, Any]:
        """What `/reconcile` answers. A call that is not remembered may have been forgotten."""
        note = self._notes.get(call_id, _Note("unknown"))
        return {**json.loads(note.reply), "call_id": call_id, "state": note.state}
