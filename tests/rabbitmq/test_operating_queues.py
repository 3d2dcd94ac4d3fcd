"""Operators at a fleet over RabbitMQ: by command, REST, client and console, while it works and while RabbitMQ is away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from support.console.plain_browser import browsing
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, serve
from support.modules.listed_modules import until_listed
from support.owls import make_module
from support.servers.rabbitmq import RabbitMq, is_installed, rabbitmq
from support.up import toolfleet
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, QueueOverview, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_tasks.operations.changes import ModuleChanges

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
_ASKED_WHILE_AWAY = {"queues list": 0, "status": 0, "queues drain owls --wait 1": 1}  # with the exit code
KNOWN_SECONDS = 3  # a change of the directory of modules is known everywhere within two
ECHO = ToolCall(tool_name="owls.echo", arguments={"word": "hoot"})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """One of its own: what others leave in a queue would be counted."""
    if not is_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture(scope="module")
def bed(broker: RabbitMq, owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        more = {"broker_url": broker.url, "worker_concurrency": 4, "calls_per_caller": 1000}
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def gateway(bed: TestBed) -> Iterator[KeyedGateway]:
    with ExitStack() as stack:
        stack.enter_context(bed.worker())
        yield stack.enter_context(keyed_gateway(bed))


@pytest.fixture
async def fleet(bed: TestBed, gateway: KeyedGateway, owls: ModuleServer) -> AsyncIterator[ToolFleet]:
    """Each test begins and ends with an open queue, in which nothing waits."""
    owls.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
        await fleet.queues.resume("owls")

        async def is_empty() -> bool:
            return (await queue_of(fleet)).is_empty

        await wait_until_answered(is_empty, "nothing is left")


async def command(bed: TestBed, *words: str, key: str = "") -> tuple[int, str]:
    """Run `toolfleet` with these words. Its exit code, and all that it has said."""
    env = {**environment_of(bed.settings), **({"TOOLFLEET_GATEWAY_KEY": key} if key else {})}
    ended = await asyncio.to_thread(toolfleet, *words, cwd=bed.folder, env=env)
    return ended.returncode, ended.stdout + ended.stderr


async def queue_of(fleet: ToolFleet, module: str = "owls") -> QueueOverview:
    return next(queue for queue in await fleet.queues.list() if queue.module == module)


async def until(fleet: ToolFleet, state: str, waiting: int) -> None:
    async def is_so() -> bool:
        one = await queue_of(fleet)
        return (one.state, one.waiting) == (state, waiting)

    await wait_until_answered(is_so, f"{waiting} calls wait in a queue that is {state}")


async def submit(fleet: ToolFleet, count: int) -> list[asyncio.Task[bool]]:
    async def call() -> bool:
        return (await fleet.call(ECHO, OWNER, timeout=90)).success

    return [asyncio.create_task(call()) for _ in range(count)]


async def test_commands_pause_show_and_resume(bed: TestBed, fleet: ToolFleet, owls: ModuleServer) -> None:
    """`queues list` and `status` have RabbitMQ's number, and say of no call how long it has waited."""
    assert (await command(bed, "queues", "pause", "owls", "--reason", "moved"))[0] == 0
    calls = await submit(fleet, 3)
    await until(fleet, "paused", 3)
    listed = json.loads((await command(bed, "queues", "list", "--json"))[1])
    status = json.loads((await command(bed, "status", "--json"))[1])
    code, doctor = await command(bed, "doctor", "--canary-seconds", "2")

    (one,) = [queue for queue in listed if queue["module"] == "owls"]
    assert (one["state"], one["waiting"], one["oldest_seconds"], one["workers"]) == ("paused", 3, None, 1)
    (shown,) = [queue for queue in status["queues"] if queue["queue"] == "tools.owls"]
    assert (shown["state"], shown["waiting"], shown["oldest_seconds"], status["held"]) == ("paused", 3, None, None)
    assert "paused" in doctor, (code, doctor)
    assert owls.calls("echo") == []
    assert (await command(bed, "queues", "resume", "owls"))[0] == 0
    assert await asyncio.gather(*calls) == [True] * 3


async def test_a_command_waits_until_a_draining_queue_is_empty(
    bed: TestBed, fleet: ToolFleet, gateway: KeyedGateway, owls: ModuleServer
) -> None:
    """Also for calls that have just left their queue, of which no worker has said that it runs them; directly and over a gateway."""
    for reach, key in (((), ""), (("--url", gateway.url), gateway.keys["olga"].text)):
        owls.forget()
        naps = [
            await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1.5}), OWNER) for _ in range(6)
        ]
        code, said = await command(bed, "queues", "drain", "owls", "--wait", "40", *reach, key=key)
        assert (code, len(owls.calls("nap_once")), owls.running) == (0, 6, 0), said
        assert [(await nap.result(PATIENCE_SECONDS)).success for nap in naps] == [True] * 6
        await fleet.queues.resume("owls")


async def test_a_gateway_and_its_console_pause_show_and_resume(
    fleet: ToolFleet, gateway: KeyedGateway, owls: ModuleServer
) -> None:
    """The page *Queues* and the overview have RabbitMQ's number, too."""
    assert (await gateway.post("olga", "/operations/queues/owls", {"action": "pause"})).json()["changed"]
    calls = await submit(fleet, 4)
    await until(fleet, "paused", 4)
    shown = (await gateway.get("vera", "/operations/queues/owls")).json()["queues"][0]
    assert (shown["state"], shown["waiting"], "oldest_seconds" in shown) == ("paused", 4, False)
    async with browsing(gateway, "olga") as browser:
        page = await browser.get("/queues")
        assert "tools.owls" in page.text
        assert "paused" in page.text
        assert (await browser.get("/")).status == 200
        assert owls.calls("echo") == []
        answer = await browser.post("/queues", {"queue": "owls", "action": "resume", "csrf": await browser.csrf()})
    assert answer.status_code == 303
    assert await asyncio.gather(*calls) == [True] * 4


async def test_while_rabbitmq_is_away_a_queue_can_be_paused_and_nobody_says_that_it_is_empty(
    bed: TestBed, fleet: ToolFleet, gateway: KeyedGateway, broker: RabbitMq, owls: ModuleServer
) -> None:
    """States are Redis's. What waits is not known: that is said, in time, with all that is. The gateway is not ready for calls."""
    calls = await submit(fleet, 1)
    assert await asyncio.gather(*calls) == [True]
    async with broker.away():
        away = "The broker does not answer"
        for words, expected in _ASKED_WHILE_AWAY.items():
            code, said = await command(bed, *words.split())
            assert (code, away in said) == (expected, True), (words, said)
        code, said = await command(bed, "status")
        assert [line for line in said.splitlines() if line.startswith(("Lane fast", "Dead letters"))] == [
            "Lane fast    1 worker, 4 slots, 1 module",
            "Dead letters 0",
        ]
        assert (await command(bed, "queues", "pause", "owls"))[0] == 0
        listed = [(one.state, one.waiting, one.workers, one.is_empty) for one in await fleet.queues.list()]
        assert listed == [("paused", None, 1, False)]
        answer = await gateway.get("vera", "/operations/queues")
        shown = answer.json()
        assert (answer.status_code, away in shown["broker_error"], "waiting" in shown["queues"][0]) == (
            200,
            True,
            False,
        )
        assert away in (await gateway.get("vera", "/operations/status")).json()["broker_error"]
        ready = await gateway.get("vera", "/readyz")
        assert (ready.status_code, "the broker does not answer" in ready.text) == (503, True)
        async with browsing(gateway, "vera") as browser:
            for path in ("/queues", "/"):
                page = await browser.get(path)
                assert (page.status, away in page.text) == (200, True), page.text
        code, doctor = await command(bed, "doctor", "--canary-seconds", "2")
        assert (code, "a defect" in doctor) == (2, False), doctor
        assert "No call can be published or begun." in doctor, doctor
        assert "The broker does not answer: nobody listens there" in doctor, doctor
    await until(fleet, "paused", 0)
    waiting = await submit(fleet, 3)
    await until(fleet, "paused", 3)
    await fleet.queues.resume("owls")
    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_removed_module_stays_listed_and_what_waits_there_is_ended(bed: TestBed, fleet: ToolFleet) -> None:
    """For a day, as an agent that has not heard of it may still publish there: its call is ended as one that was not executed."""
    with serve(make_module("larks")) as larks:
        async with ModuleChanges.of(bed.settings) as changes:
            await changes.add(ModuleEntry(module="larks", url=larks.url))
            await until_listed(fleet, OWNER, "larks", "owls")
            await fleet.queues.pause("larks")
            late = await fleet.submit(ToolCall(tool_name="larks.echo"), OWNER, timeout=60)
            await changes.remove("larks", drain_seconds=0)
        await until_listed(fleet, OWNER, "owls")
        known_at = time.monotonic() + KNOWN_SECONDS
        await wait_until(lambda: time.monotonic() > known_at, "workers know that it is removed")
        await fleet.queues.resume("larks")
        result = await late.result(2 * PATIENCE_SECONDS)
        assert (result.error_code, result.effect_state, larks.requests) == ("unknown_module", "none", [])

    async def is_served() -> bool:
        one = await queue_of(fleet, "larks")
        return (one.state, one.waiting, one.held, one.workers) == ("open", 0, 0, 1)

    await wait_until_answered(is_served, "its queue is empty, and served")
