"""Defines traces: the names in them, their contexts, and whether this process has any."""

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import blake2b
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from toolfleet_registry.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from toolfleet_registry import otel_tracing

    Tracing: TypeAlias = otel_tracing.Tracing
else:
    Tracing = object  # a name for annotations: its module loads OpenTelemetry

_log = logging.getLogger("toolfleet.traces")

Kind = Literal["internal", "server", "client", "producer", "consumer"]
"""What a span is to others: OpenTelemetry's span kinds."""

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions whose names these are."""

# Messaging.
MESSAGING_SYSTEM: Final = "messaging.system"

MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"

MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"

MESSAGING_DESTINATION: Final = "messaging.destination.name"

MESSAGING_TEMPLATE: Final = "messaging.destination.template"

MESSAGING_MESSAGE_ID: Final = "messaging.message.id"

MESSAGING_CLIENT_ID: Final = "messaging.client.id"

# GenAI.
GEN_AI_OPERATION: Final = "gen_ai.operation.name"

GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"

GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"

GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"

GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"

GEN_AI_ARGUMENTS: Final = "gen_ai.tool.call.arguments"

GEN_AI_RESULT: Final = "gen_ai.tool.call.result"

# MCP and JSON-RPC.
MCP_METHOD: Final = "mcp.method.name"

MCP_PROTOCOL_VERSION: Final = "mcp.protocol.version"

MCP_SESSION_ID: Final = "mcp.session.id"

JSONRPC_REQUEST_ID: Final = "jsonrpc.request.id"

RPC_STATUS_CODE: Final = "rpc.response.status_code"

NETWORK_TRANSPORT: Final = "network.transport"

# HTTP, and what all have.
HTTP_METHOD: Final = "http.request.method"

HTTP_STATUS: Final = "http.response.status_code"

HTTP_ROUTE: Final = "http.route"

URL_FULL: Final = "url.full"

URL_PATH: Final = "url.path"

URL_SCHEME: Final = "url.scheme"

SERVER_ADDRESS: Final = "server.address"

SERVER_PORT: Final = "server.port"

ERROR_TYPE: Final = "error.type"

# The fleet's own.
ATTEMPT: Final = "toolfleet.attempt"

CALL_ID: Final = "toolfleet.call_id"

EFFECT_STATE: Final = "toolfleet.effect_state"

EVENT: Final = "toolfleet.event"

FENCING_TOKEN: Final = "toolfleet.fencing_token"  # noqa: S105 - an attribute's name

GRANTED: Final = "toolfleet.granted"

JOB_ID: Final = "toolfleet.job_id"

LANE: Final = "toolfleet.lane"

LINKED_AS: Final = "toolfleet.linked_as"

QUEUED_SECONDS: Final = "toolfleet.queued_seconds"

EXECUTE_TOOL: Final = "execute_tool"

TOOLS_CALL: Final = "tools/call"

OTHER_ERROR: Final = "_OTHER"
"""The type of an error for which there is no better word."""

Value: TypeAlias = str | bool | int | float
"""What an attribute may be."""

TRACEPARENT: Final = "traceparent"

TRACESTATE: Final = "tracestate"

_PARENT = r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"

_LONGEST_STATE = 512  # characters, which W3C has everybody pass on at least

_STATE = r"[ -~]*"  # printable: it goes into headers as it is

_SAMPLED = frozenset("13579bdf")

SWITCH: Final = "TOOLFLEET_TRACES"
"""The variable of the setting `traces`, for modules, which read no settings."""

_made = list["Tracing"]()  # what this process has made for itself: once, however many fleets are opened in it

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def process_name(queue: str) -> str:
    """Return the span of one attempt in a worker."""
    return f"process {queue}"


def execute_name(tool: str) -> str:
    """Return the span of a tool that is run."""
    return f"{EXECUTE_TOOL} {tool}"


class TraceContext(NamedTuple):
    """A span of a trace: `00-{trace id}-{span id}-{flags}`, and the tracing systems' own state; "" for none."""

    traceparent: str
    tracestate: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded anywhere."""
        return self.traceparent[-1] in _SAMPLED

    @property
    def trace_id(self) -> int:
        """The trace's number."""
        return int(self.traceparent[3:35], 16)

    @property
    def span_id(self) -> int:
        """The span's number."""
        return int(self.traceparent[36:52], 16)

    @property
    def headers(self) -> dict[str, str]:
        """As headers of a message or a request, or as members of MCP's `_meta`."""
        said = {TRACEPARENT: self.traceparent}
        return {**said, TRACESTATE: self.tracestate} if self.tracestate else said

    @property
    def fields(self) -> bytes:
        """As lines of a request's head."""
        state = f"{TRACESTATE}: {self.tracestate}\r\n" if self.tracestate else ""
        return f"{TRACEPARENT}: {self.traceparent}\r\n{state}".encode()

    def at(self, span_id: int) -> "TraceContext":
        """Return another span of the same trace."""
        return TraceContext(f"{self.traceparent[:36]}{span_id:016x}{self.traceparent[52:]}", self.tracestate)


class OpenSpan:
    """A span that is recorded, until its end, by OpenTelemetry. Later additions are ignored."""

    __slots__ = ("_context", "span")

    def __init__(self, span: "Span") -> None:
        self.span = span
        self._context: TraceContext | None = None

    @property
    def context(self) -> TraceContext:
        """The span's place in its trace."""
        if self._context is None:
            self._context = text_of(self.span.get_span_context())
        return self._context

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Add attributes; those that are `None` are left out."""
        self.span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def rename(self, name: str) -> None:
        """Give it another name."""
        self.span.update_name(name)

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word of few."""
        from opentelemetry.trace.status import Status, StatusCode  # loaded where there are spans

        self.span.set_attribute(ERROR_TYPE, error_type)
        self.span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """End the span."""
        self.span.end()


Started: TypeAlias = OpenSpan | TraceContext
"""A span, or, if it is not recorded, the place in the trace that is to be passed on."""


class Unrecorded(TraceContext):
    """A place at which this process records nothing, nor below it: once that is known, no sampler is asked again."""

    __slots__ = ()


Drawn: TypeAlias = Unrecorded | int
"""A new trace: its place if it is not recorded, else its number; 0: only its first span can decide."""


def context_of_span(started: Started) -> TraceContext:
    """Return the context to be passed on."""
    return started if isinstance(started, TraceContext) else started.context


def text_of(found: "SpanContext") -> TraceContext:
    """Return OpenTelemetry's context as ours."""
    text = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return TraceContext(text, found.trace_state.to_header() if found.trace_state else "")


def context_here() -> TraceContext | None:
    """Return the place in a trace of the running code, or of messages sent here and now; `None`: in no trace."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace  # it is there already

        found = trace.get_current_span().get_span_context()
        if found.is_valid:
            return text_of(found)
    return carried()


def read_context(said: Mapping[str, object]) -> TraceContext | None:
    """Return the context in these headers; `None` if there is none, or W3C does not allow it."""
    return context_of(said.get(TRACEPARENT), said.get(TRACESTATE))


def context_of(traceparent: object, tracestate: object) -> TraceContext | None:
    """Return the context of the two values; see `read_context`."""
    if not isinstance(traceparent, str) or not re.fullmatch(_PARENT, traceparent):
        return None
    is_fine = isinstance(tracestate, str) and len(tracestate) <= _LONGEST_STATE and re.fullmatch(_STATE, tracestate)
    return tuple.__new__(TraceContext, (traceparent, str(tracestate) if is_fine else ""))


def attempt_span_id(call_id: str, attempt: int) -> int:
    """Return the span id of a call's attempt: known to every process, also if the attempt's worker has died."""
    return int.from_bytes(blake2b(f"{attempt} {call_id}".encode(), digest_size=8).digest()) or 1


def round_trace_id(job_id: str, first_step: int) -> int:
    """Return the trace id of a round of a recurring job: known to each of its steps, in any worker."""
    return int.from_bytes(blake2b(f"{first_step} {job_id}".encode(), digest_size=16).digest()) or 1


_carried: ContextVar[TraceContext | None] = ContextVar("toolfleet_trace", default=None)

carried = _carried.get
"""Return the place in a trace that goes with whatever is sent here and now; `None`: none does."""

carry, drop = _carried.set, _carried.reset
"""Have a place go with what is sent from now on, and no more, by what `carry` has returned: `carrying`, in a third of its time."""


def carrying(context: TraceContext | None) -> AbstractContextManager[None]:
    """Send this context along with messages within."""
    return _Carrying(context)


class _Carrying:
    """A context manager as a class, cheaper than a generator: each call has several of these."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: TraceContext | None) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _carried.set(self._context)

    def __exit__(self, *exc_info: object) -> None:
        _carried.reset(self._token)


def tracing_of(
    switch: bool | None,  # noqa: FBT001 - the setting's value
    service: str,
    *,
    is_global: bool = False,
    has_contents: bool = False,
) -> "Tracing | None":
    """Return the tracing of this process; `None` if it is not traced, and nothing is imported for it.

    `switch`: whether it shall be; `None`: if OpenTelemetry's variables or a provider say so. `service` is its name in
    traces. `is_global`: if there is no provider, one is set for all its code. Raises `SettingsError` if it shall be
    traced and cannot be.
    """
    if switch is False or _is_true(os.environ.get("OTEL_SDK_DISABLED")):
        return None
    if _made:  # by an earlier one of the same process
        return _made[0]
    if (provider := provider_of_others()) is not None:
        from toolfleet_registry import otel_tracing  # only where it is wanted

        return otel_tracing.Tracing(provider, version_here(), has_contents=has_contents)
    if not switch and not is_wanted_by_environment():
        return None
    try:
        from toolfleet_registry.otel_provider import make_tracing
    except ImportError as exc:
        missing = "Traces need OpenTelemetry, which is not installed here: pip install 'toolfleet[otel]'."
        if switch:
            raise SettingsError(missing) from exc
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set. %s", missing)
        return None
    _made.append(make_tracing(service, version_here(), is_global=is_global, has_contents=has_contents))
    return _made[0]


def switch_here() -> bool | None:
    """Return the value of `TOOLFLEET_TRACES`, for a process without settings.

    Raises `SettingsError` for an invalid one.
    """
    said = os.environ.get(SWITCH, "").strip().lower()
    if said and said not in _TRUE | _FALSE:
        raise SettingsError(f"{SWITCH} is 1 or 0, not {said[:20]!r}.")
    return said in _TRUE if said else None


def version_here() -> str:
    """Return our version, as traces show it."""
    return version("toolfleet-sdk")


def is_wanted_by_environment() -> bool:
    """Return whether OpenTelemetry's own variables say where traces go."""
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return any(os.environ.get(name) for name in _ENDPOINTS)


def provider_of_others() -> "TracerProvider | None":
    """Return the provider that this process has already; `None` without one, and nothing is imported to find out."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace  # it is there already

    if os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):  # asked for by name: OpenTelemetry loads it
        return trace.get_tracer_provider()
    found = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider) else found


def _is_true(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"
