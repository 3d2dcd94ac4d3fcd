"""Names the queues that a worker leaves to others for now, because it cannot connect to their modules."""

from collections.abc import Callable


class PausedQueues:
    """Belongs to the thread of a worker's loop. `names` is another object after each change.

    `on_end` is called when one is to be consumed again.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.on_end: list[Callable[[], None]] = []

    def __contains__(self, queue: str) -> bool:
        return queue in self.names

    def rest(self, queue: str) -> None:
        """Leave it alone."""
        if queue not in self.names:
            self.names |= {queue}

    def end(self, queue: str) -> None:
        """Consume it again."""
        if queue in self.names:
            self.names -= {queue}
            for listener in self.on_end:
                listener()
