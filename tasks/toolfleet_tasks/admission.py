"""Decides whether a call may be published: by limits, the breaker, the backlog and callers' limits.

All of it is asked of Redis at once, where the calls travel by our own transport in the step that publishes them. If Redis
does not answer, nothing is published.
"""

import contextlib
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from redis.exceptions import ResponseError

from toolfleet_registry import metric_families, metrics
from toolfleet_registry.contracts import PublishedCall, ToolResult, Turn
from toolfleet_registry.errors import BegunBefore, NotPublished
from toolfleet_registry.redis.script import Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.limits import limits_of_call, refused_by
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.envelope import call_message, sender
from toolfleet_tasks.messages.ids import is_later_step, kept_seconds
from toolfleet_tasks.messages.signing import Seal, seal_of
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.redis_connection import (
    Part,
    PipelinedConnection,
    RedisConnectionLost,
    ignored,
    is_unknown_script,
    unavailable,
)
from toolfleet_tasks.scripts import CALLER_LIMIT_KEPT_SECONDS, script

ADMIT = script("admission/admit")
"""Returns the caller's limit if it was looked up, otherwise 0, with 'served' before it if the queue had to have a worker. A call that was
admitted before and is sent again gets 0. A refused call gets its reason, and nothing is written:

- ['joined' or 'conflict', the call id that the idempotency key stands for]
- ['unserved', for how many ms the queue has had no worker]
- ['draining', 0]: an operator has the queue take no new calls
- ['open', the ms until the breaker lets a call through, if that is long]
- ['backlog', how many calls wait], ['bytes', how many bytes wait]
- ['share', how many calls the caller may have], ['stored', how many bytes of the caller's results are stored]
- ['ended', the call's id]: it has a record already, and this comes late
- ['failed', why]
"""

ADMIT_MANY = script("admission/admit_many")
"""Returns 0 if all calls were let in, or nothing if none was, and each is to be sent alone, by `ADMIT`."""

ADMIT_LIMITED = script("admission/admit_limited")
"""For calls with limits, as those without must not pay for them. Returns the same as `ADMIT`, or ['limited', which limit is the last to be free again, 1 if that is for the day's, the ms until then,
the server's time (ms)].
"""

ADMIT_TURN = script("admission/admit_turn")
"""For calls that wait for their turn. Returns the same as `ADMIT_LIMITED`, or ['waits'] for a call without a message that is let in and waits."""

RETRACT = script("admission/retract")

LEAVE = script("turns/leave")

_BOUND_SECONDS = 5.0  # a lane's slots are looked up so often: workers note them no more often
_SERVED_SECONDS = 1.0  # a consumed queue is checked so often
_KEEP_SECONDS = 300.0  # far less than the key of a caller's limit lives
_MOST_CALLER_KEYS = 10_000  # of which it is remembered when they were kept
_MOST_TOOLS = 10_000  # of which names are remembered
_NO_KEYS, _NO_BOUND = ("", "", -math.inf), (0, 0.0)
_MARGIN_SECONDS = 30  # a key outlives its call's deadline: clocks differ. The call's record must outlive its key
_FULL = {
    "backlog": "its module is busy, and {count} calls wait for it already",
    "bytes": "its module is busy, and calls of {count} bytes wait for it already",
    "share": "its caller has {count} calls under way already",
    "crowd": "{count} calls wait in its agent already",
    "stored": (
        "its caller has {count} bytes of results that wait to be fetched, and of calls that wait for approvals: fetch the "
        "results, have the approvals decided, or cancel such calls"
    ),
}
_REASONS = {"share": "caller_limit", "crowd": "agent_backlog", "stored": "stored_results"}  # as metrics name them
_BUSY_SECONDS = 1.0  # until a repeat makes sense: a queue or a limit moves within about that time


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a call is not published.

    `joined` and `conflict`: its idempotency key stands for the call `call_id`, which does the same or something else.
    `open`: its module's breaker is open, for `seconds`, and `why`. `backlog`: `count` calls wait for the module,
    `bytes`: calls of `count` bytes do; `caller_limit`: its caller may have `count` calls under way, `stored`: has
    results of `count` bytes that it has not fetched; `crowd`: `count` calls wait in its agent; `draining`: an operator
    has its queue take no new calls. `limited`: it has reached a limit, as `result` says. `unserved`: no worker has
    consumed its queue for `seconds`. `waits`: it is let in, and is published by others when its turn comes.
    """

    kind: Literal[
        "joined",
        "conflict",
        "open",
        "backlog",
        "bytes",
        "share",
        "stored",
        "crowd",
        "limited",
        "unserved",
        "draining",
        "ended",
        "waits",
    ]
    call_id: str = ""
    seconds: float = 0
    count: int = 0
    why: str = ""
    result: ToolResult | None = None


class AdmissionControl:
    """Admits the calls of agents with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = settings.keys
        self.backlog_limit = settings.backlog_limit
        self._backlog_bytes = settings.backlog_bytes
        self._stored_bytes = settings.stored_bytes_per_caller
        self._calls_per_caller = settings.calls_per_caller
        self._least_bound = -2 * settings.worker_concurrency  # without workers; negative: Redis shall look
        self._bounds: dict[str, tuple[int, float]] = {}  # by lane: a caller's limit, and when that was found
        # By tool: its queue, that one's key and notify key, and its module's breaker.
        self._names: dict[str, tuple[str, str, str, str]] = {}
        self._served: dict[str, float] = {}  # by queue: until when it counts as served, without another look
        self._record = settings.keys.call("")
        self._queue_states = settings.keys.queue_states
        self._slots = {lane: self._keys.slots(lane) for lane in ("fast", "slow")}
        # By lane and user: the limit's key, that of stored results, and when the first was last told to live longer.
        self._caller_keys: dict[tuple[str, str | None], tuple[str, str, float]] = {}

    def build_command(
        self,
        call: PublishedCall,
        *,
        now: float,
        message: str = "",
        limit: int = 0,
        needs_worker: bool = False,
        again: bool = False,
    ) -> tuple[Script, tuple[Part, ...]]:
        """Return the script that admits the call, with its number of keys, keys and arguments; with a `message` it is published as well.

        `limit` is `backlog_limit`, if the queue is in the same Redis. `needs_worker`: a worker must consume the queue.
        `again`: the call may have been admitted before.
        """
        caller_limit, stored, kept_at = self._caller_keys.get((call.lane, call.user_id), _NO_KEYS)
        keep_ms, left = 0, call.deadline_at - now
        if now - kept_at >= _KEEP_SECONDS or left >= CALLER_LIMIT_KEPT_SECONDS / 2:
            caller_limit, stored, keep_ms = self._keep_keys(call, now, left)
        # A caller's limit, if it is known; else what it is without workers, negative: Redis shall look.
        bound, found_at = self._bounds.get(call.lane, _NO_BOUND)
        bound = self._calls_per_caller or (bound if now - found_at < _BOUND_SECONDS else 0) or self._least_bound
        queue, queue_key, notify_key, breaker = self._names.get(call.tool_name) or self._names_of(call)
        intent, intent_seconds, intention = self._intent_of(call, now) if call.idempotency_key else (None, 0, "")
        record, admitting, build = self._record + call.call_id, ADMIT, ADMIT.parameters
        if call.terms is not None or call.turn is not None:
            more, admitting = self._limits_of(call), ADMIT_LIMITED
            if call.turn is not None:
                more, admitting = more | self._turn_of(call, call.turn, now, is_kept=not message), ADMIT_TURN
            intent, build = intent or record, partial(admitting.parameters, **more)
        return admitting, build(
            queue=queue_key,
            notify_key=notify_key,
            breaker=breaker,
            caller_limit=caller_limit,
            stored=stored,
            slots=self._slots[call.lane],
            record=record,
            queue_states=record if call.job_id and is_later_step(call.call_id, call.job_id) else self._queue_states,
            intent=intent,
            call_id=call.call_id,
            deadline=call.deadline_at,
            message=message,
            limit=limit,
            bound=bound,
            keep_ms=keep_ms,
            intent_seconds=intent_seconds,
            intention=intention,
            backlog_bytes=self._backlog_bytes,
            stored_bytes_most=self._stored_bytes,
            marks=("w" if needs_worker and now >= self._served.get(queue, 0.0) else "") + ("a" if again else ""),
        )

    def parse_reply(self, call: PublishedCall, reply: Any) -> Refusal | None:
        """Return the script's refusal of the call, or `None` if it was admitted.

        Raises `NotPublished`, or `BegunBefore`.
        """
        if isinstance(reply, list) and reply[0] == b"served":
            self._served[queue_for(call)] = fleet_clock.now() + _SERVED_SECONDS
            reply = reply[1]
        if not isinstance(reply, list):
            if reply:
                self._bounds[call.lane] = (reply, fleet_clock.now())
            return None
        if reply[0] == b"waits":
            return Refusal("waits")
        if reply[0] == b"failed":
            reason = reply[1].decode(errors="replace")
            raise unavailable(reason) or NotPublished(reason)
        if reply[0] == b"ended":
            raise BegunBefore("it has ended already")
        if reply[0] == b"unserved":
            result = fleet_results.unserved(call.tool_name, call.lane)
            return Refusal("unserved", seconds=reply[1] / 1000, result=result)
        if reply[0] == b"draining":
            return Refusal("draining", result=fleet_results.draining(call.tool_name, queue_for(call)))
        if reply[0] == b"limited":
            limits = limits_of_call(call, call.terms, self._settings)
            return Refusal("limited", result=refused_by(call.tool_name, limits, reply[1:]))
        return refusal_in(reply)

    async def ask(
        self,
        connection: PipelinedConnection,
        call: PublishedCall,
        *,
        needs_worker: bool = False,
        again: bool = False,
    ) -> Refusal | None:
        """Admit the call, to be published elsewhere, or return the refusal. Asks until Redis has answered.

        `again`: it may have been admitted before. Raises the errors of `parse_reply`, `ResponseError` if Redis refuses
        it, and `RedisConnectionClosed`.
        """
        now = fleet_clock.now()
        command = self.build_command(call, now=now, needs_worker=needs_worker, again=again)
        return self.parse_reply(call, await _run(connection, *command))

    async def retract(self, connection: PipelinedConnection, call: PublishedCall) -> None:
        """Undo the admission of a call that is surely in no queue.

        Without Redis it counts until its deadline; raises nothing.
        """
        keys, key = self._keys, call.idempotency_key
        parameters = RETRACT.parameters(
            caller_limit=keys.caller_limit(call.lane, call.user_id),
            held=keys.held(call.call_id),
            intent=keys.intent(call.user_id, key) if key else None,
            call_id=call.call_id,
        )
        with contextlib.suppress(RedisConnectionLost, ResponseError):
            await _run(connection, RETRACT, parameters)
            if call.turn is not None:
                names = {"record": keys.call(call.call_id), "base": keys.begin, "call_id": call.call_id}
                await _run(connection, LEAVE, LEAVE.parameters(**names))

    def keep_turn(self, connection: PipelinedConnection, call: PublishedCall, turn: Turn) -> None:
        """Have a call that its agent has published keep its turn as long as it may need: without this, it may lose its place before others."""
        until_ms = math.ceil((call.deadline_at + _MARGIN_SECONDS) * 1000)
        command = "ZADD", self._keys.turns(turn.line), "XX", "GT", until_ms, call.call_id
        connection.send(*command).add_done_callback(ignored)

    def intention_of(self, call: PublishedCall) -> tuple[str, int, str]:
        """Return the key of a call's intention, for how many seconds it is kept, and its value."""
        return self._intent_of(call, fleet_clock.now())

    def _intent_of(self, call: PublishedCall, now: float) -> tuple[str, int, str]:
        kept = kept_seconds(call.idempotency_key, self._settings, call.job_id)
        kept = max(kept, math.ceil(call.deadline_at - now) + _MARGIN_SECONDS)
        return self._keys.intent(call.user_id, call.idempotency_key or ""), kept, f"{_digest_asked(call)} {int(now)}"

    def _limits_of(self, call: PublishedCall) -> dict[str, Any]:
        limits = limits_of_call(call, call.terms, self._settings)
        return {
            "held": self._keys.held(call.call_id),
            "limits": [limit.key for limit in limits],
            "until_ms": math.ceil((call.deadline_at + _MARGIN_SECONDS) * 1000),
            "terms": [limit.args for limit in limits],
        }

    def _turn_of(self, call: PublishedCall, turn: Turn, now: float, *, is_kept: bool) -> dict[str, Any]:
        kept = call_message(call, text=self._seal.seal(call), origin=sender(), now=now) if is_kept else ""
        return {
            "base": self._keys.begin,
            "job_id": call.job_id or "",
            "line": turn.line,
            "turn_limit": turn.limit,
            "line_most": self.backlog_limit,
            "now_ms": round(now * 1000),
            "kept": kept,
        }

    @cached_property
    def _seal(self) -> Seal:
        return seal_of(self._settings)

    def _names_of(self, call: PublishedCall) -> tuple[str, str, str, str]:
        keys, queue = self._keys, queue_for(call)
        if len(self._names) >= _MOST_TOOLS:
            self._names.clear()
        names = queue, keys.queue(queue), keys.notify_key(queue), keys.breaker(_module(call))
        self._names[call.tool_name] = names
        return names

    def _keep_keys(self, call: PublishedCall, now: float, left: float) -> tuple[str, str, int]:
        """Return the keys of the caller's limit and stored results, and for how many ms the first must live: asked for once in a while only."""
        who = (call.lane, call.user_id)
        name, stored, _ = self._caller_keys.get(who) or ("", "", 0.0)
        if len(self._caller_keys) >= _MOST_CALLER_KEYS:
            self._caller_keys.clear()
        name, stored = name or self._keys.caller_limit(*who), stored or self._keys.stored(call.user_id)
        self._caller_keys[who] = (name, stored, now)
        return name, stored, math.ceil(max(left, CALLER_LIMIT_KEPT_SECONDS) * 1000)


def refusal_in(reply: Any) -> Refusal | None:
    """Parse the refusal of `ADMIT` and `PUBLISH`."""
    if not isinstance(reply, list):
        return None
    kind, value = reply[0].decode(), reply[1]
    if kind in {"joined", "conflict"}:
        return Refusal(kind, call_id=value.decode())
    if kind == "open":
        return Refusal("open", seconds=value / 1000, why=reply[2].decode())
    return Refusal(kind, count=value)


def refused(tool_name: str, refusal: Refusal) -> ToolResult:
    """Return the result of a call that is not published, and not joined to another."""
    if (calls := metrics.calls()) is not None:
        calls.recorder.count(metric_families.ADMISSION_REFUSALS, (_REASONS.get(refusal.kind, refusal.kind),))
    if refusal.result is not None:
        return refusal.result
    if refusal.kind == "open":
        return fleet_results.module_away(tool_name, refusal.seconds, why=refusal.why)
    if refusal.kind == "conflict":
        text = "Tool call refused: its idempotency key stands for a call with another tool, other arguments or another version."
        return ToolResult.refused(tool_name, "conflict", text)
    return _busy(tool_name, _FULL.get(refusal.kind, _FULL["share"]).format(count=refusal.count))


def digest_of(call: PublishedCall) -> str:
    """Return a digest that is equal for calls with the same effect: SHA-256 of tool, arguments in any order, and the version if one is named."""
    asked = [call.tool_name, call.arguments, *([] if call.tool_version is None else [call.tool_version])]
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_asked(call: PublishedCall) -> str:
    """Return the digest of the agent's own request: an approver may have edited the call, and a repeat joins it all the same."""
    edited = None if call.approval is None else call.approval.asked
    return edited or digest_of(call)


def _busy(tool_name: str, reason: str) -> ToolResult:
    text = f"Tool call refused: {reason}."
    result = ToolResult.failed(tool_name, "busy", text, effect_state="none", retryable=True)
    return result.model_copy(update={"retry_after_seconds": _BUSY_SECONDS})


def _module(call: PublishedCall) -> str:
    return call.tool_name.partition(".")[0]


async def _run(connection: PipelinedConnection, script: Script, rest: tuple[Part, ...]) -> Any:
    try:
        return await _sent(connection, "EVALSHA", script.digest, *rest)
    except ResponseError as exc:
        if not is_unknown_script(exc):
            raise
    return await _sent(connection, "EVAL", script.text, *rest)


async def _sent(connection: PipelinedConnection, *command: Part) -> Any:
    """Send a command and return the answer, over any connection; a refusal is returned at once, for the caller does not wait long."""
    while True:
        try:
            return await connection.send(*command)
        except RedisConnectionLost:
            if connection.is_closed:
                raise
            await connection.connected()
