"""Notes every second how many calls of each module a worker runs, for autoscalers, and reads it.

A note is `<time> <module>=<calls> …`. The notes are at the Redis of the results, with any broker. Workers of older
versions leave none.
"""

from collections import Counter
from collections.abc import Mapping

from redis import Redis

from toolfleet_registry.redis.keys import WorkerKeys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.lua.files import script

COUNTS_SECONDS = 20
"""A worker that has noted nothing for so long has died."""

_NOTE = script("presence/note")


def note_load(redis: Redis, settings: Settings, worker: str, calls: Mapping[str, int]) -> None:
    """Note it once. Raises redis-py's errors."""
    note = " ".join(f"{module}={count}" for module, count in calls.items())
    keys = {"notes": WorkerKeys(settings.key_prefix).loads}
    redis.eval(_NOTE.text, *_NOTE.parameters(**keys, worker=worker, note=note, seconds=COUNTS_SECONDS))


def forget_load(redis: Redis, settings: Settings, worker: str) -> None:
    """The worker ends. Raises redis-py's errors."""
    redis.hdel(WorkerKeys(settings.key_prefix).loads, worker)


def read_loads(notes: Mapping[bytes, bytes], *, now: float) -> Counter[str]:
    """Return how many calls of each module run in live workers; invalid notes are left out.

    `now`: seconds by Redis's clock.
    """
    calls = Counter[str]()
    for note in notes.values():
        at, *words = note.decode(errors="replace").split() or [""]
        if not at.isdigit() or abs(now - int(at)) > COUNTS_SECONDS:
            continue
        for word in words:
            module, _, count = word.partition("=")
            if count.isdigit():
                calls[module] += int(count)
    return calls
