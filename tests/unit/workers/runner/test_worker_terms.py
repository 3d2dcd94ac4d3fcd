"""What a worker knows of the terms of a tool, whatever a call's message says of them."""

import pytest

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.contracts import PublishedCall, Terms, ToolDefinition
from toolfleet_registry.contracts.attempts import Attempt, Health, Lease
from toolfleet_registry.errors import ToolNotKnown
from toolfleet_workers.runner import CallRunner

TOOL = ToolDefinition(name="research.search_docs", daily_limit=3)
FREE = ToolDefinition(name="research.search_docs")


class NoExecutor:
    """Nothing is run here."""

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt:
        raise AssertionError

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt | None:
        raise AssertionError

    async def probe(self, module: str, *, seconds: float) -> Health:
        return Health.WELL

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize(
    ("known", "terms", "looks"),
    [
        (FewTools(TOOL), Terms(daily_limit=3), 0),
        (FewTools(FREE), None, 0),
        (FewTools(later=[TOOL]), Terms(daily_limit=3), 1),  # just started
        (FewTools(), None, 1),  # there is nobody who could know it
        (FewTools(FREE, later=[TOOL], is_old=True), Terms(daily_limit=3), 1),  # limited since it last looked
    ],
)
async def test_a_worker_looks_for_itself(known: FewTools, terms: Terms | None, looks: int) -> None:
    """Where it does not know a tool, or what it knows is old, it reads the manifests first."""
    runner = CallRunner(NoExecutor(), [], definitions=known)

    assert (await runner.decide(published(terms=Terms(daily_limit=99)))).terms == terms
    assert known.looks == looks


async def test_a_runner_without_definitions_limits_nothing() -> None:
    """As in other people's workers."""
    assert (await CallRunner(NoExecutor(), []).decide(published())).terms is None


async def test_a_call_of_a_tool_that_is_not_known_waits() -> None:
    """As long as whoever decides about it says; unless that is decided without."""
    runner = CallRunner(NoExecutor(), [], definitions=FewTools(), wait_for=lambda call: 0.25)
    with pytest.raises(ToolNotKnown) as waits:
        await runner.decide(published())
    assert (waits.value.seconds, waits.value.tool_name) == (0.25, "research.search_docs")

    known = CallRunner(NoExecutor(), [], definitions=FewTools(TOOL), wait_for=lambda call: 0.25)
    assert (await known.decide(published())).terms == Terms(daily_limit=3)
