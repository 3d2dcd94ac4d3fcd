"""A port of the loopback interface at which nobody listens."""

import atexit
from contextlib import ExitStack
from functools import cache

from toolfleet_cli.local.redis_server import held_port

_held = ExitStack()


@cache
def closed_port() -> int:
    """Give a port that nobody listens at while this process lives: one that is only free may be another test's a moment later."""
    atexit.register(_held.close)
    return _held.enter_context(held_port())
