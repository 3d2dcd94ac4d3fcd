"""Finds the queue or lane that an operator names."""

import difflib
from collections.abc import Collection
from typing import Final

from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import NoSuchQueue, OperationRefused
from toolfleet_tasks.queue_states.states import QueueStates, lane_name
from toolfleet_tasks.queues import CONTROL, queue_of

_LANES: Final = (lane_name("fast"), lane_name("slow"))
_NAMED = 3


def stored_name(name: str, known: KnownModules, states: QueueStates) -> str:
    """Return the name under which a state is stored: the module, also for its queue's name, or `lane:<lane>`.

    Raises `NoSuchQueue` with the nearest names, and `OperationRefused` for the fleet's own queue.
    """
    if name == CONTROL:
        raise OperationRefused(f"The queue {CONTROL!r} has the fleet's own tasks, which must go on: it is not paused.")
    there = [*sorted(known.names | known.served | known.ending | states.stored.keys()), *_LANES]
    module = name.removeprefix(queue_of(""))
    for candidate in (name, module):
        if candidate in there:
            return candidate
    raise NoSuchQueue(name, _nearest(module, there))


def _nearest(name: str, there: Collection[str]) -> list[str]:
    if lane_name(name) in there:
        return [lane_name(name)]
    return difflib.get_close_matches(name, list(dict.fromkeys(there)), n=_NAMED, cutoff=0.5)
