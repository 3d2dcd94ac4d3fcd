"""With a signing key, workers run what a holder of the key has published, as it was published, and nothing else."""

import asyncio
import base64
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import psutil
import pytest
from aiohttp import web
from redis.asyncio import Redis

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, Request, serve
from support.owls import make_module
from support.published_call import published
from support.up import toolfleet, up
from support.waiting import wait_until, wait_until_equal
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.modules import find_examples
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.messages.signing import Seal, module_key
from toolfleet_tasks.presence import ApartReaders

KEY = "a secret of more than thirty-two characters"
APART = b',"sealed":'
QUEUE = "tools.owls"
WARNING = "Calls are not signed"


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    """The owls, with a tool that is busy at first."""
    owls = make_module()

    async def busy_at_first(request: Request) -> web.StreamResponse | dict[str, Any]:
        if len(owls.calls("busy_at_first")) == 1:
            return web.Response(status=503, headers={"Retry-After": "0"})
        return {"success": True, "result": "late"}

    owls.add("busy_at_first", busy_at_first, effect="once")
    with serve(owls) as served:
        yield served


@pytest.fixture(scope="module")
def signed(module: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet whose agents and workers have the key."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (module,), tmp_path_factory.mktemp("logs"), {"signing_key": KEY})


@pytest.fixture(scope="module")
def signed_worker(signed: TestBed) -> Iterator[WorkerProcess]:
    with signed.worker() as worker:
        yield worker


@pytest.fixture
async def agent(signed: TestBed, signed_worker: WorkerProcess, module: ModuleServer) -> AsyncIterator[ToolFleet]:
    """An agent with the key, and a worker."""
    module.forget()
    async with ToolFleet(settings=signed.settings) as fleet:
        yield fleet


def call(method: str, **arguments: Any) -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments=arguments)


def push(settings: Settings, message: str, call_id: str) -> ToolResult:
    """Put a message into the queue as whoever reaches the broker can, and read how it ended."""
    calls = FleetCalls(settings)
    try:
        calls.app.send_task(TASK, [message], queue=QUEUE, task_id=call_id, shadow="owls.echo")
        (result,) = calls.results(call_id)
        return ToolResult.model_validate(result)
    finally:
        calls.close()


def made(method: str = "echo", **fields: Any) -> PublishedCall:
    return published(
        f"owls.{method}", **{"call_id": str(uuid.uuid4()), "caller": Caller(allowed_modules="*"), **fields}
    )


async def test_a_signed_call_runs(agent: ToolFleet, owner: Caller, module: ModuleServer) -> None:
    """The module learns who calls, in words that it can verify."""
    result = await agent.call(call("echo", text="hu"), owner)
    claims = jwt.decode(
        module.headers[0]["toolfleet-caller"], module_key(KEY, "owls"), algorithms=["HS256"], audience="owls"
    )

    assert (result.success, result.result) == (True, {"text": "hu"})
    assert (claims["sub"], claims["permission"], claims["jti"]) == ("ada", "owner", result.audit.call_id)


async def test_a_retry_is_as_valid_as_the_first_attempt(agent: ToolFleet, owner: Caller, module: ModuleServer) -> None:
    """It carries the agent's own signature, and the same call id."""
    result = await agent.call(call("busy_at_first"), owner)

    assert (result.success, result.result) == (True, "late")
    assert result.audit.attempts == 2
    assert {headers["idempotency-key"] for headers in module.headers} == {result.audit.call_id}


async def test_many_signed_calls_run_side_by_side(agent: ToolFleet, owner: Caller) -> None:
    """Signing costs microseconds."""
    results = await agent.call_many([call("echo", number=number) for number in range(200)], owner)

    assert [result.result for result in results] == [{"number": number} for number in range(200)]


FORGED: dict[str, Callable[[PublishedCall], str]] = {
    "unsigned": json_text.dump,
    "tampered": lambda call: Seal(KEY).seal(call).replace("owls", "cats", 1),
    "signed with another key": Seal(KEY + "!").seal,
    "of another call": lambda call: Seal(KEY).seal(made()),
    "no message at all": lambda call: "nonsense",
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_what_no_agent_has_published_is_refused(
    agent: ToolFleet, signed: TestBed, module: ModuleServer, forge: Callable[[PublishedCall], str]
) -> None:
    """Its effect does not happen, and whoever looks for its result reads why."""
    forged = made()
    result = await asyncio.to_thread(push, signed.settings, forge(forged), forged.call_id)

    assert (result.success, result.error_code, result.effect_state) == (False, "permission_denied", "none")
    assert result.error
    assert module.requests == []


@pytest.mark.parametrize("is_apart", [False, True], ids=["usual", "apart"])
async def test_a_call_that_was_changed_in_its_queue_is_refused_to_its_agent(
    signed: TestBed,
    owner: Caller,
    module: ModuleServer,
    redis_url: str,
    is_apart: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent that waits for it learns that; its neighbours in the queue run. So it is where the arguments stand apart."""
    fixed = property(lambda _: is_apart, lambda *_: None)
    monkeypatch.setattr(ApartReaders, "are_all", fixed, raising=False)
    bed = TestBed(redis_url, (module,), signed.folder, signed.more)
    module.forget()
    async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(redis_url) as redis:
        waiting = [asyncio.create_task(fleet.call(call("echo", number=number), owner)) for number in range(4)]
        await until_queued(redis, len(waiting))
        await change_messages(redis)
        with bed.worker():
            results = await asyncio.gather(*waiting)

    ends = {result.result["number"] if result.success else result.error_code for result in results}
    assert ends == {0, "permission_denied"}
    assert [request["arguments"] for request in module.requests] == [{"number": 0}]
    assert all(result.effect_state == "none" for result in results if not result.success)


async def until_queued(redis: Redis, number: int) -> None:
    await wait_until_equal(lambda: redis.llen(QUEUE), number, "the calls are queued")


async def change_messages(redis: Redis) -> None:
    """Leave the first call as it is, give the second other arguments, strip the third, and put the first for the last."""
    raw = [bytes(each) for each in await redis.lrange(QUEUE, 0, -1) if isinstance(each, bytes)]
    messages = {int(re.findall('"number":([0-9])', text_of(each))[0]): each for each in raw}
    changed = [
        messages[0],
        with_text(messages[1], text_of(messages[1]).replace('"number":1', '"number":7')),
        with_text(messages[2], re.sub('^eyJ[^ ]* |eyJ[^"]*', "", text_of(messages[2]))),
        with_text(messages[3], text_of(messages[0])),
    ]
    await redis.delete(QUEUE)
    await redis.lpush(QUEUE, *changed)


def text_of(message: bytes) -> str:
    """A call as it travels, out of Celery's message, or out of one with its arguments apart."""
    if APART in message:
        return message.partition(APART)[2][:-1].decode()
    text: str = json.loads(base64.b64decode(json.loads(message)["body"]))[0][0]
    return text


def with_text(message: bytes, text: str) -> bytes:
    if APART in message:
        return b"%b%b%b}" % (*message.partition(APART)[:2], text.encode())
    envelope = json.loads(message)
    body = json.loads(base64.b64decode(envelope["body"]))
    body[0][0] = text
    return json.dumps({**envelope, "body": base64.b64encode(json.dumps(body).encode()).decode()}).encode()


async def test_an_agent_without_the_key_is_told_so(
    signed: TestBed, signed_worker: WorkerProcess, owner: Caller, module: ModuleServer
) -> None:
    """What it publishes is not signed, and so not run."""
    module.forget()
    async with ToolFleet(settings=signed.settings.model_copy(update={"signing_key": None})) as fleet:
        result = await fleet.call(call("echo"), owner)

    assert result.error_code == "permission_denied"
    assert "TOOLFLEET_SIGNING_KEY" in str(result.error)
    assert module.requests == []


async def test_a_worker_without_the_key_runs_no_signed_call(
    signed: TestBed, module: ModuleServer, redis_url: str
) -> None:
    """It cannot know whether it was changed."""
    bed = TestBed(redis_url, (module,), signed.folder)
    module.forget()
    with bed.worker():
        forged = made()
        result = await asyncio.to_thread(push, bed.settings, Seal(KEY).seal(forged), forged.call_id)

    assert result.error_code == "permission_denied"
    assert "set TOOLFLEET_SIGNING_KEY" in str(result.error)
    assert module.requests == []


@pytest.mark.parametrize(
    ("method", "caller", "told"),
    [
        ("admin_only", Caller(permission="user", allowed_modules="*"), "needs 'admin'; caller is 'user'"),
        ("echo", Caller(permission="owner", allowed_modules=frozenset({"cats"})), "not among the caller's modules"),
        ("echo", Caller(permission="owner"), "not among the caller's modules"),  # they are no guests' module
    ],
)
async def test_a_worker_looks_at_the_rights_again(
    agent: ToolFleet, signed: TestBed, module: ModuleServer, method: str, caller: Caller, told: str
) -> None:
    """An agent that has the key and does not look itself is refused by the worker."""
    overreaching = made(method, caller=caller)
    message = Seal(KEY).seal(overreaching)
    result = await asyncio.to_thread(push, signed.settings, message, overreaching.call_id)

    assert (result.error_code, result.effect_state) == ("permission_denied", "none")
    assert told in str(result.error)
    assert module.requests == []


async def test_a_signature_ends_with_the_deadline(agent: ToolFleet, signed: TestBed, module: ModuleServer) -> None:
    """A message that somebody has kept is worth nothing later."""
    kept = made(published_at=1, deadline_at=2)
    result = await asyncio.to_thread(push, signed.settings, Seal(KEY).seal(kept), kept.call_id)

    assert (result.error_code, result.effect_state) == ("expired", "none")
    assert module.requests == []


async def test_a_message_that_is_put_in_once_more_runs_once(
    agent: ToolFleet, signed: TestBed, module: ModuleServer
) -> None:
    """A copy of a call that has ended has its result."""
    copied = made("nap_once", arguments={"seconds": 0})
    message = Seal(KEY).seal(copied)
    results = [await asyncio.to_thread(push, signed.settings, message, copied.call_id) for _ in range(2)]
    calls = FleetCalls(signed.settings)
    try:
        await wait_until(lambda: calls.queued() == 0 and calls.unacked() == 0, "the copy has been taken")
    finally:
        calls.close()

    assert [result.success for result in results] == [True, True]
    assert len(module.requests) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the environment of a fleet's processes")
@pytest.mark.slow
def test_a_fleet_keeps_its_key_to_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It signs and runs calls; the key is on no command line, in no file, no log, and no module's environment."""
    home = tmp_path_factory.mktemp("home")
    old = "the key before: " + KEY[::-1]
    env = {"TOOLFLEET_SIGNING_KEY": KEY, "TOOLFLEET_SIGNING_KEYS_OLD": old}
    words = ["call", "file_manager.create_document", "name=owls.txt", "content=hoot", "--user", "ada", "--json"]
    with up(home, env, "--no-gateway") as fleet:
        processes = fleet.processes()
        modules = {
            psutil.Process(fleet.pid("sdk.serve", name)) for name in fleet.run_file().settings["module_services"]
        }
        workers = psutil.Process(fleet.pid("toolfleet_workers", "fast-"))
        ended = toolfleet(*words, cwd=home, env=env)
        keyless = toolfleet(*words, cwd=home)
        nodes = [line for line in processes.values() if "toolfleet_workers" in line and "@%h" in line]
        shown = {
            command: toolfleet_inspect(fleet.run_file().settings, command, workers=len(nodes))
            for command in ("conf", "stats", "registered")
        }
        environments = [process.environ() for process in modules]

        assert json.loads(ended.stdout)["success"], ended.stdout
        assert json.loads(keyless.stdout)["error_code"] == "permission_denied"
        assert workers.environ()["TOOLFLEET_SIGNING_KEY"] == KEY
        assert all(KEY not in line for line in processes.values())
        assert {len(answers) for answers in shown.values()} == {len(nodes)}
        assert KEY not in str(shown)
        assert not any({KEY, old} & set(environment.values()) for environment in environments)
        assert len({environment["TOOLFLEET_MODULE_KEY"] for environment in environments}) == len(modules)
        assert len(modules) == len(find_examples())
        assert [path for path in written(home) if KEY.encode() in path.read_bytes()] == []
    assert [path for path in written(home) if KEY.encode() in path.read_bytes()] == []
    assert WARNING not in fleet.said()


def written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def toolfleet_inspect(settings: dict[str, Any], command: str, *, workers: int) -> dict[str, Any]:
    """What each of so many workers answers to a question of Celery's remote control."""
    calls = FleetCalls(Settings(**settings))
    try:
        return dict(getattr(calls.app.control.inspect(timeout=10, limit=workers), command)())
    finally:
        calls.close()
