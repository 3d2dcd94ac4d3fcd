"""Draws a trace as text, as a guide shows it: each span below its parent, with what it says. What each run has anew is `…`."""

from collections.abc import Sequence
from typing import Final

from support.traces.otlp_receiver import ReceivedSpan

_ANEW: Final = frozenset(
    {
        "gen_ai.tool.call.id",
        "messaging.client.id",
        "messaging.message.id",
        "server.port",
        "toolfleet.fencing_token",
        "toolfleet.queued_seconds",
        "url.full",
    }
)


def drawn(spans: Sequence[ReceivedSpan]) -> str:
    """The spans of one trace, parents before their children, siblings in the order of their beginning."""
    return "".join(_lines(spans, "", 0))


def _lines(spans: Sequence[ReceivedSpan], parent_id: str, depth: int) -> list[str]:
    lines = list[str]()
    for span in sorted((each for each in spans if each.parent_id == parent_id), key=lambda each: each.began):
        lines.append(f"{'  ' * depth}{span.name}  ({span.kind}, {span.service})\n")
        lines += [f"{'  ' * depth}  | {name} = {_value(span, name)}\n" for name in sorted(span.attributes)]
        lines += _lines(spans, span.span_id, depth + 1)
    return lines


def _value(span: ReceivedSpan, name: str) -> object:
    return "…" if name in _ANEW else span.attributes[name]
