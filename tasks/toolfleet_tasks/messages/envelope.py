"""Writes Celery's messages as they lie in Redis (protocol 2 in kombu's JSON envelope), and opens the calls in them.

Nearly every call stands by itself, and its message says so in words that never change.

Kombu takes several hundred microseconds for one, this some ten. A test compares both, key by key.

A call with arguments that stand apart has a form of its own, for our own transport only: one JSON object with `headers` and, as
its last member, the `sealed` call.
"""

import functools
import json
import os
import re
import socket
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pydantic_core import from_json

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.errors import MessageTooLarge
from toolfleet_registry.policy.call_faults import fault_in_names
from toolfleet_registry.schemas.arguments import size_fault, size_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import SigningSettings
from toolfleet_registry.spans import TRACEPARENT, TRACESTATE, TraceContext, carried
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_tasks.messages.ids import is_wake_key
from toolfleet_tasks.messages.signing import APART, Signatures
from toolfleet_tasks.queues import nets_around, queue_for

_BESIDE_ARGUMENTS = 2**18  # characters: thousands of modules may be named for a caller

FOLLOWERS = ("callbacks", "errbacks", "chain", "chord")
"""Under which names a message says, in its body, what follows its call. They are Celery's."""

NOTHING_FOLLOWS = ', {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
"""How the body of a call by itself ends, behind its arguments."""

_NOTHING_FOLLOWS = NOTHING_FOLLOWS.encode()

_NOT_OURS = frozenset({*FOLLOWERS, "compression"})  # headers of messages that others have written
_KIND = ("application/json", "utf-8", "base64")

DIED = "toolfleet_died"
"""A header: the names of the workers that have died with the call, as `RESTORE` of `transport/scripts.py` has noted them."""

_NAME = "[0-9a-f]+"

TASK = "toolfleet.execute"
"""The task that runs a call."""

BEGIN, BEGIN_APART = "begin", "claim"
"""Names what an envelope says of a call that a worker may claim as it takes its message."""

_APART_MEMBER = ',"sealed":'
_APART_MARK = f"{_APART_MEMBER}{APART}".encode()  # in a text it would have backslashes
_NONE_FOLLOW: Mapping[str, Any] = dict.fromkeys(FOLLOWERS)

REVOCATIONS = "celery.pidbox"
"""The exchange on which every worker hears remote control."""

_FOUND_DEAD_SECONDS = 120.0  # by then RabbitMQ has long delivered again what a worker held that died at a deadline

_LONGEST_SECONDS = 10 * 365 * 86_400.0  # RabbitMQ takes none that shall live longer

# Straight into the queue. With a name, kombu would look for bindings when it puts a lost message back.
_EXCHANGE = ""

_USUAL_CHARACTERS = 2**14  # of a sealed call
_NAMES_SHOWN, _SHOWN = 100, 2_000  # names, and characters of all of them: they travel with the message, in its headers

_NO_CALL = ""  # the calls are in the text

_HARMLESS = frozenset({"read", "idempotent"})

_RECORD_MARGIN_SECONDS = 60  # a record outlives its call's deadline: clocks differ


@dataclass(frozen=True, slots=True)
class Links:
    """A call's place in Celery's canvas: what follows it, in Celery's own form, and the group that it belongs to."""

    after: Mapping[str, Any]
    group: str | None
    group_index: int | None
    root_id: str
    parent_id: str | None

    def headers(self) -> list[str]:
        """Return the headers `group`, `group_index`, `root_id` and `parent_id`, as JSON."""
        return [json.dumps(value) for value in (self.group, self.group_index, self.root_id, self.parent_id)]

    def body_end(self) -> str:
        """Return the end of the body, after the call's arguments."""
        return f", {{}}, {json.dumps(self.after)}]"


def text_alone(message: Mapping[str, Any]) -> str | None:
    """Return the sealed call of a message in our own form, of a call by itself; `None` for any other message."""
    headers, properties, body = message["headers"], message["properties"], message["body"]
    if headers.get("group") is not None or not _NOT_OURS.isdisjoint(headers):
        return None
    if isinstance(body, ParsedBody):
        return str(body[0][0])
    kind = message.get("content-type"), message.get("content-encoding"), properties.get("body_encoding")
    if kind != _KIND:
        return None
    try:
        body = a2b_base64(body)
        # One string of ours: no objects to look for, as kombu's decoder does.
        args = from_json(body[1 : -len(_NOTHING_FOLLOWS)]) if body.endswith(_NOTHING_FOLLOWS) else None
    except ValueError:
        return None
    return args[0] if isinstance(args, list) and len(args) == 1 and isinstance(args[0], str) else None


def deaths_of(request: object) -> tuple[str, ...]:
    """Return the workers that have died with a call, from its task's request."""
    died = getattr(request, DIED, None)
    return tuple(re.findall(_NAME, died)) if isinstance(died, str) else ()


def with_deaths(item: str, died: Iterable[str]) -> str:
    """Return a message as it is put into a queue again, with the workers that have died with its call."""
    names = " ".join(died)
    return f'{{"redelivered":true,"died":"{names}",{item[1:]}' if names else item


def sender() -> str:
    """Return this process's name as Celery's clients have it: `gen<pid>@<host>`."""
    return f"gen{os.getpid()}@{socket.gethostname()}"


def args_shown(arguments: Collection[str]) -> str:
    """Return the text about a call for Flower and the logs: the names of its arguments, of very many the first, and never their values."""
    names = sorted(islice(arguments, _NAMES_SHOWN))
    text = "=…, ".join([*names, ""])[:-2]
    is_whole = len(names) == len(arguments) and len(text) <= _SHOWN
    return f"({text})" if is_whole else f"({text[:_SHOWN]}, …)"


@dataclass(frozen=True, slots=True)
class Label:
    """The metadata of a call's message, for Celery and Flower. Limits are seconds, soft before hard.

    `trace`: the call's place in a trace, if it has one.
    """

    call_id: str
    shadow: str
    args_shown: str
    queue: str
    limits: tuple[float | None, float | None]
    links: Links | None = None
    trace: TraceContext | None = None


def seconds_kept(call: PublishedCall) -> float:
    """Return how long a broker that drops old messages, RabbitMQ, keeps a call's.

    Not only until its deadline: the message of a worker that has died comes back then, and the worker that gets it ends
    the call.
    """
    return min(max(call.deadline_at - fleet_clock.now(), 0) + _FOUND_DEAD_SECONDS, _LONGEST_SECONDS)


def time_after(delay: float) -> datetime:
    """Return the time in so many seconds, by the fleet's clock; see `FleetRequest.eta`."""
    return fleet_clock.utc_now() + timedelta(seconds=delay)


def call_message(call: PublishedCall, *, text: str, origin: str, now: float) -> str:
    """Return a call's message for its queue; `text` is the sealed call, `now` the fleet's time."""
    if is_apart := text.startswith(APART):
        if len(text) <= _USUAL_CHARACTERS:
            headers = _headers_of(call.tool_name, tuple(call.arguments), call.limit_seconds, origin)
        else:
            headers = _headers_apart(
                call.tool_name, args_shown(call.arguments), nets_around(call.limit_seconds), origin
            )
        written = _message_apart(text, call.call_id, headers, carried())
    else:
        about = args_shown(call.arguments), queue_for(call), nets_around(call.limit_seconds)
        written = message(text, Label(call.call_id, call.tool_name, *about, trace=carried()), origin=origin)
    if not begins_when_taken(call):
        return written
    # For `RESERVE` of `transport/scripts.py`: how long a claim's record lives, the effect, and the id. Workers that do not
    # read the second form claim no call of which they could not give the claim back.
    seconds = call.deadline_at - now + _RECORD_MARGIN_SECONDS
    if not _RECORD_MARGIN_SECONDS <= seconds <= _LONGEST_SECONDS:
        seconds = _LONGEST_SECONDS if seconds > _LONGEST_SECONDS else _RECORD_MARGIN_SECONDS
    begin = _quoted(f"{seconds:.0f} {call.effect} {call.call_id}")
    return f'{{"{BEGIN_APART if is_apart else BEGIN}":{begin},{written[1:]}'


def begins_when_taken(call: PublishedCall) -> bool:
    """Return whether a worker may claim the call as it takes its message, before it has read it.

    It may die before it has started it, which leaves no trace: so only if one attempt more does no harm. And only if
    its record lives as long as most do, for that is what the worker knows.
    """
    is_plain = call.approval is None and call.inputs is None and call.retry is None and call.turn is None
    is_plain = is_plain and not (call.idempotency_key and is_wake_key(call.idempotency_key))
    return is_plain and call.effect in _HARMLESS and call.call_id.isascii()


def message(
    text: str, label: Label, *, origin: str, reply_to: str = "", retries: int = 0, eta: str | None = None
) -> str:
    """Build any message of a call's task, or that of its retry: `retries` 1, not to be started before `eta` (ISO 8601, UTC)."""
    if text.startswith(APART):
        headers = _headers_apart(label.shadow, label.args_shown, label.limits, origin)
        return _message_apart(text, label.call_id, headers, label.trace, retries, eta)
    call_id, links = _quoted(label.call_id), label.links
    group, index, root_id, parent_id = ("null", "null", call_id, "null") if links is None else links.headers()
    # One that is published again may be twice in a queue, and a tag must name one message only.
    tag = call_id if eta is None else f'"{randomness.uuid4()}"'
    headers, properties = _frame(label.shadow, label.args_shown, label.queue, label.limits, origin, reply_to)
    return (
        f'{{"body":"{_body(text, links)}",{headers},"id":{call_id},"eta":{"null" if eta is None else _quoted(eta)},'
        f'"group":{group},"group_index":{index},"retries":{retries},"root_id":{root_id},"parent_id":{parent_id}'
        f'{"" if label.trace is None else _trace(label.trace)}}},{properties},"correlation_id":{call_id},"delivery_tag":{tag}}}}}'
    )


def _message_apart(
    text: str, call_id: str, headers: str, trace: TraceContext | None, retries: int = 0, eta: str | None = None
) -> str:
    """Build the message of a call with arguments that stand apart: one JSON object, with the sealed call as its last member."""
    traced, starts = "" if trace is None else _trace(trace), "" if eta is None else f',"eta":{_quoted(eta)}'
    return (
        f'{{"headers":{{"task":"{TASK}",{headers},'
        f'"id":{_quoted(call_id)},"retries":{retries}{starts}{traced}}}{_APART_MEMBER}{text}}}'
    )


@functools.lru_cache(maxsize=512)  # as below; with the names in a message of the usual size
def _headers_of(tool_name: str, names: tuple[str, ...], limit_seconds: float, origin: str) -> str:
    return _headers_apart(tool_name, args_shown(names), nets_around(limit_seconds), origin)


def _headers_apart(shadow: str, args_shown: str, limits: tuple[float | None, float | None], origin: str) -> str:
    return (
        f'"shadow":{_quoted(shadow)},"timelimit":[{_limit(limits[1])},{_limit(limits[0])}],'
        f'"argsrepr":{_quoted(args_shown)},"origin":{_quoted(origin)}'
    )


class ParsedBody(list[Any]):
    """A decoded body of a single call's message, as Celery passes it on. No sender can make one."""


def parsed(item: bytes, queue: str) -> Any:
    """Parse a message of a queue; of one with a call and arguments apart the sealed call stays a text, in a body that is parsed.

    Raises `ValueError`, and `LookupError` or `TypeError` for other JSON.
    """
    outer, apart, text = item.partition(_APART_MARK)
    if not apart:
        # Not kombu's decoder, which looks for objects in every dictionary: an envelope has none, and a good part of a
        # call's time went there. It shares the names in them, with which thousands of calls wait.
        return from_json(item)
    message = from_json(outer + b"}")
    headers = message["headers"]
    headers["root_id"] = call_id = headers["id"]
    message["properties"] = {"correlation_id": call_id, "delivery_info": {"exchange": _EXCHANGE, "routing_key": queue}}
    message["content-encoding"] = "binary"  # without a content type: decoded already, for kombu and for Celery
    message["body"] = ParsedBody(([APART + text[:-1].decode("ascii")], {}, _NONE_FOLLOW))
    return message


@functools.lru_cache(maxsize=512)  # messages of one tool differ in little: writing the rest again takes 2 us
def _frame(
    shadow: str, args_shown: str, queue: str, limits: tuple[float | None, float | None], origin: str, reply_to: str
) -> tuple[str, str]:
    """Return the part that all messages of a tool share: the beginnings of their headers, and of their properties."""
    soft_limit, hard_limit = limits
    headers = (
        f'"content-encoding":"utf-8","content-type":"application/json",'
        f'"headers":{{"lang":"py","task":"{TASK}","shadow":{_quoted(shadow)},"expires":null,'
        f'"timelimit":[{_limit(hard_limit)},{_limit(soft_limit)}],"argsrepr":{_quoted(args_shown)},"kwargsrepr":"{{}}",'
        f'"origin":{_quoted(origin)},"ignore_result":null,"replaced_task_nesting":0,"stamped_headers":null,"stamps":{{}}'
    )
    properties = (
        f'"properties":{{"reply_to":{_quoted(reply_to)},"delivery_mode":2,'
        f'"delivery_info":{{"exchange":"{_EXCHANGE}","routing_key":{_quoted(queue)}}},"priority":0,"body_encoding":"base64"'
    )
    return headers, properties


def control_message(
    task: str, args: Sequence[str], queue: str, *, origin: str, task_id: str | None = None, expires: str | None = None
) -> str:
    """Build a message of one of our own tasks, with ids as arguments.

    Its limits are those that the task is registered with.

    `expires` (ISO 8601, UTC): from then on no worker starts it.
    """
    task_id = task_id or str(randomness.uuid4())
    unset = ("shadow", "eta", "expires", "group", "group_index", "parent_id", "stamped_headers")
    headers: dict[str, Any] = dict.fromkeys(unset)
    headers["expires"] = expires
    headers |= {"lang": "py", "task": task, "id": task_id, "root_id": task_id, "retries": 0, "timelimit": [None, None]}
    headers |= {"argsrepr": repr(tuple(args)), "kwargsrepr": "{}", "origin": origin, "ignore_result": True}
    headers |= {"replaced_task_nesting": 0, "stamps": {}}
    body = [list(args), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    properties: dict[str, Any] = {"correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0}
    properties |= {"delivery_info": {"exchange": _EXCHANGE, "routing_key": queue}, "body_encoding": "base64"}
    properties["delivery_tag"] = task_id
    message = {
        "body": b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(message)


def revocation(call_ids: Iterable[str], settings: SigningSettings | None) -> dict[str, Any]:
    """Return the arguments of Celery's order `revoke`: every worker drops or interrupts these calls.

    Signed if there is a key.
    """
    order: dict[str, Any] = {"task_id": list(call_ids), "terminate": True, "signal": "SIGTERM"}
    signature = Signatures(settings, "revocation").of(_NO_CALL, json.dumps(order, sort_keys=True))
    return {**order, "signature": signature} if signature else order


def is_signed_revocation(arguments: Mapping[str, Any], settings: SigningSettings) -> bool:
    """Return whether these arguments of the command `revoke` are signed with one of the keys."""
    order = {name: value for name, value in arguments.items() if name != "signature"}
    try:
        text = json.dumps(order, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # what kombu's decoder has made of something else
        return False
    return Signatures(settings, "revocation").verify(_NO_CALL, text, arguments.get("signature"))


def revocation_message(call_ids: Iterable[str], settings: SigningSettings | None = None) -> str:
    """Return the order `revocation` as a message."""
    order = {
        "method": "revoke",
        "arguments": revocation(call_ids, settings),
        "destination": None,
        "pattern": None,
        "matcher": None,
    }
    message = {
        "body": b64encode(json.dumps(order).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"clock": 1, "expires": 0},
        "properties": {
            "delivery_mode": 2,
            "delivery_info": {"exchange": REVOCATIONS, "routing_key": ""},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(randomness.uuid4()),
        },
    }
    return json.dumps(message)


def revocation_topic(database: int) -> str:
    """Return the pub/sub channel of the order, without a prefix: kombu has one for each of Redis's databases."""
    return f"/{database}.{REVOCATIONS}"


def _limit(seconds: float | None) -> str:
    return "null" if seconds is None else repr(seconds)


def _trace(trace: TraceContext) -> str:
    """Return its headers, as members that follow others."""
    state = f',"{TRACESTATE}":{_quoted(trace.tracestate)}' if trace.tracestate else ""
    return f',"{TRACEPARENT}":"{trace.traceparent}"{state}'


def _body(text: str, links: Links | None) -> str:
    end = NOTHING_FOLLOWS if links is None else links.body_end()
    return b64encode(f"[[{_quoted(text)}]{end}".encode()).decode()


def opened(message: object, app: Any, *, task_id: str) -> PublishedCall:
    """Open the call that was sealed for `task_id`, as `Seal.open` does; `app` has the seal and the settings.

    Raises also `MessageTooLarge`, before a message is parsed that is too long.
    """
    settings: Settings = app.settings
    most = settings.max_arguments_bytes
    if isinstance(message, str) and len(message) > most + _BESIDE_ARGUMENTS:
        raise MessageTooLarge(f"Arguments have more than the {most} bytes as JSON that can be sent.")
    call: PublishedCall = app.seal.open(message, task_id=task_id)
    _refuse_large(call, str(message), most)
    return call


def usual_text(text: str, app: Any, *, task_id: str) -> str:
    """Return a sealed call in the form that agents of any version read. Raises as `opened` does."""
    usual: str = app.seal.seal(opened(text, app, task_id=task_id)) if text.startswith(APART) else text
    return usual


def size_fault_with(context: ToolContext | None, arguments: dict[str, Any], *, most: int) -> str | None:
    """Return why a call with this context is too large; `None` for at most `most` bytes of both, and for a call without one."""
    if context is None:
        return None
    size = size_of(arguments) + size_of(context.model_dump(mode="json", exclude_defaults=True))
    return None if size <= most else f"Arguments and context have {size} bytes as JSON; at most {most} can be sent."


def _refuse_large(call: PublishedCall, message: str, most: int) -> None:
    """Raise `MessageTooLarge` for a call with too large arguments, or with a too long user, intention or version."""
    fault = fault_in_names(
        user_ids=(call.user_id, call.caller.user_id),
        idempotency_key=call.idempotency_key,
        tool_version=call.tool_version,
    )
    if fault is None and len(message) > most:
        fault = size_fault(call.arguments, most=most) or size_fault_with(call.context, call.arguments, most=most)
    if fault is not None:
        raise MessageTooLarge(fault)
