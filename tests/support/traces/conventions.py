"""What OpenTelemetry's semantic conventions 1.44.0 (messaging, HTTP, MCP) and those of GenAI name, span by span, written down apart from our code."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from support.traces.otlp_receiver import Attributes, ReceivedSpan


@dataclass(frozen=True)
class SpanRule:
    """A kind of span: what it is called, what it must say, and what it may say besides. `error.type` may stand on each."""

    kind: str
    name: Callable[[Attributes], str]
    required: frozenset[str]
    allowed: frozenset[str] = frozenset()


VALUES: Final[dict[str, frozenset[Any]]] = {
    "messaging.system": frozenset({"redis", "rabbitmq"}),
    "messaging.operation.type": frozenset({"create", "send", "receive", "process", "settle"}),
    "messaging.destination.template": frozenset({"tools.{module}"}),
    "gen_ai.operation.name": frozenset({"execute_tool"}),
    "gen_ai.tool.type": frozenset({"function", "extension", "datastore"}),
    "network.transport": frozenset({"tcp", "pipe"}),
    "toolfleet.effect_state": frozenset({"none", "done", "unknown"}),
    "toolfleet.granted": frozenset({"go", "accepted", "unknown", "exhausted", "open", "killed", "unapproved"}),
}
"""The closed sets."""

LINKS: Final = frozenset({"creation", "retried_attempt", "lost_attempt", "accepted_attempt", "job"})
"""What a span that is linked may be, by `toolfleet.linked_as`."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MESSAGING = _words(
    "messaging.system messaging.operation.name messaging.operation.type messaging.destination.name"
    " messaging.destination.template messaging.message.id gen_ai.tool.name toolfleet.lane"
)
_PROCESS = _words(
    "messaging.client.id toolfleet.attempt toolfleet.fencing_token toolfleet.granted toolfleet.queued_seconds"
)
_OF_WHOM = _words("gen_ai.agent.name toolfleet.job_id toolfleet.effect_state")
_CALLED = _words("gen_ai.operation.name gen_ai.tool.name gen_ai.tool.call.id toolfleet.attempt")


def _messaging_name(said: Attributes) -> str:
    return f"{said['messaging.operation.name']} {said['messaging.destination.name']}"


RULES: Final = (
    SpanRule("PRODUCER", _messaging_name, _MESSAGING, _OF_WHOM),
    SpanRule("CONSUMER", _messaging_name, _MESSAGING | _PROCESS, _OF_WHOM),
    SpanRule(
        "INTERNAL",
        lambda said: f"{said['gen_ai.operation.name']} {said['gen_ai.tool.name']}",
        _words("gen_ai.operation.name gen_ai.tool.name gen_ai.tool.type gen_ai.tool.call.id"),
        _words("gen_ai.agent.name gen_ai.tool.call.arguments gen_ai.tool.call.result toolfleet.effect_state"),
    ),
    SpanRule("INTERNAL", lambda _: "run_job", _words("toolfleet.job_id")),
    SpanRule(
        "CLIENT",
        lambda said: str(said["http.request.method"]),
        _words("http.request.method server.address server.port url.full"),
        _words("http.response.status_code toolfleet.job_id"),
    ),
    SpanRule(
        "SERVER",
        lambda said: f"{said['http.request.method']} {said['http.route']}",
        _words("http.request.method http.route url.path url.scheme"),
        _words("http.response.status_code") | _CALLED,
    ),
    SpanRule(
        "SERVER",
        lambda said: f"{said['mcp.method.name']} {said['gen_ai.tool.name']}",
        _words("mcp.method.name gen_ai.operation.name gen_ai.tool.name jsonrpc.request.id mcp.protocol.version"),
        _words("network.transport rpc.response.status_code"),
    ),
)


def faults_of(spans: Iterable[ReceivedSpan]) -> list[str]:
    """What is wrong with the spans that we wrote: none of the rules fits, a value is not of its set, or an error has no type."""
    ours = [span for span in spans if span.scope == "toolfleet"]
    return [fault for span in ours for fault in _faults_of(span)]


def _faults_of(span: ReceivedSpan) -> list[str]:
    said = span.attributes
    faults = [] if any(_fits(rule, span) for rule in RULES) else ["no rule fits"]
    faults += [
        f"{name} is {said[name]!r}" for name, values in VALUES.items() if name in said and said[name] not in values
    ]
    faults += ["an error without its type"] * (span.is_error and not span.error)
    faults += ["a link of no kind"] * any(
        link.attributes.get("toolfleet.linked_as") not in LINKS for link in span.links
    )
    return [f"{span.kind} {span.name!r} {sorted(said)}: {fault}" for fault in faults]


def _fits(rule: SpanRule, span: ReceivedSpan) -> bool:
    said = span.attributes.keys() - {"error.type"}
    if span.kind != rule.kind or not rule.required <= said <= rule.required | rule.allowed:
        return False
    return span.name == rule.name(span.attributes)
