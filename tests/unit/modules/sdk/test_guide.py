"""The guide for authors of modules shows programs that work as they stand."""

import asyncio
from pathlib import Path
from typing import Any

from support.documents import programs
from toolfleet.sdk import Module, ModuleResult
from toolfleet_registry.contracts.inputs import CallInputs

PAGE, TURNS = "docs/guides/sdk.md", "docs/guides/turns.md"
GUIDE = (Path(__file__).parents[4] / PAGE).read_text()


def program(name: str) -> dict[str, Any]:
    """The names in the guides' program of this name."""
    names: dict[str, Any] = {"__name__": name}
    text = (programs(PAGE) | programs(TURNS))[name]
    exec(compile(text, name, "exec"), names)  # noqa: S102 - our own guides
    return names


def calls(module: Module, *wanted: tuple[str, dict[str, Any]]) -> list[ModuleResult]:
    async def run() -> list[ModuleResult]:
        async with module.client() as client:
            return [await client.call(method, **arguments) for method, arguments in wanted]

    return asyncio.run(run())


def test_files_come_out() -> None:
    """With the label that the guide names."""
    (drawn,) = calls(program("charts")["module"], ("draw", {"day": 4}))

    assert drawn.result["chart"] in GUIDE
    assert [file.media_type for file in drawn.files] == ["image/png", "text/csv"]


def test_calls_wait_for_their_turn() -> None:
    """By the argument that the guide names; `tests/fundamentals` has them do it."""
    (tool,) = program("nests")["module"].manifest.tools

    assert (tool.name, tool.concurrency_key) == ("owls.build", "nest")


def test_a_tool_asks() -> None:
    """Whoever can be asked, and it goes on with the answer."""
    module, yes = program("post")["module"], {"ok": {"action": "accept", "content": {"agrees": True}}}

    async def run() -> None:
        async with module.client() as client:
            letters = {"to": ["Ada", "Bob"]}
            asked = await client.send("send", letters, call_id="c1", takes_input=True)
            assert (asked.requests["ok"]["params"]["message"], asked.effect_state) == ("Send 2 letters?", "none")
            inputs = CallInputs(round=1, responses=yes, state=asked.state)
            told = await client.send("send", letters, call_id="c1", takes_input=True, inputs=inputs)
            assert told.result == "2 letters sent."

    asyncio.run(run())


def test_a_tool_logs() -> None:
    """What whoever calls wants to hear."""
    module = program("watchman")["module"]

    async def run() -> None:
        async with module.client() as client:
            heard = await client.send("look", {"barn": "red"}, log_level="info")
            assert [message.fields() for message in heard.log] == [
                {"level": "warning", "data": "The red barn has no window.", "logger": "lamp"}
            ]
            assert (await client.call("look", barn="red")).log == ()

    asyncio.run(run())


def test_work_goes_on() -> None:
    """It is accepted, followed to its end, and can be given up."""
    names = program("brood")
    module = names["module"]

    async def run() -> None:
        async with module.client() as client:
            accepted = await client.send("hatch", {"eggs": 2}, call_id="c1")
            assert (await client.status("c1", accepted.handle))["state"] == "running"
            await client.send("hatch", {"eggs": 900}, call_id="c2")
            given_up = await client.status("c2", "nest-2", cancel=True)
            assert (given_up["state"], given_up["effect_state"]) == ("done", "none")
            names["hatches_at"][accepted.handle] = 0.0
            answer = await client.status("c1", accepted.handle)
            assert answer["result"] == "owls"

    asyncio.run(run())
