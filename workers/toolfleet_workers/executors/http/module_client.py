"""Defines the port to an HTTP client: one `post` to a module, and its response as it comes in.

The worker's is in `executors/http_client`. Another one reads what it needs of a request's line and header from `head`.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from toolfleet_workers.executors.http.request import ModuleRequest, Origin

REPLICA_HEADER = "Toolfleet-Replica"
"""Which process of the module is meant, and in its answer which one it is."""


@dataclass(slots=True)
class SendProgress:
    """The progress of sending one request. While `sent` is false, the module cannot have seen any of it."""

    sent: bool = False


class ModuleResponse(Protocol):
    """A response whose header is there. Its user releases it."""

    status: int

    def field(self, name: str) -> str | None:
        """A field of the header, by its name in lower case; one that is there several times is a list: RFC 9110, 5.3."""
        ...

    async def read_chunk(self) -> bytes:
        """Return the body's new bytes; empty at its end. Raises `NoReply`."""
        ...

    def release(self) -> None:
        """Release the response: gives the connection back if it is whole, and closes it if not."""
        ...


def is_left_by(response: ModuleResponse, replica: str) -> bool:
    """Return whether another process of the module at the same address has answered, and has done nothing else.

    False if no particular one was intended.
    """
    if response.status != HTTPStatus.CONFLICT or not replica:
        return False
    return response.field(REPLICA_HEADER.lower()) not in {None, replica}


class HttpClientPort(Protocol):
    """Sends requests to modules, each once: it follows no redirect, and tries nothing again."""

    def post(self, request: ModuleRequest, progress: SendProgress) -> Coroutine[Any, Any, ModuleResponse]:
        """Send the request, once; returns the response when its header is there. The caller releases it.

        Raises `NoReply`; `progress` then says whether anything was sent. And `LeaseOver`, which says that nothing was.
        """
        ...

    async def probe(self, request: ModuleRequest) -> int:
        """The status with which a request is answered over a new connection: whether one can be made, is the question.

        Raises `NoReply`.
        """
        ...

    def trust(self) -> None:
        """Enable https for modules, from now on."""
        ...

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        """Restrict these origins to allowed IP addresses, checked when connecting."""
        ...

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        ...
