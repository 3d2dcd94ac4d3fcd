"""Reserves free ports on the loopback interface for children that are yet to start, or to be restarted."""

import random
import socket
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LASTING = range(20_000, 30_000)  # below those that kernels hand out, which every outgoing connection gets one of
_TRIES = 20


@contextmanager
def held_port(*preferred: int) -> Generator[int]:
    """Hold a port for a child of ours: the first of `preferred` that is free, else any free one.

    On Linux a bound socket that does not listen keeps the kernel from giving the port to another process, while a
    server that sets SO_REUSEADDR, as all of ours do, may listen on it. Elsewhere such a socket would shut the child
    out: there the port is free at first and merely likely to stay so.
    """
    with ExitStack() as stack:
        found = (holder for port in preferred if port and (holder := _hold(port, stack)) is not None)
        holder = next(found, None) or stack.enter_context(_bound(0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


@contextmanager
def kept_port(note: Path, *preferred: int) -> Generator[tuple[int, int | None]]:
    """Hold the port that the file `note` names; if it names none, or one in use, another, which it names from then on.

    `preferred` are tried first for another one. Yields the port, and the wanted one, the named one or else the first of
    `preferred`, if it is not that.
    """
    named = named_port(note)
    wanted = named or next(iter(preferred), None)
    with held_port(*([named] if named else []), *preferred, *random.sample(_LASTING, _TRIES)) as port:
        if port != named:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{port}\n")
        yield port, wanted if port != wanted else None


def free_port() -> int:
    """A port that is free at this moment."""
    with _bound(0) as probe:
        return int(probe.getsockname()[1])


def named_port(note: Path) -> int | None:
    """The port that the file names, if it names one."""
    try:
        port = int(note.read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port < 2**16 else None


def _hold(port: int, stack: ExitStack) -> socket.socket | None:
    try:
        if sys.platform == "linux":
            # Two fleets could bind to one port for as long as neither of their children listens on it. This name is in
            # no file: the kernel gives it to one of them, until that process ends.
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0toolfleet-port-{port}")
        return stack.enter_context(_bound(port))
    except OSError:
        return None


def _bound(port: int) -> socket.socket:
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        raise
    return holder
