"""Runs a module in the test's own process, for tests with and without an event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from toolfleet_modules.sdk.client import ModuleClient, ModuleResult
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.contracts import Level, ModuleManifest

T = TypeVar("T")

_START_SECONDS = 60.0  # for the module's own startup, perhaps on a small and busy machine
_CALL_SECONDS = 30.0  # for a call that says nothing else
_MARGIN_SECONDS = 5.0  # beyond a call's own time: a tool that blocks the loop does not notice that it is over
_STOP_SECONDS = 10.0  # for the module's own shutdown


class InProcess:
    """`toolfleet.sdk.Module.client()` with plain methods. Each raises `TimeoutError` where a tool blocks the module's loop."""

    def __init__(self, client: ModuleClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def call(self, method: str, /, **arguments: Any) -> ModuleResult:
        """Call a tool by its name, with or without its module's; `user_id` among the arguments is the call's user."""
        return self._wait(self._client.call(method, **arguments))

    def send(self, method: str, arguments: dict[str, Any], **facts: Any) -> ModuleResult:
        """Send a call with a fleet's additional facts: `user_id`, `call_id`, `seconds` (30), `permission`."""
        return self._wait(self._client.send(method, arguments, **facts), seconds=facts.get("seconds", _CALL_SECONDS))

    def manifest(self) -> ModuleManifest:
        """Return the module's manifest, if a fleet would admit it. Raises `ManifestRefused`."""
        return self._wait(self._client.manifest())

    def reconcile(self, call_id: str) -> dict[str, Any]:
        """Return the module's answer about the outcome of a call."""
        return self._wait(self._client.reconcile(call_id))

    def _wait(self, work: Coroutine[Any, Any, T], *, seconds: float = _CALL_SECONDS) -> T:
        return _result(asyncio.run_coroutine_threadsafe(work, self._loop), seconds + _MARGIN_SECONDS)


@contextmanager
def in_process(module: Module, *, user_id: str | None = None, permission: Level = "user") -> Generator[InProcess]:
    """Start the module on an event loop in a thread, and stop it at the end. Its startup's error is raised here.

    This ends in any case: a loop that is blocked is left behind, with a `TimeoutError` that says so.
    """
    if not isinstance(module, Module):  # tests are often untyped
        raise TypeError(
            f"toolfleet_module takes a toolfleet.sdk.Module, not {module!r}: with `module`, not `module.app`."
        )
    loop = asyncio.new_event_loop()
    over = threading.Event()
    thread = threading.Thread(target=_run, args=(loop, over), name=f"toolfleet-{module.name}", daemon=True)
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
        _result(running, _STOP_SECONDS)
    finally:
        running.cancel()
        over.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_MARGIN_SECONDS)


def _run(loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    """Run the loop until it is over, also after a callback that wanted to end the process; then cancel its remaining tasks."""
    while not over.is_set():
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_MARGIN_SECONDS))
    loop.close()


def _result(future: Future[T], seconds: float) -> T:
    done, _ = wait({future}, timeout=seconds)
    if not done:
        future.cancel()
        raise TimeoutError(f"The module gave no answer within {seconds:g} s: a tool blocks its event loop.")
    return future.result()


class _Life:
    """The life of a module from startup to shutdown in one task, as task groups and timeouts in its lifespan need."""

    def __init__(self, client: ModuleClient) -> None:
        self.client = client
        self.ready = threading.Event()
        self.over = asyncio.Event()

    async def live(self) -> None:
        async with self.client:
            self.ready.set()
            await self.over.wait()
