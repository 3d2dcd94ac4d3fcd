"""Whoever decides about a call leaves a word for its audit line."""

import asyncio

from toolfleet_registry.contracts.decisions import collecting, note


async def test_decisions_are_those_of_the_call_that_runs() -> None:
    """Calls side by side collect their own; also what is decided in a task that a call has made."""

    async def call(number: int) -> dict[str, str]:
        decisions = collecting()
        note("gate", f"allowed {number}")
        await asyncio.create_task(decide(number))
        return decisions

    async def decide(number: int) -> None:
        note("permission", str(number))

    first, second = await asyncio.gather(call(1), call(2))

    assert first == {"gate": "allowed 1", "permission": "1"}
    assert second == {"gate": "allowed 2", "permission": "2"}


def test_what_was_decided_elsewhere_comes_first() -> None:
    """An agent's decisions travel with its call; a later word at the same point holds."""
    sent = {"gate": "allowed", "limits": "allowed"}
    decisions = collecting(sent)
    note("limits", "denied")

    assert decisions == {"gate": "allowed", "limits": "denied"}
    assert sent["limits"] == "allowed"


async def test_where_nobody_collects_a_note_is_dropped() -> None:
    """Middleware works the same without an audit."""
    await asyncio.get_running_loop().run_in_executor(None, note, "gate", "allowed")
