"""Writes the request that carries a call to its module, and what of its head is the same each time."""

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from toolfleet_registry.contracts import PublishedCall, SealedCall
from toolfleet_registry.contracts.attempts import UNBOUNDED, Lease
from toolfleet_registry.redis.urls import HTTP_PORTS, PlainUrl, read_url
from toolfleet_registry.system import fleet_clock, randomness

if TYPE_CHECKING:
    import httpx

_STEADY_SECONDS = 0.25  # a clock that differs by more from the monotonic one was set

# What is the same for every call.
COMMON_HEADERS = {
    "Accept": "application/json, application/x-ndjson",  # the second with progress in it
    "Accept-Encoding": "identity",  # unpacking costs the loop more than the bytes cost a local network
    "Content-Type": "application/json",
    "User-Agent": "toolfleet",
}

PROBE_HEADERS = {"Accept": "*/*", "User-Agent": "toolfleet"}
"""The headers of a request that only checks that the module is reachable."""

CallerToken = Callable[[PublishedCall], str]
"""Says who makes a call, in words that its module can verify."""

_JSON = json.JSONEncoder(allow_nan=False)


class Origin(NamedTuple):
    """A server: requests to the same one can share its connections."""

    host: str
    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A URL to ask. `head` is the start of each request to it: its line, `Host`, and the fields that never change."""

    origin: Origin
    head: bytes = field(repr=False)  # there may be a token in it

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], *, method: str = "POST") -> "Target":
        """Return the target at `url`. A user and a password in it are sent unless `headers` have an `Authorization`."""
        return cls._at(read_url(url), headers, method)  # as discovery has it: both must come to the same place

    @classmethod
    def _at(cls, url: "PlainUrl | httpx.URL", headers: Mapping[str, str], method: str) -> "Target":
        host, port = url.raw_host.decode(), url.port or HTTP_PORTS[url.scheme]
        netloc = url.netloc.decode().replace(host, host.rstrip("."), 1)  # the dot is for name servers only
        has_authorization = "authorization" in {name.lower() for name in headers}
        credentials = {} if has_authorization else _authorization(url.username, url.password)
        head = _head(method, url.raw_path.decode(), {"Host": netloc, **credentials, **headers})
        return cls(Origin(host, port, url.scheme == "https"), head)


def _head(method: str, path: str, fields: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _authorization(username: str, password: str) -> dict[str, str]:
    if not (username or password):
        return {}
    credentials = f"{username}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}


class Sender:
    """The clock by which this process tells modules the time. Once it was set it is another sender's: its times do not compare."""

    def __init__(self) -> None:
        self._name = ""
        self._offset = math.inf

    def fields(self, lease: Lease) -> bytes:
        """Return the fields of a request that is about to be sent; only the first for a call that no other worker can have."""
        left, now = lease.seconds_left(), fleet_clock.now()
        if left == math.inf:
            return b"Toolfleet-Attempt: %d\r\n" % lease.attempt
        offset = now - fleet_clock.suspend_aware()
        if not -_STEADY_SECONDS <= offset - self._offset <= _STEADY_SECONDS:
            self._name, self._offset = randomness.uuid4().hex, offset
        return (
            f"Toolfleet-Attempt: {lease.attempt}\r\n"
            f"Toolfleet-Begin-By: {int((now + left) * 1000)};now={int(now * 1000)};sender={self._name}\r\n"
        ).encode()


@dataclass(slots=True)
class ModuleRequest:
    """A request to `origin`, on a `lease`. `fields` are all that can be said of it before it is sent; `runs`: whether it is an attempt.

    `connect_seconds`: how long a connection may take, if that is less than usual.
    """

    origin: Origin
    fields: bytes = field(repr=False)  # there are tokens in it
    body: bytes
    lease: Lease = UNBOUNDED
    runs: bool = False
    connect_seconds: float = math.inf

    def head(self) -> bytes:
        """Return the bytes before the body, of a request that is sent now."""
        return self.fields + (_SENDER.fields(self.lease) if self.runs else b"") + b"\r\n"


def build_request(
    call: PublishedCall,
    target: Target,
    *,
    seconds: float,
    lease: Lease = UNBOUNDED,
    caller_token: CallerToken | None = None,
) -> ModuleRequest:
    """Build the request: `{tool_name, arguments, user_id, context}` as JSON; without `user_id` and `context` for a call that has none.

    `takes_input: true` tells the module that it may ask; `inputs: {round, responses, state}` are its last answers.
    `log_level` is of a caller that wants log messages.

    The same call id goes with every attempt, so that a module can detect a repeat; the time left lets it give up when
    we do; a caller's token lets it trust the user id; the fields written at sending let it refuse a request that comes
    too late. Raises `ValueError`, with a reason that can be shown, if the arguments are not JSON or the call's id would
    end its header.
    """
    request = request_about(call, target, _dump(call), seconds=seconds, lease=lease, caller_token=caller_token)
    request.runs = True
    return request


def request_about(
    call: PublishedCall, target: Target, body: bytes, *, seconds: float, lease: Lease, caller_token: CallerToken | None
) -> ModuleRequest:
    """Return a request with the headers that each one about a call carries. Raises `ValueError` as `build_request` does."""
    token = "" if caller_token is None else f"Toolfleet-Caller: {caller_token(call)}\r\n"
    if "\n" in call.call_id or "\r" in call.call_id or "\0" in call.call_id:
        raise ValueError("the call's id must not have a line break or a null byte in it")
    fields = (
        f"Idempotency-Key: {call.call_id}\r\nToolfleet-Time-Left-Ms: {int(seconds * 1000) if seconds > 0 else 0}\r\n{token}"
        f"Content-Length: {len(body)}\r\n"
    )
    return ModuleRequest(target.origin, target.head + fields.encode(), body, lease)


def inputs_said(call: PublishedCall) -> dict[str, Any] | None:
    """Return the answers to the module's last question; `None` before any."""
    inputs = call.inputs
    return None if inputs is None else {"round": inputs.round, "responses": inputs.responses, "state": inputs.state}


def _dump(call: PublishedCall) -> bytes:
    sealed = call.unparsed if isinstance(call, SealedCall) else None
    body: dict[str, Any] = {"tool_name": call.tool_name}
    if sealed is None:
        body["arguments"] = call.arguments
    if call.user_id is not None:
        body["user_id"] = call.user_id
    if call.context is not None:
        body["context"] = call.context.model_dump(mode="json", exclude_defaults=True)
    if call.takes_input:
        body["takes_input"] = True
    if call.log_level is not None:
        body["log_level"] = call.log_level
    if call.inputs is not None:
        body["inputs"] = inputs_said(call)
    try:
        text = to_json(body, ensure_ascii=True)
    except ValueError:  # half a surrogate pair, a circle, or what is no JSON
        text = b"NaN"
    if b"NaN" in text or b"Infinity" in text:  # pydantic writes these as they are
        return _dump_slowly({**body, "arguments": call.arguments})
    # First: what a signer may have written into them cannot replace what stands behind them.
    return text if sealed is None else b'{"arguments":%b,%b' % (sealed.encode(), text[1:])


def _dump_slowly(body: dict[str, Any]) -> bytes:
    try:
        return _JSON.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"the arguments are not JSON: {exc}") from exc


_SENDER = Sender()
