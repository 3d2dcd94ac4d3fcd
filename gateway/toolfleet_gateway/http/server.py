"""Serves the gateway's app by uvicorn until a signal ends it: running requests end, and streams are told to reconnect."""

import asyncio
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_network
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from toolfleet_gateway.http.connections import ConnectionLimits, protocol_of
from toolfleet_registry.config.gateway_settings import GatewaySettings

_KEEP_ALIVE_SECONDS = (
    75  # longer than load balancers keep theirs: none sends a request into a connection that is just closed
)
_STEP_SECONDS = 0.05  # between two checks for a second signal


class GatewayServer(uvicorn.Server):
    """A server that announces its end to the app, continues for a moment, and then lets running requests end."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        listening: Callable[[], None],
        leaving: Callable[[], None],
        leave_seconds: float,
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._leaving = leaving
        self._leave_seconds = leave_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal, without uvicorn's raising it again, which would leave the fleet open."""
        del frame
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that it ends, wait until a load balancer has seen that, and end."""
        self._leaving()
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._leave_seconds
        while not self.force_exit and clock() < give_up_at:  # noqa: ASYNC110 - a signal handler sets it
            await asyncio.sleep(_STEP_SECONDS)
        await super().shutdown(sockets)


def make_server(
    app: ASGIApp, settings: GatewaySettings, *, listening: Callable[[], None], leaving: Callable[[], None]
) -> GatewayServer:
    """The server of `app`. `listening` is called once it takes requests, `leaving` when it is to end, before anything else is."""
    limits = ConnectionLimits(
        settings.gateway_max_header_bytes,
        settings.gateway_header_seconds,
        settings.gateway_connections,
        tuple(map(ip_network, settings.gateway_trusted_proxies)),
    )
    config = uvicorn.Config(
        app,
        http=protocol_of(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.gateway_root_path,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.gateway_stop_seconds),
    )
    return GatewayServer(config, listening=listening, leaving=leaving, leave_seconds=settings.gateway_leave_seconds)
