"""Runs one gateway: opens the fleet, serves its routes, and closes it."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvloop

from toolfleet_gateway.http.app import build_app
from toolfleet_gateway.http.identities import RequestAuthenticator
from toolfleet_gateway.http.routes import AnyRoute
from toolfleet_gateway.http.server import make_server
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet

_REDIS_SECONDS = 2.0


def run_gateway(
    settings: Settings,
    authenticator: RequestAuthenticator,
    listener: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called once requests are taken. Raises as `ToolFleet` does when it is entered."""
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # a line for each request that is no HTTP is anybody's to fill a disk with
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings, authenticator, listener, ready=ready))


async def serve_gateway(
    settings: Settings,
    authenticator: RequestAuthenticator,
    listener: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """As `run_gateway`, on the running loop."""
    url = str(settings.redis_url)
    async with (
        ToolFleet(settings=settings) as fleet,
        async_client(url, master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS) as redis,
    ):
        streams = OpenStreams(settings.gateway_streams)

        async def is_ready() -> bool:
            return not streams.closing.done() and bool(await redis.ping())

        app = build_app(routes_of(fleet, settings, streams), authenticator, settings, is_ready=is_ready)
        server = make_server(app, settings, leaving=streams.close, listening=ready)
        await server.serve(sockets=[listener])


def routes_of(fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> list[AnyRoute]:
    """Every route of the gateway, each from the folder of its concern."""
    del fleet, settings, streams
    return []
