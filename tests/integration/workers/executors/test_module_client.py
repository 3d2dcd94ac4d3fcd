"""The executor and its HTTP client meet in a port: whichever client is behind it, a call ends alike."""

from collections.abc import AsyncIterator, Callable

import pytest

from support.module_server import ModuleServer
from support.modules.httpx_client import HttpxClient
from support.programs.closed_port import closed_port
from support.published_call import published
from toolfleet_registry.contracts.attempts import Health, Outcome
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.executors.module_client import HttpClientPort

SECONDS = 10


@pytest.fixture(params=[HttpClient, HttpxClient])
async def executor(request: pytest.FixtureRequest, owls: ModuleServer) -> AsyncIterator[HttpExecutor]:
    make: Callable[[], HttpClientPort] = request.param
    services = {"owls": owls.url, "away": f"http://127.0.0.1:{closed_port()}"}
    executor = HttpExecutor(services, client=make(), max_reply_bytes=2**20)
    yield executor
    await executor.aclose()


@pytest.mark.parametrize(
    ("tool", "outcome", "error"),
    [
        ("owls.echo", Outcome.SUCCESS, None),
        ("owls.fail", Outcome.FAILED, "I cannot."),
        ("owls.turn_away", Outcome.TURNED_AWAY, "Module returned status 503: later"),
        ("away.echo", Outcome.NOT_SENT, "Tool execution error: Connection refused"),
    ],
)
async def test_a_call_ends_alike(executor: HttpExecutor, tool: str, outcome: Outcome, error: str | None) -> None:
    """Sent or not, answered with a result, a failure or a refusal."""
    attempt = await executor.execute(published(tool), seconds=SECONDS)

    assert (attempt.outcome, attempt.result.error) == (outcome, error)


async def test_a_probe_finds_out_who_is_there(executor: HttpExecutor) -> None:
    """Over whichever client."""
    assert await executor.probe("owls", seconds=SECONDS) is Health.WELL
    assert await executor.probe("away", seconds=SECONDS) is Health.AWAY
