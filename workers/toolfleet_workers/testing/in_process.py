"""A module in the test's own process, for tests with and without an event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.sdk.client import ModuleClient, ModuleResult
from toolfleet_registry.sdk.module import Module

T = TypeVar("T")

_START_SECONDS = 60.0  # for the module's own startup, and its shutdown
_CALL_SECONDS = 300.0  # beyond the call's own limit: nothing hangs


class InProcess:
    """`toolfleet.sdk.Module.client()` with plain methods."""

    def __init__(self, client: ModuleClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def call(self, method: str, /, **arguments: Any) -> ModuleResult:
        """Call a tool by its name, with or without its module's; `user_id` among the arguments is the call's user."""
        return self._wait(self._client.call(method, **arguments))

    def send(self, method: str, arguments: dict[str, Any], **facts: Any) -> ModuleResult:
        """The same with what a fleet says beside: `user_id`, `call_id`, `seconds`, `permission`."""
        return self._wait(self._client.send(method, arguments, **facts))

    def manifest(self) -> ModuleManifest:
        """What the module offers, if a fleet would admit it. Raises `ManifestRefused`."""
        return self._wait(self._client.manifest())

    def reconcile(self, call_id: str) -> dict[str, Any]:
        """What the module says became of a call."""
        return self._wait(self._client.reconcile(call_id))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)


@contextmanager
def in_process(module: Module, *, user_id: str | None = None, permission: str = "user") -> Generator[InProcess]:
    """Start the module on an event loop in a thread, and stop it at the end. Its startup's error is raised here."""
    if not isinstance(module, Module):  # pyright: ignore[reportUnnecessaryIsInstance] - tests are often untyped
        raise TypeError(
            f"toolfleet_module takes a toolfleet.sdk.Module, not {module!r}: with `module`, not `module.app`."
        )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"toolfleet-{module.name}", daemon=True)
    thread.start()
    life = _Life(module.client(user_id=user_id, permission=permission))
    running = asyncio.run_coroutine_threadsafe(life.live(), loop)
    running.add_done_callback(lambda _: life.ready.set())  # and no earlier: then it has its error
    try:
        life.ready.wait(_START_SECONDS)
        if running.done():
            running.result()
        yield InProcess(life.client, loop)
        loop.call_soon_threadsafe(life.over.set)
        running.result(_START_SECONDS)
    finally:
        running.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_SECONDS)
        loop.close()


class _Life:
    """From startup to shutdown in one task, as task groups and timeouts in a module's lifespan want it."""

    def __init__(self, client: ModuleClient) -> None:
        self.client = client
        self.ready = threading.Event()
        self.over = asyncio.Event()

    async def live(self) -> None:
        async with self.client:
            self.ready.set()
            await self.over.wait()
