"""Checks whether a process of the fleet is ready to work."""

import http.client
from collections.abc import Callable

from toolfleet_cli.local.child import Child
from toolfleet_cli.local.redis_server import is_ours
from toolfleet_cli.local.tcp_ports import LOOPBACK

_ANSWER_SECONDS = 2.0  # we ask again


def says(text: str) -> Callable[[Child], bool]:
    """It has written `text` since it was started."""
    return lambda child: text in child.said()


def serves(port: int, path: str) -> Callable[[Child], bool]:
    """It answers a GET with 200."""

    def is_ready(_child: Child) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return is_ready


def is_redis(port: int) -> Callable[[Child], bool]:
    """It is the Redis server that answers on this port."""
    return lambda child: is_ours(port, child.pid)
