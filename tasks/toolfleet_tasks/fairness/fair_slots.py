"""Decides which queue may have another of a worker's slots, so that a module whose calls hang does not keep others waiting.

Free slots are for any queue: while no other module has calls, one may take them all. Once they are full, a queue that
holds less than half of them may go beyond, all such queues together by a quarter of the slots; then a queue that holds
half or more gets none, until it is below, or has the worker to itself. Pure counting: knows neither Redis nor what runs
in a slot.
"""

from collections.abc import Callable, Sequence

UNBOUNDED = 2**31
"""Slots of a process that has no number of them."""


class FairSlots:
    """The slots that each queue holds of a worker's `slots`. A message has one from its delivery to its end.

    A message that must not start before its time (a retry, say) is `deferred`: it has none until it `begin`s. After it
    was refused one, `on_capacity` is called as soon as there may be room for it, for any reason.
    """

    def __init__(self, slots: int = UNBOUNDED) -> None:
        self._held = dict[str, int]()  # by queue; none has 0
        self._total = 0
        self._expected = 0
        self._deferred = set[str]()  # tags
        self._is_wanted = False  # a deferred message was refused since `on_capacity` was called last
        self.on_capacity: Callable[[], None] = _ignore
        self._is_contended = False  # a queue had to go beyond the slots, and who holds half of them must shrink
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Set the number of slots."""
        self._slots, self._most = slots, slots + slots // 4
        self._half = (slots + 1) // 2  # who holds fewer holds less than half
        self._large = sum(held >= self._half for held in self._held.values())
        self._is_contended = self._is_contended and self._is_shared
        self._offer()

    @property
    def open(self) -> int:
        """The number of further calls that may start, of any queue; below 1 there is room for certain queues at most."""
        return 0 if self._is_contended else self._slots - self._total

    def capacity_of(self, queue: str) -> int:
        """Return how many further calls of this queue may start, if no other's do; may be negative."""
        return max(self.open, min(self._half - self._held.get(queue, 0), self._most - self._total))

    def capacities_of(self, queues: Sequence[str]) -> tuple[Sequence[str], int]:
        """Return the queues that may start calls, and a number such that not even one of them alone would exceed its share."""
        capacities = {queue: self.capacity_of(queue) for queue in self._held}
        # Who holds nothing has the most room: thousands of queues need not be asked one by one.
        open_capacities = [self.capacity_of(""), *(capacity for capacity in capacities.values() if capacity > 0)]
        if open_capacities[0] <= 0:
            return (), 0
        return [queue for queue in queues if capacities.get(queue, 1) > 0], min(open_capacities)

    def expect(self, count: int) -> None:
        """Note that so many further messages were requested, of any queues: no deferred one may have their slots.

        Negative: so many fewer.
        """
        self._expected += count
        if count < 0:
            self._offer()

    def take(self, queue: str) -> None:
        """A message was delivered, and has its slot."""
        held = self._held[queue] = self._held.get(queue, 0) + 1
        self._total += 1
        if held == self._half:
            self._large += 1
        if self._total > self._slots:
            self._is_contended = self._is_shared

    def defer(self, tag: str) -> None:
        """A message was delivered that is to begin later."""
        self._deferred.add(tag)

    @property
    def is_deferring(self) -> bool:
        """Whether there are messages that have not started."""
        return bool(self._deferred)

    def is_deferred(self, tag: str) -> bool:
        """Return whether this delivered message has no slot yet."""
        return tag in self._deferred

    def begin(self, tag: str, queue: str) -> bool:
        """Return whether a delivered message may start now: always, unless it was deferred and there is no slot for it."""
        if tag not in self._deferred:
            return True
        if self.capacity_of(queue) <= self._expected:
            self._is_wanted = True
            return False
        self._deferred.remove(tag)
        self.take(queue)
        return True

    def give_back(self, tag: str, queue: str) -> bool:
        """A message is done with. Whether queues may go beyond the slots now that could not before."""
        if tag in self._deferred:
            self._deferred.remove(tag)
            self._offer()  # it stands before others no longer
            return False
        held = self._held[queue] - 1
        if held:
            self._held[queue] = held
        else:
            del self._held[queue]
        self._total -= 1
        is_small_again = held == self._half - 1
        self._large -= is_small_again
        self._is_contended = self._is_contended and self._is_shared
        self._offer()
        return self.open <= 0 and (is_small_again or self._total == self._most - 1)

    def _offer(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self.on_capacity()

    @property
    def _is_shared(self) -> bool:
        """Whether some queue holds half of the slots, and is not alone."""
        return self._large > 0 and len(self._held) > 1


def _ignore() -> None:
    """Do nothing: no message waits for room."""
