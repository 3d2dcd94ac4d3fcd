"""Tells those who wait that their process is about to end."""

from collections.abc import Callable


class Closing:
    """The state of a shutdown, and callbacks for it; thousands may wait, and each comes and goes at no cost for the others."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: dict[int, Callable[[], None]] = {}
        self._last = 0

    def begin(self) -> None:
        """Call all callbacks, once."""
        self.has_begun = True
        waiting, self._waiting = self._waiting, {}
        for tell in waiting.values():
            tell()

    def tell(self, heard: Callable[[], None]) -> int:
        """Have `heard` called when it begins, at once if it has; until `forget` with the number that is returned."""
        self._last += 1
        if self.has_begun:
            heard()
        else:
            self._waiting[self._last] = heard
        return self._last

    def forget(self, number: int) -> None:
        """Tell this one no more."""
        self._waiting.pop(number, None)
