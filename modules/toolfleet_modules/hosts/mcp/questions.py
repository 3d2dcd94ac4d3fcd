"""Passes on what a server asks in the middle of a call, in both eras of the protocol: it is held until the caller has answered, or called again."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.call_context import LogMessage, LogSink
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.functions.failures import InputRequired, ModuleBusy
from toolfleet_registry.system import randomness

_TURN_SECONDS = 1.0  # that a call waits here for its turn, before the fleet comes back with it
_LATER_SECONDS = 1.0

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Brings the answer to a request of the protocol's, by its method and parameters. Raises `MCPError`."""

_LONGEST_SECONDS = 3600.0  # that a call without an end of its own is held
_MORE_SECONDS = 1.0  # beyond its time, which its waiters end by their own clocks
_MOST = 1000
_HELD, _QUESTION = "held", "question"

OnProgress = Callable[[float, float | None, str | None], None]

TAKES_INPUT = "toolfleet/takesInput"
"""Stands in a call's `_meta` on its way to the dispatcher, and never leaves the host."""

_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
# A state that is not there differs from an empty one, and must come back as it was.
_STATE = "requestState"

_TASK, _ASKED = "task", "asked"
_DIGITS = 16  # of a question's digest


async def _declared(*_: Any) -> types.ErrorData:
    """Return an error; never called: the dispatcher answers before."""
    return types.ErrorData(code=types.INVALID_REQUEST, message="Nobody can be asked now.")


ASKED: Final[Mapping[str, Any]] = {
    "elicitation_callback": _declared,
    "sampling_callback": _declared,
    "list_roots_callback": _declared,
}
"""Has the SDK declare in the handshake that its client can be asked."""


class Turns:
    """The turns of one session, whose server may ask: older versions of the protocol do not say for which call."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._ask: Ask | None = None

    @asynccontextmanager
    async def taken(self, ask: Ask | None) -> AsyncGenerator[None]:
        """Have no other call in the session meanwhile; `ask` answers what its server asks. Raises `ModuleBusy`."""
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise ModuleBusy(_LATER_SECONDS) from None
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None
            self._turn.release()

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a server's question. Raises `MCPError` if there is no caller to ask."""
        if self._ask is None:
            raise MCPError(types.INVALID_REQUEST, "Nobody can be asked now.")
        return await self._ask(method, {name: value for name, value in params.items() if name != "_meta"})


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
        """The requests, in the form of a module's question."""
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
        assert self._task is not None
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
        """Start a call, and hold it until its end was passed on, or its `seconds` are over. Raises `ModuleBusy`."""
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
        held = self._held.get(_text_in(inputs.state, _HELD) or "")
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
    return _text_in(state, _HELD) is not None


def _text_in(state: str, name: str) -> str | None:
    """Return the text of this name in a state; `None` if it has none."""
    try:
        found = json.loads(state)
    except ValueError:
        return None
    text = found.get(name) if isinstance(found, dict) else None
    return text if isinstance(text, str) else None


def question_of(answer: Mapping[str, Any], *, effect_state: EffectState) -> InputRequired:
    """Return the question in a server's answer. Raises `ValueError` for one that cannot be asked."""
    state = answer.get(_STATE)
    kept = json.dumps({} if state is None else {_STATE: state})
    return InputRequired(answer.get("inputRequests") or {}, kept, effect_state=effect_state)


def answers_of(inputs: CallInputs | None) -> dict[str, Any]:
    """Return the parameters sent with a call's name and arguments, once it is answered.

    Raises `ValueError` for a foreign state.
    """
    if inputs is None:
        return {}
    state = json.loads(inputs.state)
    if not isinstance(state, dict):
        raise ValueError("a state is an object")
    return {"inputResponses": inputs.responses, **{key: value for key, value in state.items() if key == _STATE}}


def asking(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a request by a client that can answer questions. Older versions declare that in the handshake."""
    declared = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
    if declared is None:
        return dict(meta)
    return {**meta, types.CLIENT_CAPABILITIES_META_KEY: {**declared, **_CAPABILITIES}}


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The questions of a task: `asked` has the digest of each question by its key. `responses`: the latest answers.

    A task's keys are for one question each. A server that breaks that is asked all the same: another question has
    another digest.
    """

    asked: Mapping[str, str] = field(default_factory=dict)
    responses: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: CallInputs | None, handle: str) -> Self:
        """Parse the task's part of these answers; empty if they are not of the task `handle`."""
        if inputs is None or handle_in(inputs.state) != handle:
            return cls()
        asked = json.loads(inputs.state).get(_ASKED)
        return cls(asked if isinstance(asked, dict) else {}, inputs.responses)

    def new(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the requests that were not asked yet."""
        return {key: request for key, request in requests.items() if self.asked.get(key) != _digest(request)}

    def due(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answers to the questions that the server still waits for."""
        new = self.new(requests)
        return {key: self.responses[key] for key in requests if key not in new and key in self.responses}

    def without(self, responses: Mapping[str, Any]) -> "TaskInputs":
        """Return these inputs without the questions of some answers."""
        return TaskInputs({key: digest for key, digest in self.asked.items() if key not in responses})

    def state_with(self, requests: Mapping[str, Any], handle: str) -> str:
        """Return the state that comes back with the answers to these, too."""
        asked = {**self.asked, **{key: _digest(request) for key, request in requests.items()}}
        return json.dumps({_TASK: handle, _ASKED: asked}, separators=(",", ":"))


def handle_in(state: str) -> str | None:
    """Return the handle of the task that asks with this state; `None` for a state of no task."""
    return _text_in(state, _TASK)


def _digest(request: object) -> str:
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
