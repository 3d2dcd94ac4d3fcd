"""MCP servers ask in the middle of a call of the fleet's, in a session of an older version or in a task, and whoever called answers."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bed.fleet import Bed, until
from support.hosts.nest_server import Nest, http_app, server_of
from support.modules.listed_modules import until_listed
from toolfleet import Caller, PendingInput, ToolCall, ToolFleet

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
ASK = ToolCall(tool_name="nest.ask", arguments={"text": "2"}, takes_input=True)
TEND = ToolCall(tool_name="nest.tend", arguments={"text": "2"}, takes_input=True)


async def nest_behind(bed: Bed, notes: Path, *, is_old: bool) -> ToolFleet:
    """Open a fleet with the nest behind a host, which lets an older one ask."""
    environment = {"NOTES": str(notes)}
    app = http_app(server_of(Nest(environment), is_old=is_old), environment)
    await bed.host_mcp("nest", app, trusted=False, asks=is_old)
    await bed.worker()
    fleet = await bed.agent()
    await until_listed(fleet, ADA, "nest")
    return fleet


def noted(notes: Path, *beginnings: str) -> list[str]:
    """Return what the nest has noted that begins so."""
    return [line for line in notes.read_text().splitlines() if line.startswith(beginnings)]


def answering(*names: str) -> Callable[[PendingInput], Awaitable[Mapping[str, Any]]]:
    """Answer each question with the next name."""
    left = iter(names)

    async def answer(asked: PendingInput) -> Mapping[str, Any]:
        name = next(left)
        return {key: {"action": "accept", "content": {"name": name}} for key in asked.requests}

    return answer


async def test_whoever_called_answers_what_the_server_asks(bed: Bed, tmp_path: Path) -> None:
    """Each question of an older one comes in turn; the server is called once, and the call is one attempt."""
    notes = tmp_path / "notes"
    fleet = await nest_behind(bed, notes, is_old=True)
    result = await fleet.call(ASK, ADA, on_input=answering("Ada", "Bob"))

    assert (result.success, result.result, result.audit.attempts) == (True, "Hello Bob", 1), result
    assert noted(notes, "ask", "answered") == ["ask 2", "answered accept Ada", "answered accept Bob"]


async def test_whoever_called_answers_what_a_task_asks(bed: Bed, tmp_path: Path) -> None:
    """It gets each answer once, and its tool is called once; one that nobody wants any more is cancelled while it asks."""
    notes = tmp_path / "notes"
    fleet = await nest_behind(bed, notes, is_old=False)
    result = await fleet.call(TEND, ADA, on_input=answering("Ada", "Bob"))
    left = await fleet.submit(TEND, ADA)
    assert isinstance(await left.next_stop(60), PendingInput)
    await left.cancel()
    await until(lambda: noted(notes, "cancel"), "the task is cancelled")

    assert (result.success, result.result, result.audit.attempts) == (True, "Hello Ada and Bob", 1), result
    assert noted(notes, "tend", "update", "cancel") == [
        "tend 2",
        "update task-0 who-1 Ada",
        "update task-0 who-2 Bob",
        "tend 2",
        "cancel task-1",
    ]
