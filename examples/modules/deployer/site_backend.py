"""A web site behind a front, served from within the module's process."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from modules.gate import LOOPBACK

_STOP_SECONDS = 5.0
_START_LOOK_SECONDS = 0.02


class SiteBackend:
    """Serves the files of a folder, from within this process."""

    def __init__(self, folder: Path) -> None:
        self._port = 0
        files = StaticFiles(directory=folder, html=True, follow_symlink=False)
        app = Starlette(routes=[Mount("/", files)])
        config = _Config(app, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen. Raises `OSError`."""
        listener = socket.create_server((LOOPBACK, 0))
        # Connections inherit it; without it a body waits 40 ms for its headers to be acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(_START_LOOK_SECONDS)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to its server. Raises `OSError`."""
        return await asyncio.open_connection(LOOPBACK, self._port)

    def why_ended(self) -> str | None:
        """`None` while it runs; else a sentence."""
        return "Its server has ended." if self._task is None or self._task.done() else None

    async def is_healthy(self) -> bool:
        """Whether it serves."""
        return self._server.started

    async def stop(self) -> None:
        """End it, with the connections to it."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait({self._task}, timeout=_STOP_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _Config(uvicorn.Config):
    """Leaves the process's logging alone, which the module's own server has set up."""

    def configure_logging(self) -> None:
        pass


class _Server(uvicorn.Server):
    """A server among others in one process, which leaves the process's signals alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
