"""Artifacts as arguments."""

import contextlib
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.artifacts import ArtifactRecord
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import ArtifactArgument
from toolfleet_registry.schemas.validation import takes_text
from toolfleet_registry.system.http_bodies import MAX_DEPTH
from toolfleet_workers.executors.artifacts import ArtifactArguments, CallArtifacts, _checked, _value, _Wrong

FACTS: dict[str, Any] = {"id": "c.1.0", "owner": "", "tool_name": "web.page", "call_id": "c", "size": 1, "sha256": ""}
RECORD = ArtifactRecord(**FACTS, media_type="application/json", made_at=0, expires_at=1)

TEXT = b"owl"


def tool(schema: dict[str, Any]) -> ToolDefinition:
    """Return a tool with one argument."""
    whole = {"type": "object", "properties": {"given": schema}, "$defs": {"text": {"type": "string"}}}
    return ToolDefinition(name="web.save", description="", required_permission="guest", input_schema=whole)


@pytest.mark.parametrize(
    ("data", "schema", "value"),
    [
        (b'{"owl": 1}', {"type": "object"}, {"owl": 1}),
        (b'{"owl": 1}', {}, {"owl": 1}),
        (b'{"owl": 1}', {"type": ["string", "object"]}, {"owl": 1}),
        (b'{"owl": 1}', {"type": "string"}, '{"owl": 1}'),
        (b'{"owl": 1}', {"type": ["string", "null"]}, '{"owl": 1}'),
        (b'{"owl": 1}', {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, '{"owl": 1}'),
        (b'{"owl": 1}', {"$ref": "#/$defs/text"}, '{"owl": 1}'),
        (b"\x89PNG", {"type": "string"}, "iVBORw=="),
    ],
    ids=["JSON", "anything", "a text or JSON", "a text", "a text or null", "an optional text", "elsewhere", "a file"],
)
def test_an_artifact_is_what_the_argument_takes(data: bytes, schema: Any, value: Any) -> None:
    """A value of JSON, a text, or base64."""
    assert _value(RECORD, data, is_text=takes_text(tool(schema), "given")) == value


@pytest.mark.parametrize("data", [b"{not json", b"[NaN]", b"[" * 10_000], ids=["no JSON", "no number", "too deep"])
def test_a_file_that_only_says_it_is_json_is_a_wrong_argument(data: bytes) -> None:
    """Its type is its module's word: nothing is sent, and the model is told."""
    with pytest.raises(_Wrong, match="is no JSON"):
        _value(RECORD, data, is_text=False)


def test_json_of_some_megabytes_is_checked() -> None:
    """With ten times the effort that an agent has; what a module would refuse is refused before."""
    rows = [{"name": f"owl {number}", "number": number} for number in range(40_000)]
    deep: Any = "owl"
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert _checked(tool({"type": "array", "items": {"required": ["name"]}}), {"given": rows})["given"] is rows
    with pytest.raises(_Wrong, match="is nested deeper"):
        _checked(tool({}), {"given": deep})
    with pytest.raises(_Wrong, match="values"):
        _checked(tool({}), {"given": rows * 10})


class Kept:
    """Has one artifact."""

    @contextlib.asynccontextmanager
    async def within(self, _: float) -> AsyncGenerator[None]:
        yield

    async def find(self, *_: Any) -> ArtifactRecord:
        return RECORD.model_copy(update={"media_type": "text/plain", "size": len(TEXT)})

    async def read(self, _: ArtifactRecord) -> bytes:
        return TEXT


async def test_a_tool_that_has_its_artifact_holds_its_bytes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls read theirs while it works, until the artifacts of all have as many bytes as a worker holds; its own are given back."""
    monkeypatch.setattr("toolfleet_workers.executors.artifacts._MOST_HELD", 2 * len(TEXT))
    monkeypatch.setattr("toolfleet_workers.executors.artifacts.seconds_left", lambda: 60.0)
    kept: Any = Kept()

    async def hidden(call: PublishedCall, tool_name: str, size: int, value: Any) -> Any:
        return value

    reader = CallArtifacts(kept, may_use=lambda *_: True, hide=hidden)
    tools: Any = SimpleNamespace(find=lambda _: SimpleNamespace(definition=tool({"type": "string"})))
    puts, given, ends = ArtifactArguments(reader, tools), list[dict[str, Any]](), list[Outcome]()
    call = PublishedCall(
        call_id="c",
        tool_name="web.save",
        arguments={"given": {"$artifact": "c.1.0", "sha256": ""}},
        user_id="ada",
        caller=Caller(user_id="ada"),
        effect="read",
        limit_seconds=1,
        published_at=0,
        deadline_at=1,
        artifacts=(ArtifactArgument(name="given", id="c.1.0", sha256=""),),
    )

    async def proceed(found: PublishedCall) -> Attempt:
        assert not reader.slots.locked()
        given.append(found.arguments)
        ends.append((await puts(call, proceed)).outcome)  # as another call that begins meanwhile
        return Attempt(Outcome.SUCCESS, ToolResult.ok("web.save", None))

    for _ in range(2):
        ends.append((await puts(call, proceed)).outcome)

    assert given == [{"given": "owl"}] * 4
    assert ends == [Outcome.TURNED_AWAY, Outcome.SUCCESS, Outcome.SUCCESS] * 2
