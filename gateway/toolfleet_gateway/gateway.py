"""Runs one gateway: opens the fleet, serves its routes, and closes it."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvloop

from toolfleet_gateway.calls.begin import BeginningRoutes
from toolfleet_gateway.calls.calling import Calling
from toolfleet_gateway.calls.follow import FollowingRoutes
from toolfleet_gateway.http.app import build_app
from toolfleet_gateway.http.identities import RequestAuthenticator
from toolfleet_gateway.http.routes import AnyRoute
from toolfleet_gateway.http.server import make_server
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.client.fleet import ToolFleet


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
    async with ToolFleet(settings=settings) as fleet:
        closing = Closing()

        async def is_ready() -> bool:
            return not closing.has_begun and await fleet.begun_calls.ping()

        app = build_app(routes_of(fleet, settings, closing), authenticator, settings, is_ready=is_ready)
        server = make_server(app, settings, leaving=closing.begin, listening=ready)
        await server.serve(sockets=[listener])


def routes_of(fleet: ToolFleet, settings: Settings, closing: Closing) -> list[AnyRoute]:
    """Every route of the gateway, each from the folder of its concern."""
    streams = OpenStreams(settings.gateway_streams, closing)
    calling = Calling(fleet, settings, closing)
    return [*BeginningRoutes(calling).routes(), *FollowingRoutes(calling, streams).routes()]
