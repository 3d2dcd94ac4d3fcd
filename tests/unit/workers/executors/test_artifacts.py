"""Artifacts as arguments."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from toolfleet_registry.contracts import Caller, PublishedCall, ToolResult
from toolfleet_registry.contracts.artifacts import ArtifactRecord
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import ArtifactArgument
from toolfleet_workers.executors.artifacts import ArtifactArguments, _value, _Wrong

FACTS: dict[str, Any] = {"id": "c.1.0", "owner": "", "tool_name": "web.page", "call_id": "c", "size": 1, "sha256": ""}
RECORD = ArtifactRecord(**FACTS, media_type="application/json", made_at=0, expires_at=1)


@pytest.mark.parametrize(
    ("data", "schema", "value"),
    [
        (b'{"owl": 1}', {"type": "object"}, {"owl": 1}),
        (b'{"owl": 1}', {"type": "string"}, '{"owl": 1}'),
        (b"\x89PNG", {"type": "string"}, "iVBORw=="),
    ],
    ids=["JSON", "a text", "a file"],
)
def test_an_artifact_is_what_the_argument_takes(data: bytes, schema: Any, value: Any) -> None:
    """A value of JSON, a text, or base64."""
    assert _value(RECORD, data, schema) == value


@pytest.mark.parametrize("data", [b"{not json", b"[NaN]", b"[" * 10_000], ids=["no JSON", "no number", "too deep"])
def test_a_file_that_only_says_it_is_json_is_a_wrong_argument(data: bytes) -> None:
    """Its type is its module's word: nothing is sent, and the model is told."""
    with pytest.raises(_Wrong, match="is no JSON"):
        _value(RECORD, data, {"type": "object"})


async def test_a_tool_that_has_its_artifact_holds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls read theirs while it works, however long that takes."""

    async def whole(*_: Any) -> dict[str, Any]:
        return {"text": "owl"}

    monkeypatch.setattr(ArtifactArguments, "_whole", whole)
    reader: Any = SimpleNamespace(slots=asyncio.Semaphore(1))
    tools: Any = None
    given = list[dict[str, Any]]()
    call = PublishedCall(
        call_id="c",
        tool_name="web.save",
        arguments={"text": {"$artifact": "c.1.0"}},
        user_id="ada",
        caller=Caller(user_id="ada"),
        effect="read",
        limit_seconds=1,
        published_at=0,
        deadline_at=1,
        artifacts=(ArtifactArgument(name="text", id="c.1.0", sha256=""),),
    )

    async def proceed(found: PublishedCall) -> Attempt:
        assert not reader.slots.locked()
        given.append(found.arguments)
        return Attempt(Outcome.SUCCESS, ToolResult.ok("web.save", None))

    await ArtifactArguments(reader, tools)(call, proceed)

    assert given == [{"text": "owl"}]
