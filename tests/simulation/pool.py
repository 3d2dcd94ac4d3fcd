"""Plays plans in processes of their own: each is a fork of this one, so that what came before does not matter to any.

All forks have the same memory at their start, down to the addresses of objects, by which sets of tasks are ordered.
"""

import ctypes
import fcntl
import io
import itertools
import logging
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import bed.replaced  # noqa: F401 - it puts virtual time into the process, before all that knows the time
from bed import redis, sockets, trace
from simulation.plan import Plan, Verdict
from simulation.scene import play

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWNS = 0x1000_0000, 0x4000_0000, 0x2_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_NETWORK = {
    "ip_local_port_range": "60000 65535",
    "tcp_rmem": "4096 4194304 33554432",
    "tcp_wmem": "4096 4194304 33554432",
    "tcp_autocorking": "0",
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
}
"""What is written arrives whole and at once: others pace it by real time. The bed chooses its own, lower ports."""
_RTM_NEWROUTE, _REQUEST_REPLACE_CREATE = 24, 1 | 0x100 | 0x400
_TO_LOOPBACK = (socket.AF_INET, 32, 0, 0, 255, 2, 254, 2, 0)  # in the table `local`, by the kernel, to this host
_DST, _OIF, _PREFSRC, _METRICS, _INITCWND, _QUICKACK = 1, 4, 7, 8, 11, 15
_STUCK_SECONDS = 900


def played(
    plans: Iterator[Plan], processes: int, traces: Path | None = None, seconds: float = _STUCK_SECONDS
) -> Iterator[tuple[Plan, Verdict]]:
    """Play plans, so many at once, each for so many seconds at most. Yields each with what became of it, in the order in which they end."""
    redis.find_server()
    running: dict[Any, tuple[Plan, int, int]] = {}
    free = list(range(processes))
    files = (
        traces and traces.with_name(f"{traces.name}{number}") for number in itertools.chain([""], itertools.count(2))
    )
    while True:
        while free and (plan := next(plans, None)) is not None:
            reader, child = _begun(plan, place := free.pop(), next(files), seconds)
            running[reader] = plan, place, child
        if not running:
            return
        for ready in wait(list(running)):
            one: Any = ready  # a connection: it waits for nothing else
            plan, place, child = running.pop(one)
            free.append(place)
            try:
                verdict: Verdict = one.recv()
            except EOFError:
                verdict = Verdict(["The process that played it has ended"])
            one.close()
            os.waitpid(child, 0)
            yield plan, verdict


def _begun(plan: Plan, place: int, traces: Path | None, seconds: float) -> tuple[Any, int]:
    reader, writer = Pipe(duplex=False)
    if child := os.fork():
        writer.close()
        return reader, child
    try:
        reader.close()
        if sys.platform == "linux":
            _be_alone(place)
        writer.send(_verdict(plan, traces, seconds))
    finally:
        os._exit(0)


def _be_alone(place: int) -> None:
    """Take one processor, with Redis, so that all arrives in its order and at once.

    Take a network, too, where that is allowed, with the same ports in each run, and a source of chance for Redis, which
    orders hashes by it, that gives zeros.
    """
    processors, libc = sorted(os.sched_getaffinity(0)), ctypes.CDLL(None)
    place += os.getppid()  # so that two commands at the same time do not both take the first one
    os.sched_setaffinity(0, {processors[place % len(processors)]})
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS) == 0:
        sockets.ports = None  # those of this network begin with the first one
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        for name, value in _NETWORK.items():
            with suppress(OSError):
                Path("/proc/sys/net/ipv4", name).write_text(value)
        _have_all_acknowledged_at_once()
        libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        libc.mount(b"/dev/zero", b"/dev/urandom", None, _MS_BIND, None)


def _have_all_acknowledged_at_once() -> None:
    """Let the other end have as many segments as it likes, and acknowledge each: `ip route replace ... initcwnd quickack`."""

    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("HH", 4 + len(data), kind) + data

    metrics = attribute(_INITCWND, struct.pack("I", 1000)) + attribute(_QUICKACK, struct.pack("I", 1))
    route = struct.pack("BBBBBBBBI", *_TO_LOOPBACK) + attribute(_DST, socket.inet_aton("127.0.0.1"))
    route += attribute(_OIF, struct.pack("i", socket.if_nametoindex("lo")))
    route += attribute(_PREFSRC, socket.inet_aton("127.0.0.1")) + attribute(_METRICS, metrics)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as link:
        link.send(struct.pack("IHHII", 16 + len(route), _RTM_NEWROUTE, _REQUEST_REPLACE_CREATE, 1, 0) + route)


def _verdict(plan: Plan, traces: Path | None, seconds: float) -> Verdict:
    logging.disable(logging.CRITICAL)
    sys.__stdout__ = None  # type: ignore[misc] # where workers say that they are ready
    sys.stdout = io.StringIO()
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if traces is not None:
        trace.write_to(traces)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        try:
            return play(plan, Path(folder))
        except BaseException as exc:  # noqa: BLE001 - whatever it is, it is no good run
            return Verdict([f"The run itself failed: {exc!r}"])


def _give_up(*_: Any) -> None:
    raise RuntimeError("a run took too long")
