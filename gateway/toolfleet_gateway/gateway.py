"""Runs one gateway: opens the fleet, serves its routes, and closes it."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvloop
from starlette.types import ASGIApp

from toolfleet_gateway.artifacts import ArtifactRoutes
from toolfleet_gateway.auth.authenticator import authenticating
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_gateway.auth.own_secrets import GeneratedKey
from toolfleet_gateway.calls import BeginningRoutes, Calling, FollowingRoutes
from toolfleet_gateway.console.front import CONSOLE_PATHS, console_of
from toolfleet_gateway.events import approval_routes, event_routes
from toolfleet_gateway.hooks import approval_hook_routes, hook_routes
from toolfleet_gateway.http.app import build_app, metadata_routes
from toolfleet_gateway.http.entrance import Entrance
from toolfleet_gateway.http.routes import AnyRoute, declared_routes
from toolfleet_gateway.http.server import make_server
from toolfleet_gateway.http.streams import OpenStreams
from toolfleet_gateway.jobs import job_routes
from toolfleet_gateway.mcp.front import PATHS, McpFront
from toolfleet_gateway.metrics import gateway_metrics, metrics_routes
from toolfleet_gateway.operations import resource_routes
from toolfleet_gateway.tracing import gateway_tracing
from toolfleet_registry.config.gateway_settings import GATEWAY_LEAVE_SECONDS
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import Closing, end
from toolfleet_tasks.artifacts import Artifacts
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.call_index import CallIndex
from toolfleet_tasks.operations.queue_lengths import BrokerProbe

_CONNECTIONS_A_STREAM = 2  # streams stay open: as many connections are left for requests
_REDIS_SECONDS = 2.0  # for an answer about a caller's limits


def run_gateway(
    settings: Settings,
    listener: socket.socket,
    *,
    generated: GeneratedKey | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `generated`: the key that was made for it. `ready` is called once requests are taken.

    Raises as `ToolFleet` does when it is entered.
    """
    # A line for each request that is no HTTP would let any client fill a disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings, listener, generated=generated, ready=ready))


async def serve_gateway(
    settings: Settings,
    listener: socket.socket,
    *,
    generated: GeneratedKey | None = None,
    ready: Callable[[], None] = lambda: None,
    leave_seconds: float = GATEWAY_LEAVE_SECONDS,
) -> None:
    """Serve as `run_gateway` does, on the running loop. `leave_seconds`: how long it accepts requests after it was told to stop."""
    if settings.artifact_store is not None:
        _ = Artifacts(settings).store  # else its readers would learn that it cannot be used here
    closing, tracing = Closing(), gateway_tracing(settings)
    async with (
        ToolFleet(settings=settings, is_shared=True) as fleet,
        authenticating(settings, generated) as authenticator,
        settings.redis_client(timeout_seconds=_REDIS_SECONDS) as redis,
        CallIndex.of(settings) as calls,
        gateway_metrics(settings) as metrics,
    ):
        broker = BrokerProbe(settings)
        limits = KeyLimits(redis, settings.keys)
        streams = OpenStreams(
            max(settings.gateway_connections // _CONNECTIONS_A_STREAM, 1), closing, authenticator, limits
        )

        async def is_ready() -> bool:
            answers = await asyncio.gather(fleet.begun_calls.ping(), broker.answers())
            return not closing.has_begun and all(answers)

        routes = [*routes_of(fleet, settings, closing, streams, calls), *metrics_routes(metrics, settings)]
        routes += metadata_routes(authenticator.resource)
        entrance = Entrance(authenticator, limits)
        front = McpFront(fleet, settings, redis, entrance, streams, closing, tracing)
        console = console_of(fleet, settings, redis, entrance, streams, routes)
        apps: dict[str, ASGIApp] = {**dict.fromkeys(PATHS, front), **dict.fromkeys(CONSOLE_PATHS, console)}
        shown = fleet.begun_calls.shown_ids
        app = build_app(routes, entrance, settings, is_ready=is_ready, apps=apps, tracing=tracing, shown=shown)
        server = make_server(app, settings, leaving=closing.begin, listening=ready, leave_seconds=leave_seconds)
        watching = asyncio.create_task(streams.watch(), name="toolfleet-streams")
        try:
            await server.serve(sockets=[listener])
        finally:
            broker.close()
            await end([watching])
            await front.aclose()


def routes_of(
    fleet: ToolFleet, settings: Settings, closing: Closing, streams: OpenStreams, calls: CallIndex
) -> list[AnyRoute]:
    """Return every route of the gateway, each from the folder of its concern."""
    calling = Calling(fleet, settings, closing)
    return [
        *declared_routes(BeginningRoutes(calling), tag="calls"),
        *declared_routes(FollowingRoutes(calling, streams), tag="calls"),
        *job_routes(fleet, settings, streams),
        *hook_routes(fleet),
        *approval_hook_routes(fleet, settings),
        *approval_routes(fleet, streams),
        *event_routes(fleet, settings, streams),
        *resource_routes(fleet, settings, calls),
        *declared_routes(ArtifactRoutes(fleet), tag="artifacts"),
    ]
