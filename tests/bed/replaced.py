"""Puts the bed's time, sockets and sites in the place of the standard library's, Celery's and kombu's own. Import it first.

These are all the names that the bed replaces. It replaces none of the product's.
"""

# ruff: noqa: E402 - the order of the imports is what this file is about
import sys

assert "toolfleet_registry" not in sys.modules, "the bed has to be imported before the product"
assert "kombu" not in sys.modules, "the bed has to be imported before Celery"

import gc
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count, cycle
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from bed import clock

_PORTS = range(20_000, 60_000)
_NO_PID = 1 << 22 | 1
_NANOSECONDS = 1_000_000_000
_real_clock = time.clock_gettime
_virtual_clocks = {
    getattr(time, name): clock.wall if name == "CLOCK_REALTIME" else clock.monotonic
    for name in ("CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME")
    if hasattr(time, name)
}


def _clock_gettime(number: int) -> float:
    virtual = _virtual_clocks.get(number)
    return _real_clock(number) if virtual is None else virtual()


time.time, time.monotonic, time.clock_gettime = clock.wall, clock.monotonic, _clock_gettime
time.time_ns = lambda: int(clock.wall() * _NANOSECONDS)
time.monotonic_ns = lambda: int(clock.monotonic() * _NANOSECONDS)
# What a worker has once it is ready would never be freed, of hundreds of workers.
gc.freeze = lambda: None
gc.set_threshold = lambda *_: None


def seed(number: int) -> None:
    """Have all ids, ports and all jitter come from a seed from now on. The process's own number is one that no process has.

    Ports go on where the last seed's ended, if this process has had one: those of its connections are used for a minute more.
    """
    os.getpid, os.getloadavg = lambda: _NO_PID, lambda: (0.0, 0.0, 0.0)
    sockets.ports = sockets.ports or cycle(_PORTS)
    random.seed(number)
    os.urandom = random._urandom = Random(number).randbytes  # type: ignore[attr-defined] # of `secrets`
    randomness.forget()


# From here on the product may be imported: it finds the virtual clock.
import celery
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.local import Proxy
from celery.utils.collections import LimitedSet

from bed import greenlets, sockets
from bed.site import here
from toolfleet_registry.system import randomness

time.sleep = greenlets.sleep  # type: ignore[assignment] # of fewer types of numbers

for _name in ("__init__", "send", "sendall", "sendmsg", "recv", "recv_into", "close", "shutdown", "bind", "connect"):
    setattr(socket.socket, _name, getattr(sockets, _name.strip("_")))


def _handle(number: int, handler: Any) -> Any:
    """Implements `signal.signal`: a site has signals of its own."""
    site = here()
    return _real_signal(number, handler) if site is None else site.handle(number, handler)


_real_signal: Any = signal.signal
signal.signal = _handle  # type: ignore[assignment] # as above
_real_gethostname = socket.gethostname
socket.gethostname = lambda: _real_gethostname() if (site := here()) is None else site.host


class _DatetimeType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class _Datetime(datetime, metaclass=_DatetimeType):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.fromtimestamp(clock.wall(), tz or UTC)


def _of_site(name: str, make: Callable[[], Any]) -> Any:
    """Return what stands for an object that Celery has once a process: each site has its own."""
    outside = make()

    def own() -> Any:
        site = here()
        if site is None:
            return outside
        if name not in site.celery:
            site.celery[name] = make()
        return site.celery[name]

    return Proxy(own)


class _State(ModuleType):
    """Celery's module of a worker's state. Whether a worker is to end is its site's."""

    _ends: Any = _of_site("ends", dict)

    @property
    def should_stop(self) -> Any:
        return self._ends.get("warm")

    @should_stop.setter
    def should_stop(self, code: Any) -> None:
        self._ends["warm"] = code

    @property
    def should_terminate(self) -> Any:
        return self._ends.get("cold")

    @should_terminate.setter
    def should_terminate(self, code: Any) -> None:
        self._ends["cold"] = code


def _loaded_state() -> Any:
    """Load Celery's state of a worker before any code of Celery's keeps parts of it by their names, and separate it by sites."""
    name = "celery.worker.state"
    spec = spec_from_file_location(name, Path(celery.__file__).with_name("worker") / "state.py")
    assert spec is not None
    assert spec.loader is not None
    state: Any = module_from_spec(spec)
    sys.modules[name] = state
    spec.loader.exec_module(state)

    requests, reserved = _of_site("requests", dict), _of_site("reserved", WeakSet)
    active, scheduled = _of_site("active", WeakSet), _of_site("scheduled", WeakSet)
    state.requests, state.reserved_requests = requests, reserved
    state.active_requests, state.scheduled_requests = active, scheduled
    state.revoked, state.successful_requests = _of_site("revoked", LimitedSet), _of_site("successful", LimitedSet)

    def add_to(kind: Any) -> Callable[[Any], None]:
        return lambda request: kind.add(request)  # noqa: PLW0108 - of the site that runs then

    def discard_from(kind: Any) -> Callable[[Any], None]:
        return lambda request: kind.discard(request)  # noqa: PLW0108 - as above

    keep, drop = requests.__setitem__, lambda key, _: requests.pop(key, None)
    state.task_reserved.__defaults__ = keep, add_to(reserved), discard_from(scheduled)
    state.task_scheduled.__defaults__ = keep, add_to(scheduled), reserved, active
    state.task_accepted.__defaults__ = None, keep, add_to(active), state.total_count.update
    state.task_ready.__defaults__ = False, drop, *map(discard_from, (active, reserved, scheduled))

    def maybe_shutdown() -> None:
        for code, end in ((state.should_terminate, WorkerTerminate), (state.should_stop, WorkerShutdown)):
            if code is not None and code is not False:
                raise end(code)

    state.maybe_shutdown = maybe_shutdown
    del state.should_stop, state.should_terminate
    state.__class__ = _State
    return state


_state = _loaded_state()

import celery.app.base
import celery.app.trace
import celery.apps.worker
import celery.backends.redis
import celery.worker
import celery.worker.components
import celery.worker.request
import kombu.asynchronous
import kombu.asynchronous.hub
import kombu.asynchronous.timer
import kombu.common
import kombu.pools
import kombu.resource
import standardwebhooks.webhooks


class _Entry(kombu.asynchronous.timer.Entry):
    """A timer of a worker's hub. Of two that are due at once the older one comes first, not that with the lower address."""

    _numbers = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self.number = next(self._numbers)

    def __lt__(self, other: "_Entry") -> bool:
        return self.number < other.number


class _OrderedSet(dict[Any, None]):
    """Implements what kombu's hub uses of a set: what it shall call, in the order in which it was told."""

    def add(self, each: Any) -> None:
        self[each] = None

    def discard(self, each: Any) -> None:
        self.pop(each, None)

    def remove(self, each: Any) -> None:
        del self[each]

    def __copy__(self) -> list[Any]:
        return list(self)


_hubs: Any = _of_site("hubs", dict)


def _get_event_loop() -> Any:
    """Implements kombu's: a worker that starts while another one does would find the other one's hub, and fire its timers only."""
    return _hubs.get("current")


def _set_event_loop(hub: Any) -> Any:
    """Implements kombu's."""
    _hubs["current"] = hub
    return hub


_oids = WeakKeyDictionary[Any, str]()


def _generate_oid(node: int, process: int, thread: int, instance: Any) -> str:
    """Implements kombu's: what it makes of an object's address would differ between two runs."""
    del node, process, thread
    if instance not in _oids:
        _oids[instance] = str(uuid4())
    return _oids[instance]


kombu.asynchronous.timer.Timer.Entry = _Entry
kombu.asynchronous.hub.set = _OrderedSet  # type: ignore[attr-defined] # its own `set`
for _module in (kombu.asynchronous.hub, kombu.asynchronous, celery.worker.components):
    for _name, _of_a_site in {"get_event_loop": _get_event_loop, "set_event_loop": _set_event_loop}.items():
        setattr(_module, _name, _of_a_site)
kombu.common.generate_oid = _generate_oid
kombu.resource.LifoQueue = greenlets.GreenLifoQueue  # type: ignore[attr-defined, assignment] # its own name
celery.worker.state = _state
celery.app.base.datetime = celery.worker.request.datetime = _Datetime
standardwebhooks.webhooks.datetime = _Datetime  # type: ignore[attr-defined] # it verifies by this name
kombu.pools.connections = _of_site("connections", partial(kombu.pools.Connections, limit=kombu.pools.use_global_limit))
kombu.pools.producers = _of_site("producers", partial(kombu.pools.Producers, limit=kombu.pools.use_global_limit))
celery.app.trace._localized = _of_site("traced", list)
celery.backends.redis._socket_readable = lambda sock, timeout: greenlets.wait_for_file(sock.fileno(), timeout=timeout)
celery.apps.worker.check_privileges = lambda *_: None  # nor does it matter who runs the tests
logging.getLogger("celery").setLevel(logging.CRITICAL)
