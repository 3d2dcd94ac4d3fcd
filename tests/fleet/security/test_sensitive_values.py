"""What a schema marks as sensitive stays between caller and module: nobody who watches the fleet gets to see it.

Not in logs at DEBUG, nor in Celery's events and answers, in Flower, in the audit or in dead letters. The message itself and
the stored result have it, for they carry it.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from aiohttp import web
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.fleet import TestBed, program
from support.module_server import ModuleServer, Request, Tool, serve
from support.servers.plain_http import PLAIN
from support.servers.rabbitmq import is_installed, rabbitmq
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import flower_command
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_tasks.app import make_app
from toolfleet_tasks.dead_letters.letters import DeadLetters

MARK = "m4rk"
"""Part of every sensitive value."""

PIN, KEY, BALANCE = f"{MARK}-pin-4711", f"{MARK}-key-0815", f"{MARK}-balance-99"
ARGUMENTS = {"to": "bob", "pin": PIN, "keys": [{"secret": KEY, "label": "main"}]}
SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "pin": {"type": "string", "sensitive": True},
        "keys": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"secret": {"type": "string", "writeOnly": True}, "label": {"type": "string"}},
            },
        },
    },
}
OUTPUT = {"type": "object", "properties": {"balance": {"type": "string", "sensitive": True}}}


async def pay(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"balance": BALANCE}}


async def fail(request: Request) -> dict[str, Any]:
    return {"success": False, "error": f"The pin {PIN} is wrong, and {KEY} as well.", "effect_state": "none"}


async def lose(request: Request) -> web.Response:
    return web.Response(status=500, text=f"Traceback: pin={PIN!r} key={KEY!r} balance={BALANCE!r}")


async def lie(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"balance": [BALANCE]}}


async def garble(request: Request) -> web.Response:
    return web.Response(text=f'{{"tool_name": "{PIN}", {BALANCE}', content_type="application/json")


async def hang(request: Request) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def make_bank() -> ModuleServer:
    bank = ModuleServer("bank")
    tools: dict[str, Tool] = {"pay": pay, "fail": fail, "lose": lose, "lie": lie, "garble": garble, "hang": hang}
    for method, tool in tools.items():
        bank.add(method, tool, effect="once", input_schema=SCHEMA, output_schema=OUTPUT)
    bank.add("again", lose, effect="read", input_schema=SCHEMA, output_schema=OUTPUT)
    return bank


@dataclass
class Watched:
    """A fleet, with everybody who looks at it. `events` are what Celery's workers have published."""

    bed: TestBed
    worker: WorkerProcess
    flower: httpx.AsyncClient
    redis: Redis
    events: list[dict[str, Any]] = field(default_factory=list)
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Hear them meanwhile, as any listener of Celery's does."""
        app, loop = make_app(self.bed.settings, stores_results=False), asyncio.get_running_loop()
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": self.events.append})
            receiver.on_consume_ready = lambda *_, **__: loop.call_soon_threadsafe(self.is_listening.set)
            hearing = asyncio.create_task(asyncio.to_thread(receiver.capture, wakeup=False))
            await asyncio.wait_for(self.is_listening.wait(), PATIENCE_SECONDS)
            try:
                yield
            finally:
                receiver.should_stop = True
                await hearing
        app.close()

    def inspected(self) -> str:
        """What `celery inspect` shows of running and waiting calls."""
        app = make_app(self.bed.settings)
        try:
            inspect = app.control.inspect(timeout=5, limit=1)
            return json.dumps([inspect.active(), inspect.reserved(), inspect.scheduled()])
        finally:
            app.close()


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """With calls in Redis, or in RabbitMQ, where it is Celery that runs a call's task."""
    if request.param == "rabbitmq" and not is_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    with contextlib.ExitStack() as stack:
        bank = stack.enter_context(serve(make_bank()))
        url = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        more: dict[str, object] = {"log_level": "DEBUG", "log_format": "json"}
        if request.param == "rabbitmq":
            more["broker_url"] = stack.enter_context(rabbitmq(tmp_path_factory.mktemp("rabbitmq"))).url
        yield TestBed(url, (bank,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def flower_url(bed: TestBed) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, held_port(0) as port:
        patch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
        with program(bed, flower_command("127.0.0.1", port), "flower", ready="Visit me"):
            yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def watched(bed: TestBed, worker: WorkerProcess, flower_url: str) -> AsyncIterator[Watched]:
    async with (
        httpx.AsyncClient(base_url=flower_url, timeout=PATIENCE_SECONDS, verify=PLAIN) as flower,
        Redis.from_url(bed.redis_url) as redis,
    ):
        watched = Watched(bed, worker, flower, redis)

        async def hears() -> bool:
            return "flower_worker_online{" in (await flower.get("/metrics")).text

        await wait_until_answered(hears, "Flower hears the worker")
        async with watched.listening():
            yield watched


@pytest.mark.timeout(180)
async def test_nobody_who_watches_sees_it(watched: Watched, owner: Caller) -> None:
    """Whatever becomes of a call: done, failed in the module's words, retried, its end unknown, its reply unreadable."""
    with capture_logs() as said:
        results, running, shown_workers = await run_all(watched, owner)
    assert results["pay"].result == {"balance": BALANCE}, "the caller gets it"
    assert PIN in str(results["fail"].error), "the model reads its module's words"
    assert "bank.hang" in running

    stored = await watched.flower.get(f"/api/task/result/{results['pay'].audit.call_id}")

    await bad_messages(watched)
    ids = {result.audit.call_id for result in results.values()}
    tasks = await flower_tasks(watched, ids - {results["refused"].audit.call_id})
    audit = list[Any]()

    async def is_audited() -> bool:
        found: Any = await watched.redis.xrange("toolfleet:audit")
        audit[:] = [line for line in found if any(call_id in str(line) for call_id in ids)]
        return len(audit) >= len(results)

    await wait_until_answered(is_audited, "each call has its line")
    letters = await DeadLetters(watched.redis).list()
    assert len(audit) == len(results)
    assert {letter.tool_name for letter in letters if isinstance(letter, DeadLetter)} >= {"bank.again", "bank.garble"}
    assert "bank.fail" in tasks
    places = {
        "the worker's log": watched.worker.said(),
        "the agent's log": str(said),
        "all logs": "".join(path.read_text() for path in watched.bed.folder.iterdir()),
        "events": json.dumps(watched.events),
        "inspect": running,
        "Flower's tasks": tasks,
        "Flower's workers": shown_workers,
        "Flower's results": stored.text,
        "the audit": str(audit),
        "dead letters": str(letters),
    }
    assert [place for place, text in places.items() if MARK in text or MARK in decoded(text)] == []
    assert "tool_call_audited" in places["the worker's log"]


async def test_flower_shows_how_a_call_ended(watched: Watched, owner: Caller) -> None:
    """A word in place of its result or its error: `done`, or its error code; also for an attempt that is made once more."""
    calls = [ToolCall(tool_name=f"bank.{method}", arguments=ARGUMENTS) for method in ("pay", "fail", "again")]
    async with ToolFleet(settings=watched.bed.settings) as fleet:
        ids = {(await fleet.call(call, owner)).audit.call_id for call in calls}
    known = json.loads(await flower_tasks(watched, ids))
    shown = {known[call_id]["name"]: known[call_id] for call_id in ids}

    assert {name: (task["state"], task["result"], task["exception"]) for name, task in shown.items()} == {
        "bank.pay": ("SUCCESS", "done", None),
        "bank.fail": ("FAILURE", None, "module_error"),
        "bank.again": ("FAILURE", None, "module_error"),
    }
    assert {task["args"] for task in shown.values()} == {"(keys=…, pin=…, to=…)"}

    def retried() -> list[tuple[Any, Any]]:
        events = [event for event in watched.events if event["type"] == "task-retried"]
        return [(event["exception"], event["traceback"]) for event in events]

    await wait_until(lambda: len(retried()) >= 2, "both retries are told")  # Flower may have heard of the end before us
    assert retried() == [("module_error", None)] * 2


async def run_all(watched: Watched, owner: Caller) -> tuple[dict[str, ToolResult], str, str]:
    """A call of each kind; with what can be seen of one that runs, in Celery and in Flower."""
    async with ToolFleet(settings=watched.bed.settings) as fleet:
        results = {}
        for method in ("pay", "fail", "lose", "lie", "garble", "again"):
            results[method] = await fleet.call(ToolCall(tool_name=f"bank.{method}", arguments=ARGUMENTS), owner)
        hanging = await fleet.submit(ToolCall(tool_name="bank.hang", arguments=ARGUMENTS), owner)
        await wait_until(lambda: watched.bed.modules[0].running, "the module has the call")
        running = await asyncio.to_thread(watched.inspected)
        shown_workers = (await watched.flower.get("/api/workers?refresh=1")).text
        await hanging.cancel()
        results["hang"] = await hanging.result(PATIENCE_SECONDS)
        refused = ToolCall(tool_name="bank.pay", arguments={**ARGUMENTS, "to": 5})
        results["refused"] = await fleet.call(refused, owner)
    return results, running, shown_workers


async def bad_messages(watched: Watched) -> None:
    """Messages with such values that are no calls: no JSON at all, of an unknown task, and without a call in it."""
    app = make_app(watched.bed.settings, stores_results=False)
    before = len(watched.worker.said())
    try:
        app.send_task("toolfleet.gone", [PIN, {"key": KEY}], queue="tools.bank")
        app.send_task("toolfleet.execute", [json.dumps(ARGUMENTS)], kwargs={"x": KEY}, queue="tools.bank")
    finally:
        app.close()
    await wait_until(lambda: "toolfleet.gone" in watched.worker.said()[before:], "the worker has logged them")
    if watched.bed.settings.has_redis_broker:
        await watched.redis.lpush("tools.bank", f'{{"pin": "{PIN}"')
        await watched.redis.lpush("toolfleet:bell:tools.bank", "1")
        await wait_until(lambda: "message_quarantined" in watched.worker.said()[before:], "it is in quarantine")


async def flower_tasks(watched: Watched, ids: set[str]) -> str:
    """Flower's answer once it knows of these calls' ends."""
    text = ""

    async def have_ended() -> bool:
        nonlocal text
        text = (await watched.flower.get("/api/tasks")).text
        known = json.loads(text)
        return all(known.get(call_id, {}).get("state") in {"SUCCESS", "FAILURE"} for call_id in ids)

    await wait_until_answered(have_ended, "Flower has heard of it")
    return text


def decoded(text: str) -> str:
    """With what it has in base64, as Celery's message bodies are."""
    words = (word.strip("\"'\\,") for word in text.split() if len(word) > len(MARK))
    return "".join(_plain(word) for word in words)


def _plain(word: str) -> str:
    try:
        return base64.b64decode(word).decode(errors="replace")
    except ValueError:
        return ""
