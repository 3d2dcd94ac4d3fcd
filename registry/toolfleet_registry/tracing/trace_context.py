"""Carries the place in a trace as text, in the format of W3C's Trace Context: `traceparent`, and with it `tracestate`."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LONGEST_STATE = 512  # characters, which W3C has everybody pass on at least
_STATE = re.compile(r"[ -~]*")  # printable: it goes into headers as it is
_SAMPLED = frozenset("13579bdf")


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


class Unrecorded(TraceContext):
    """A place at which this process records nothing, nor below it: once that is known, no sampler is asked again."""

    __slots__ = ()


def read_context(said: Mapping[str, object]) -> TraceContext | None:
    """Return the context in these headers; `None` if there is none, or W3C does not allow it."""
    return context_of(said.get(TRACEPARENT), said.get(TRACESTATE))


def context_of(traceparent: object, tracestate: object) -> TraceContext | None:
    """Return the context of the two values; see `read_context`."""
    if not isinstance(traceparent, str) or not _PARENT.fullmatch(traceparent):
        return None
    is_fine = isinstance(tracestate, str) and len(tracestate) <= _LONGEST_STATE and _STATE.fullmatch(tracestate)
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
