"""Requests that are not what the fleet sends: who sends them keeps a module neither waiting nor busy."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.types import Message

from support.published_call import published
from support.workers.asgi_request import post
from toolfleet.sdk import Module
from toolfleet_registry.contracts import Caller
from toolfleet_tasks.messages.signing import caller_token

KEY = "a module's key of more than thirty-two characters"
PATHS = ("/execute", "/reconcile")


def make_owls(**settings: Any) -> Module:
    owls = Module("owls", **settings)

    @owls.tool
    async def count() -> int:
        return 1

    return owls


async def unread() -> Message:
    raise AssertionError("the body was read")


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def send(module: Module, path: str, receive: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> Message:
    async with module.client():
        return (await post(module.app, path, receive, headers))[0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "token",
    [b"", b"nonsense", caller_token(published("owls.count"), KEY + "!").encode()],
    ids=["none", "nonsense", "another key's"],
)
async def test_of_whoever_has_no_token_no_body_is_read(path: str, token: bytes) -> None:
    """Megabytes of theirs would keep the module from everybody else's calls; so would a body that never comes."""
    answer = await send(make_owls(key=KEY), path, unread, [(b"toolfleet-caller", token)])
    assert answer["status"] == 403


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_does_not_come_is_waited_for_a_while_only(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the connection is closed."""
    monkeypatch.setattr("toolfleet_modules.calls.request._BODY_SECONDS", 0.02)
    answer = await send(make_owls(key=""), path, never)
    assert answer["status"] == 408
    assert (b"connection", b"close") in answer["headers"]


async def test_a_body_is_waited_for_no_longer_than_its_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with a token, too, has the time that it says it has."""
    monkeypatch.setattr("toolfleet_modules.calls.request._SHORTEST_BODY_SECONDS", 0.0)
    call = published("owls.count", user_id="ada", caller=Caller(user_id="ada"))
    headers = [(b"toolfleet-caller", caller_token(call, KEY).encode()), (b"toolfleet-time-left-ms", b"20")]
    assert (await send(make_owls(key=KEY), "/execute", never, headers))["status"] == 408


async def test_a_name_that_no_tool_can_have_is_not_repeated() -> None:
    """An answer is never larger than an answer may be."""
    body = json.dumps({"tool_name": "x" * 100_000, "arguments": {}})
    async with make_owls(key="", max_result_bytes=1000).client() as client:
        response = await client.http.post("/execute", content=body)
    assert response.status_code == 422
    assert len(response.content) < 1000
