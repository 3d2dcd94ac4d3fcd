"""A module that has its key runs what comes from the fleet, and nothing else."""

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest

from support.documents import programs
from support.published_call import published as published_call
from toolfleet.sdk import Context, Module
from toolfleet_registry.contracts import Caller, PublishedCall
from toolfleet_tasks.messages.signing import caller_token, caller_tokens, module_key, module_keys

KEY = "a secret of more than thirty-two characters"


def published(tool_name: str, **fields: Any) -> PublishedCall:
    """A call that lives long: some are made when tests are collected, which may be minutes before they run."""
    return published_call(tool_name, **{"deadline_at": time.time() + 3600, **fields})


CALL = published("owls.whose", user_id="ada", caller=Caller(user_id="ada"))


@dataclass(frozen=True)
class Owls:
    """A module with one tool."""

    module: Module

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx.AsyncClient]:
        async with self.module.client() as client:
            yield client.http


def make_owls(key: str | None = None) -> Owls:
    module = Module("owls", key=key)

    @module.tool
    async def whose(user_id: str | None, context: Context) -> Any:
        return [user_id, context.permission]

    return Owls(module)


@pytest.fixture
def owls(monkeypatch: pytest.MonkeyPatch) -> Owls:
    """A module with its key."""
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY", module_key(KEY, "owls"))
    return make_owls()


async def status(owls: Owls, token: str | None, *, user_id: str | None = "ada") -> int:
    headers = {"Idempotency-Key": "call-1", **({} if token is None else {"Toolfleet-Caller": token})}
    body: dict[str, object] = {"tool_name": "owls.whose", "arguments": {}, "user_id": user_id}
    async with owls.client() as client:
        return (await client.post("/execute", json=body, headers=headers)).status_code


async def test_a_module_may_have_the_fleets_keys_of_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a comma between: while the fleet goes from one to the next, either is what it signs with."""
    keys = [KEY, "another secret of more than thirty-two characters", "one that the module was never given"]
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY", module_keys(keys[:2], "owls"))

    assert [await status(make_owls(), caller_tokens(key)(CALL)) for key in keys] == [200, 200, 403]


async def test_the_fleets_call_runs(owls: Owls) -> None:
    """What a worker sends is what the module takes; also for nobody in particular."""
    assert await status(owls, caller_tokens(KEY)(CALL)) == 200
    assert await status(make_owls(), caller_tokens(KEY)(published("owls.whose")), user_id=None) == 200


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "nonsense",
        caller_tokens(KEY + "!")(CALL),
        caller_token(CALL, module_key(KEY, "cats")),  # by another module
        caller_tokens(KEY)(published("cats.whose", user_id="ada")),  # for another module
        caller_tokens(KEY)(published("owls.other", user_id="ada")),  # for another tool
        caller_tokens(KEY)(published("owls.whose", user_id="eve")),  # of another user
        caller_tokens(KEY)(published("owls.whose", user_id="ada", published_at=1, deadline_at=2)),  # too late
        jwt.encode({"iss": "toolfleet", "aud": "owls", "sub": "ada", "exp": 2**40}, "", algorithm="none"),
    ],
    ids=range(10),
)
async def test_everything_else_is_refused(owls: Owls, token: str | None) -> None:
    """403, which the fleet does not repeat."""
    assert await status(owls, token) == 403


@pytest.mark.parametrize(("call_id", "expected"), [("call-1", 200), ("call-2", 403)])
async def test_only_the_fleet_may_ask_what_became_of_a_call(
    monkeypatch: pytest.MonkeyPatch, call_id: str, expected: int
) -> None:
    """The answer holds a caller's data, so the token must be that call's."""
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY", module_key(KEY, "owls"))
    owls = make_owls()
    headers = {"Toolfleet-Caller": caller_tokens(KEY)(CALL)}
    async with owls.client() as client:
        assert (await client.post("/reconcile", json={"call_id": call_id}, headers=headers)).status_code == expected
        assert (await client.post("/reconcile", json={"call_id": call_id})).status_code == 403


async def test_without_its_key_a_module_trusts_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every module does that knows nothing of tokens."""
    monkeypatch.delenv("TOOLFLEET_MODULE_KEY", raising=False)

    assert await status(make_owls(), None) == 200


@pytest.mark.parametrize(("call", "is_ours"), [(CALL, True), (published("cats.whose"), False)])
def test_what_the_guide_tells_module_authors_works(
    monkeypatch: pytest.MonkeyPatch, call: PublishedCall, is_ours: bool
) -> None:
    """The lines that verify a token, as they stand there."""
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY", module_key(KEY, "owls"))
    names: dict[str, Any] = {}
    exec(programs("docs/guides/modules-in-any-language.md")["caller-of"], names)  # noqa: S102 - our own text
    headers = {"Toolfleet-Caller": caller_tokens(KEY)(call)}

    if is_ours:
        assert names["caller_of"](headers)["sub"] == "ada"
    else:
        with pytest.raises(jwt.PyJWTError):
            names["caller_of"](headers)


async def test_the_tool_hears_what_the_user_may(owls: Owls) -> None:
    """From the token, and from nowhere else; what it does not know counts as the least."""
    async with owls.module.client(permission="admin") as client:
        assert (await client.call("whose", user_id="ada")).result == ["ada", "admin"]
        assert (await client.send("whose", {}, permission="emperor")).result == [None, "guest"]
    async with make_owls(key="").module.client() as client:
        assert (await client.call("whose", user_id="ada")).result == ["ada", None]


async def test_a_token_is_for_one_call(owls: Owls) -> None:
    """Who has seen one cannot make a second call with it, nor one without an id."""
    headers = {"Toolfleet-Caller": caller_tokens(KEY)(CALL)}
    body = {"tool_name": "owls.whose", "user_id": "ada"}
    async with owls.client() as client:
        for call_id in ({"Idempotency-Key": "call-2"}, {}):
            assert (await client.post("/execute", json=body, headers={**headers, **call_id})).status_code == 403


def test_a_module_with_a_key_does_not_start_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails closed, with the command that helps."""
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(RuntimeError, match="pip install toolfleet-sdk"):
        _ = make_owls(key="a key").module.app


def test_a_module_without_starlette_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest needs none."""
    owls = make_owls().module
    monkeypatch.delitem(sys.modules, "toolfleet_modules.sdk.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert owls.manifest.tools
    with pytest.raises(ImportError, match="pip install 'toolfleet-sdk'"):
        _ = owls.app
