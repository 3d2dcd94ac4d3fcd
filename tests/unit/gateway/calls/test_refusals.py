"""What a client is told of a call that was refused before it was in a queue: in a problem over HTTP, and in `_meta` over MCP."""

import json

import pytest

from toolfleet_gateway.calls import problem_of_refusal
from toolfleet_gateway.mcp.results import error_facts
from toolfleet_registry.contracts import ToolResult


@pytest.mark.parametrize("ends_run", [True, False])
def test_a_refusal_says_whether_it_ends_its_agents_run(ends_run: bool) -> None:
    """Only where it does: nothing else asks a program to stop its agent."""
    refusal = ToolResult.refused(
        "owls.ask", "rate_limited", "Tool call refused: enough.", hint="Answer with what you have."
    )
    result = refusal.model_copy(update={"ends_run": ends_run})
    problem = problem_of_refusal(result)

    assert problem is not None
    body = json.loads(bytes(problem.answer("/calls").body))
    assert (body["status"], body["error_code"], body["effect_state"]) == (429, "rate_limited", "none")
    assert body.get("ends_run") == error_facts(result).get("ends_run") == (True if ends_run else None)
