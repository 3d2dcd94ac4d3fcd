"""Artifacts as arguments."""

from typing import Any

import pytest

from toolfleet_registry.contracts.artifacts import ArtifactRecord
from toolfleet_workers.executors.artifacts import _value, _Wrong

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
