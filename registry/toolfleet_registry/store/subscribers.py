"""Calls whoever wants to hear of a registry's events in this process: one event after the other, whichever thread has caused it."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_registry.system.loggers import get_logger

Callback: TypeAlias = Callable[[RegistryEvent], None]

_log = get_logger(__name__)


class Subscribers:
    """Who is called. `note` belongs into the registry's lock, `tell` outside: a callback may take as long as it likes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callback, ...] = ()
        self._untold = deque[tuple[RegistryEvent, tuple[Callback, ...]]]()
        self._is_telling = False

    def add(self, callback: Callback) -> Callable[[], None]:
        """Have it called with each event from now on. Returns what ends that."""
        with self._lock:
            self._callbacks += (callback,)

        def end() -> None:
            with self._lock:
                self._callbacks = tuple(one for one in self._callbacks if one is not callback)

        return end

    def note(self, event: RegistryEvent) -> None:
        """Have it told by the next `tell`."""
        with self._lock:
            if self._callbacks:
                self._untold.append((event, self._callbacks))

    def tell(self) -> None:
        """Tell what was noted; while somebody is at it, in whichever thread, that one does."""
        while True:
            with self._lock:
                if self._is_telling or not self._untold:
                    return
                self._is_telling = True
                event, callbacks = self._untold.popleft()
            try:
                for callback in callbacks:
                    self._call(callback, event)
            finally:
                with self._lock:
                    self._is_telling = False

    def _call(self, callback: Callback, event: RegistryEvent) -> None:
        if callback not in self._callbacks:  # it has been ended meanwhile
            return
        try:
            callback(event)
        except Exception as exc:  # noqa: BLE001 - another's program, whose errors are not the registry's
            _log.exception("registry_callback_failed", kind=event.kind, tool=event.tool_name, exc_info=exc)
