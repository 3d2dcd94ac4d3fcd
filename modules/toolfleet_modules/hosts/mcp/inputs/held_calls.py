"""Holds calls whose servers ask in the middle of them: a server waits in its session until the caller has answered."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolfleet_modules.hosts.mcp.inputs.turns import Ask
from toolfleet_registry.contracts.call_context import LogMessage, LogSink
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.system import randomness

_LONGEST_SECONDS = 3600.0  # that a call without an end of its own is held
_MORE_SECONDS = 1.0  # beyond its time, which its waiters end by their own clocks
_MOST = 1000
_HELD, _QUESTION = "held", "question"

OnProgress = Callable[[float, float | None, str | None], None]


@dataclass(slots=True)
class Ears:
    """The listener of a call, which changes after each answer. `log`: the sink of its server's log messages."""

    on_progress: OnProgress
    log: LogSink | None

    def turn_to(self, other: "Ears") -> None:
        """Have the other one's heard from now on."""
        self.on_progress, self.log = other.on_progress, other.log

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell how far the call is."""
        self.on_progress(progress, total, message)

    @property
    def sink(self) -> LogSink | None:
        """The sink of the server's log messages as long as the call lasts."""
        return None if self.log is None else LogSink(self.log.least, self._take)

    def _take(self, message: LogMessage) -> None:
        if self.log is not None:
            self.log.take(message)


Run = Callable[[Ask, Ears], Awaitable[dict[str, Any]]]
"""Makes the call. What its server asks is answered by `Ask`."""


@dataclass(frozen=True, slots=True)
class ServerQuestion:
    """A server's question in the middle of a call, which continues when it is answered by `state`."""

    method: str
    params: Mapping[str, Any]
    state: str

    @property
    def requests(self) -> dict[str, Any]:
        """As a module asks it."""
        return {_QUESTION: {"method": self.method, "params": dict(self.params)}}


class HeldCall:
    """The call `call_id`, which continues without a waiting client, for `seconds` at most."""

    def __init__(self, key: str, call_id: str | None, seconds: float, ears: Ears) -> None:
        self.key, self.call_id, self.ears = key, call_id, ears
        self._state = json.dumps({_HELD: key})
        self._seconds = seconds
        self._asking = asyncio.Lock()
        self._asked: asyncio.Future[ServerQuestion] = asyncio.get_running_loop().create_future()
        self._answered: asyncio.Future[dict[str, Any]] | None = None
        self._task: asyncio.Task[dict[str, Any]] | None = None

    def begin(self, run: Run) -> None:
        """Have it run."""
        self._task = asyncio.ensure_future(self._bounded(run))
        self._task.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # there may be no waiters any more

    async def next_stop(self) -> dict[str, Any] | ServerQuestion:
        """Wait for its end, or for what its server asks. Raises what the call raises. Cancelled, the call is, too."""
        assert self._task is not None  # noqa: S101 - its owner has started it
        try:
            both: set[asyncio.Future[Any]] = {self._task, self._asked}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self._task.result() if self._task.done() else self._asked.result()

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the caller, and wait for the answer; one question after the other."""
        async with self._asking:
            self._answered = asyncio.get_running_loop().create_future()
            self._asked.set_result(ServerQuestion(method, params, self._state))
            return await self._answered

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Give the server its answer. A late one, as after the call's end, is ignored."""
        if self._answered is not None and not self._answered.done():
            self._asked = asyncio.get_running_loop().create_future()
            self._answered.set_result(dict(responses.get(_QUESTION) or {}))

    async def aclose(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _bounded(self, run: Run) -> dict[str, Any]:
        async with asyncio.timeout(self._seconds):
            return await run(self.ask, self.ears)


class HeldCalls:
    """The held calls of one host. `aclose` them."""

    def __init__(self) -> None:
        self._held: dict[str, HeldCall] = {}

    def begun(self, call_id: str | None, seconds: float | None, ears: Ears, run: Run) -> HeldCall:
        """A call that begins, and is held until its end was told, or its `seconds` are over. Raises `ModuleBusy`."""
        if len(self._held) >= _MOST:
            raise ModuleBusy
        key = randomness.uuid4_text()
        seconds = _LONGEST_SECONDS if seconds is None else min(seconds, _LONGEST_SECONDS) + _MORE_SECONDS
        held = self._held[key] = HeldCall(key, call_id, seconds, ears)
        asyncio.get_running_loop().call_later(seconds, self._held.pop, key, None)
        held.begin(run)
        return held

    def answered(self, call_id: str | None, inputs: CallInputs, ears: Ears) -> HeldCall | None:
        """Answer a held call's question and return the call, whose further reports go to `ears`; `None` if it is not held here."""
        held = self._held.get(_key_in(inputs.state) or "")
        if held is None or held.call_id != call_id:
            return None
        held.ears.turn_to(ears)
        held.answer(inputs.responses)
        return held

    async def next_stop(self, held: HeldCall) -> dict[str, Any] | ServerQuestion:
        """Return the server's answer to a call, or its next question.

        Raises the call's errors. If cancelled, the call is cancelled, too.
        """
        is_over = True
        try:
            stop = await held.next_stop()
            is_over = not isinstance(stop, ServerQuestion)
        finally:
            if is_over:
                self._held.pop(held.key, None)
        return stop

    async def aclose(self) -> None:
        """End all."""
        await asyncio.gather(*(held.aclose() for held in self._held.values()))
        self._held.clear()


def is_held(state: str) -> bool:
    """Return whether a state names a call that was held."""
    return _key_in(state) is not None


def _key_in(state: str) -> str | None:
    try:
        found = json.loads(state)
    except ValueError:
        return None
    key = found.get(_HELD) if isinstance(found, dict) else None
    return key if isinstance(key, str) else None
