"""A gateway in the test's process: the routes, server and socket of `toolfleet gateway`, on a thread with a loop of its own."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import uvloop

from support.fleet import TestBed
from support.gateways.gateway_process import ServedGateway
from support.gateways.keyed_gateway import KeyedGateway, people_of
from support.waiting import wait_until_sync
from toolfleet_gateway import gateway
from toolfleet_gateway.auth.authenticator import key_to_generate
from toolfleet_gateway.http.server import GatewayServer, make_server
from toolfleet_registry.access import new_key_text
from toolfleet_registry.system.process import Process, enter, listening_socket


@contextmanager
def gateway_here(bed: TestBed, **settings: object) -> Generator[ServedGateway]:
    """Serve on a free port from its readiness on; `settings` are beside those of the bed."""
    own = bed.settings.model_copy(update=settings)
    text, ready, servers = new_key_text().text, threading.Event(), list[GatewayServer]()

    def kept(*args: Any, **named: Any) -> GatewayServer:
        servers.append(make_server(*args, **named))  # to end it: its process would get a signal
        return servers[-1]

    async def serve() -> None:
        key = await key_to_generate(own, "127.0.0.1", text)
        await gateway.serve_gateway(own, listener, generated=key, ready=ready.set, leave_seconds=0)

    def run() -> None:
        enter(Process())  # what it counts, and has said once, is not the tests'
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    with listening_socket("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as thread:
        with patch.object(gateway, "make_server", kept):
            running = thread.submit(run)
            wait_until_sync(lambda: ready.is_set() or running.done(), "the gateway is ready")
        try:
            yield ServedGateway(f"http://127.0.0.1:{listener.getsockname()[1]}", text)
        finally:
            for server in servers:
                server.should_exit = True
            running.result()


@contextmanager
def keyed_gateway_here(bed: TestBed, **settings: object) -> Generator[KeyedGateway]:
    """One for people with a key each."""
    with people_of(bed.settings) as keys, gateway_here(bed, **settings) as gateway:
        yield KeyedGateway(gateway, keys)  # type: ignore[arg-type] # nobody asks for its process
