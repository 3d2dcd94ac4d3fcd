"""A tool's span shows no more of a call than it may, and where nobody keeps it there is none."""

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.published_call import published
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.otel_tracing import Tracing
from toolfleet_registry.spans import TraceContext, Unrecorded, carried, carrying
from toolfleet_workers.middleware import ShownArguments, ToolSpan
from toolfleet_workers.runner import Proceed

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracing(exported: InMemorySpanExporter, *, has_contents: bool = False) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(provider, "1", has_contents=has_contents, follows_parent=True)


async def _check(call: PublishedCall, proceed: Proceed) -> Attempt:
    return await proceed(call)


async def _run(tracing: Tracing, call: PublishedCall, *, hides: bool = False) -> None:
    """The call, with what a profile hides of it in between."""

    async def end(call: PublishedCall) -> Attempt:
        return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, {"owls": 3}), hides_results=hides)

    async def hide(call: PublishedCall) -> Attempt:
        hidden = call.model_copy(update={"arguments": {**call.arguments, "mail": "[EMAIL]"}})
        return await ShownArguments(_check)(hidden, end)

    await ToolSpan(tracing)(call, hide)


async def test_contents_are_shown_without_what_is_sensitive_or_personal(exported: InMemorySpanExporter) -> None:
    """Sensitive arguments are redacted, and personal data is as the tool is told it."""
    call = published("owls.count").model_copy(
        update={"arguments": {"wood": "north", "key": "s3cret", "mail": "ada@example.org"}, "sensitive": ("/key",)}
    )
    await _run(tracing(exported, has_contents=True), call)
    (span,) = exported.get_finished_spans()
    said = dict(span.attributes or {})

    assert json.loads(str(said["gen_ai.tool.call.arguments"])) == {
        "wood": "north",
        "key": "[redacted]",
        "mail": "[EMAIL]",
    }
    assert json.loads(str(said["gen_ai.tool.call.result"])) == {"owls": 3}


@pytest.mark.parametrize("is_tool", [True, False], ids=["its tool", "this result"])
async def test_sensitive_results_are_not_shown(exported: InMemorySpanExporter, is_tool: bool) -> None:
    """Nothing of what its module says, whether all results of its tool are sensitive or this one is."""
    call = published("owls.count").model_copy(update={"hides_results": is_tool})
    await _run(tracing(exported, has_contents=True), call, hides=not is_tool)
    (span,) = exported.get_finished_spans()

    assert (span.attributes or {})["gen_ai.tool.call.result"] == "[redacted]"


async def test_contents_are_shown_on_request_only(exported: InMemorySpanExporter) -> None:
    """Neither arguments nor results, unless the setting asks for them."""
    await _run(tracing(exported), published("owls.count"))
    (span,) = exported.get_finished_spans()

    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & set(span.attributes or {})


async def test_what_is_not_sampled_has_no_span_at_all(exported: InMemorySpanExporter) -> None:
    """Nobody is asked for one, and its place in the trace goes on as it came."""
    unsampled, seen = TraceContext(f"{TRACE}00"), list[TraceContext | None]()
    tracer = tracing(exported)
    with carrying(unsampled):
        started = tracer.start("x", "internal", {}, parent=unsampled)
        await _run(tracer, published("owls.count"))
        seen.append(carried())

    assert started == unsampled
    assert isinstance(started, Unrecorded)
    assert seen == [unsampled]
    assert exported.get_finished_spans() == ()
