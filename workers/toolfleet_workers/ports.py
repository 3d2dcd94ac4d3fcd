"""Free ports on the loopback interface, held for children that are yet to start, or to be restarted."""

import contextlib
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"


@contextmanager
def held_port(preferred: int = 0) -> Generator[int]:
    """A port that a child of ours will listen on: `preferred` if nobody does, else any free one.

    On Linux a bound socket that does not listen keeps the kernel from handing the port to anybody else, while a server
    that sets SO_REUSEADDR, as all of ours do, may listen on it. Elsewhere such a socket would shut the child out:
    there the port is free at first and merely likely to stay so.
    """
    with _bound(preferred) as holder:
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def free_port() -> int:
    """A port that is free at this moment."""
    with _bound(0) as probe:
        return int(probe.getsockname()[1])


def _bound(preferred: int) -> socket.socket:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        holder.bind((LOOPBACK, preferred))
        return holder
    holder.bind((LOOPBACK, 0))
    return holder
