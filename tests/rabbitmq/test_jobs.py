"""Jobs of a fleet whose calls wait in RabbitMQ: their records are in Redis, their calls and kicks go through the broker."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import SIGNING_KEY, TestBed, program
from support.module_server import serve
from support.modules.works import Works, make_works
from support.servers.rabbitmq import RabbitMq
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet, WakeUp
from toolfleet_cli.local.environment import beat_command
from toolfleet_registry.contracts.names import PROGRAMS
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages.ids import RESUME_PROGRAMS, step_call_id, then_call_id
from toolfleet_tasks.queues import queue_of

JOBS = 20
POLL = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.2)
SHIP = ToolCall(tool_name="works.ship", arguments={"path": "/work"})


@pytest.fixture
def works() -> Iterator[Works]:
    works = make_works(ends_after=3)
    with serve(works.server):
        yield works


@pytest.fixture
def bed(broker: RabbitMq, works: Works, redis_url: str, tmp_path: Path) -> TestBed:
    more = {
        "broker_url": broker.url,
        "jobs_interval_seconds": 0.2,
        "visibility_timeout": 4,
    }
    return TestBed(redis_url, (works.server,), tmp_path, more)


async def heard(fleet: ToolFleet, count: int) -> list[WakeUp]:
    news = list[WakeUp]()
    async with contextlib.aclosing(fleet.wakeups.completions("c")) as completions:
        while len(news) < count:
            news.append(await anext(completions))
    return news


@pytest.mark.slow
async def test_killed_workers_cost_no_job_and_double_none(bed: TestBed, works: Works, owner: Caller) -> None:
    """Each job's start is made at most once, each end is told once, and the call of each end that is good is made once."""
    here, ids = Conversation(conversation_id="c"), list[str]()
    with program(bed, beat_command(), "beat", ready="beat: Starting"):
        async with ToolFleet(settings=bed.settings) as fleet, asyncio.timeout(3 * PATIENCE_SECONDS):
            with bed.worker() as worker:
                for _ in range(JOBS):
                    wishes = ["resume_conversation", SHIP]
                    start = ToolCall(tool_name="works.begin")
                    job = await fleet.jobs.start(start, POLL, wishes, here, 600, caller=owner)  # type: ignore[arg-type] # of those two
                    ids.append(job.job_id)
                await wait_until(lambda: len(works.server.calls("state")) > 5, "jobs are polled")
                worker.send_signal(signal.SIGKILL)
            with bed.worker():
                news = await heard(fleet, JOBS)
                good = [wake.job_id for wake in news if wake.type == "job.completed"]
                await wait_until(lambda: len(works.server.calls("ship")) >= len(good), "the ends' calls are made")

    begun, shipped = works.server.call_ids("begin"), works.server.call_ids("ship")
    assert sorted(wake.job_id for wake in news) == sorted(ids)
    assert sorted(begun) == sorted(step_call_id(job_id, 0) for job_id in ids)
    assert sorted(shipped) == sorted(then_call_id(job_id, 0) for job_id in good)
    assert all(wake.error_code == "outcome_unknown" for wake in news if wake.job_id not in good)


async def test_a_worker_asks_those_of_a_queue_that_it_does_not_consume(bed: TestBed, broker: RabbitMq) -> None:
    """A worker that runs no programs has those who do go on with one whose call it has run."""
    app = make_app(bed.settings)
    queue = queue_of(PROGRAMS)
    assert queue not in {each.name for each in app.conf.task_queues}
    try:
        await app.publisher.control(RESUME_PROGRAMS, "program-a", queue=queue)
        await wait_until(lambda: broker.waiting(queue) == 1, "the request is there")
        await app.publisher.control(RESUME_PROGRAMS, "", queue=queue, limit=1)
        await app.publisher.control(RESUME_PROGRAMS, "program-b", queue=queue)
        await wait_until(lambda: broker.waiting(queue) == 2, "what is one too many is not")
    finally:
        app.publisher.close()
        broker.purge(queue)


async def test_a_program_runs(broker: RabbitMq, works: Works, redis_url: str, tmp_path: Path, owner: Caller) -> None:
    """Its calls go through the broker, each once, one after the other and several at once."""
    more = {"broker_url": broker.url, "programs": True, "signing_key": SIGNING_KEY}
    bed = TestBed(redis_url, (works.server,), tmp_path, more)
    source = (
        "import asyncio\nfirst = await works__begin()\nrest = await asyncio.gather(*(works__begin() for _ in range(9)))\n"
        "return sorted(one['task']['id'] for one in [first, *rest])"
    )
    with program(bed, beat_command(), "beat", ready="beat: Starting"), bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet, asyncio.timeout(3 * PATIENCE_SECONDS):
            result = await fleet.call(ToolCall(tool_name="programs.run", arguments={"source": source}), owner)

    assert result.result == sorted(works.pieces), result
    assert len(works.server.call_ids("begin")) == 10
