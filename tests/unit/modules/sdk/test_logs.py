"""What a tool logs: to whoever called and wants it, before the reply, and never at the tool's cost."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolfleet.sdk import Context, Module, ModuleClient
from toolfleet_registry.contracts.call_context import MOST_MESSAGES, LogMessage


class Odd:
    """Has no words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def make_owls() -> Module:
    owls = Module("owls")
    add_quiet_ones(owls)
    add_loud_ones(owls)
    return owls


def add_quiet_ones(owls: Module) -> None:
    @owls.tool
    async def hoot(context: Context) -> str:
        await context.log("debug", "quiet")
        await context.log("info", {"owls": [1, None]}, logger="barn")
        await context.progress(0.5, "half")
        context.log("error", "last")
        return str(context.log_level)

    @owls.tool
    def thread(context: Context) -> str:
        context.log("info", "in a thread")
        return "end"

    @owls.tool
    async def mistaken(context: Context) -> str:
        level: Any = "deafening"
        context.log(level, "?")
        return "end"


def add_loud_ones(owls: Module) -> None:
    @owls.tool
    async def flood(context: Context) -> str:
        for number in range(1000):
            context.log("info", number)
        await asyncio.sleep(0)
        return "end"

    @owls.tool
    async def large(context: Context) -> str:
        for _ in range(50):
            context.log("info", "x" * 100_000)
        return "end"

    @owls.tool
    async def odd(context: Context) -> str:
        circle: list[Any] = []
        circle.append(circle)
        for data in (Odd(), circle, "half \ud800", float("nan"), {1: {2}}):
            context.log("info", data, logger="\ud800" * 300)
        return "end"


@pytest.fixture
async def owls() -> AsyncIterator[ModuleClient]:
    async with make_owls().client() as client:
        yield client


async def test_a_caller_hears_what_it_asks_for(owls: ModuleClient) -> None:
    """In order, up to the last word before the reply, beside progress; the tool may know what is wanted."""
    heard = await owls.send("hoot", {}, log_level="info")

    info = LogMessage(level="info", data={"owls": [1, None]}, logger="barn")
    assert heard.log == (info, LogMessage(level="error", data="last"))
    assert (heard.result, heard.success) == ("info", True)


async def test_without_a_level_nothing_is_sent(owls: ModuleClient) -> None:
    """The reply is no stream, even, for a tool that says no more; a level that is not known counts as none."""
    heard = await owls.send("hoot", {})
    body = {"tool_name": "owls.thread", "arguments": {}}
    headers = {"Accept": "application/x-ndjson"}
    plain = [
        await owls.http.post("/execute", json={**body, **more}, headers=headers) for more in ({}, {"log_level": "loud"})
    ]

    assert (heard.log, heard.result) == ((), "None")
    assert [each.headers["content-type"] for each in plain] == ["application/json"] * 2


async def test_a_caller_that_takes_no_lines_hears_nothing(owls: ModuleClient) -> None:
    """Its reply is one object."""
    body = {"tool_name": "owls.thread", "arguments": {}, "log_level": "info"}
    answer = await owls.http.post("/execute", json=body, headers={"Accept": "application/json"})

    assert (answer.status_code, answer.json()["result"]) == (200, "end")


async def test_a_thread_is_heard_before_its_reply(owls: ModuleClient) -> None:
    """Also if it logs at its very end."""
    assert (await owls.send("thread", {}, log_level="info")).log == (LogMessage(level="info", data="in a thread"),)


@pytest.mark.parametrize("tool", ["flood", "large"])
async def test_what_is_too_much_is_counted(owls: ModuleClient, tool: str) -> None:
    """By messages and by bytes; the call is none the worse."""
    heard = await owls.send(tool, {}, log_level="info")

    assert heard.success
    said, left_out = {"flood": (MOST_MESSAGES, 1000 - MOST_MESSAGES), "large": (31, 19)}[tool]
    assert len(heard.log) == said + 1
    assert heard.log[-1].data.startswith(f"{left_out} log messages were left out")
    assert all(len(json.dumps(message.data)) < 17_000 for message in heard.log)


async def test_what_is_no_json_does_not_fail_a_tool(owls: ModuleClient) -> None:
    """A text stands in its place."""
    heard = await owls.send("odd", {}, log_level="info")

    assert heard.success
    shown = [message.data for message in heard.log]
    assert shown[0] == "a Odd…"
    assert shown[2:] == ["'half \\ud800'…", None, {"1": [2]}]
    assert {len(message.logger or "") for message in heard.log} == {200}


@pytest.mark.parametrize("level", [None, "info"])
async def test_a_level_that_is_none_is_a_mistake_of_the_tool(owls: ModuleClient, level: Any) -> None:
    """Whether anybody wants to hear it or not: else it would show when somebody does."""
    assert "ValueError" in str((await owls.send("mistaken", {}, log_level=level)).error)


async def test_a_repeat_hears_the_same(owls: ModuleClient) -> None:
    """Two that ask for one call at work are told all that it has said."""
    module = Module("owls")
    go = asyncio.Event()

    @module.tool
    async def hold(context: Context) -> str:
        context.log("info", "one")
        await go.wait()
        context.log("info", "two")
        return "end"

    async with module.client() as client:
        calls = [asyncio.create_task(client.send("hold", {}, call_id="c", log_level="info")) for _ in range(2)]
        silent = asyncio.create_task(client.send("hold", {}, call_id="c"))
        await asyncio.sleep(0)
        go.set()
        heard = [await each for each in calls]

    assert [[message.data for message in each.log] for each in heard] == [["one", "two"]] * 2
    assert (await silent).log == ()
