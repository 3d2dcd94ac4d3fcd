"""Defines the port to an HTTP client: one `post` to a module, and its response as it comes in.

The worker's is in `executors/http_client`. Another one reads what it needs of a request's line and header from `head`.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from toolfleet_workers.executors.http.request import ModuleRequest
from toolfleet_workers.executors.http.target import Origin

REPLICA_HEADER = "Toolfleet-Replica"
"""Which process of the module is meant, and in its answer which one it is."""


@dataclass(slots=True)
class SendProgress:
    """How far one request got. While `sent` is false, the module cannot have seen any of it."""

    sent: bool = False


class ModuleResponse(Protocol):
    """A response whose header is there. Whoever has it releases it."""

    status: int

    def field(self, name: str) -> str | None:
        """A field of the header, by its name in lower case; one that is there several times is a list: RFC 9110, 5.3."""
        ...

    async def read_chunk(self) -> bytes:
        """What has come of the body since the last time; empty at its end. Raises `NoReply`."""
        ...

    def release(self) -> None:
        """Nobody reads on: gives the connection back if the response is whole, and closes it if not."""
        ...


def is_left_by(response: ModuleResponse, replica: str) -> bool:
    """Whether not this process of the module has answered, but another one at its address, which has done nothing else.

    False where none is meant in particular.
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
        """Be able to reach modules by https, from now on."""
        ...

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        """Connect to these only at IP addresses that are allowed, whatever the name service says by then."""
        ...

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        ...
