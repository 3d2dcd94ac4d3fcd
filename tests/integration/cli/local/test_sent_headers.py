"""What an executor sends to a module beside its own headers, and what becomes of a module that quotes it."""

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from support.module_server import serve
from support.modules.raw_module import answering, http, raw_module, reply
from support.owls import make_module
from support.published_call import published
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.contracts.attempts import Health, Outcome
from toolfleet_registry.headers import ModuleHeaders
from toolfleet_registry.settings import Settings
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor

TOKEN = "t0p-s3cret-t0ken"
BEARER = ModuleHeaders({"authorization": SecretStr(f"Bearer {TOKEN}")})


def executor_of(url: str, headers: ModuleHeaders = BEARER) -> HttpExecutor:
    return HttpExecutor({"research": url}, client=HttpClient(), max_reply_bytes=2**20, headers={"research": headers})


async def test_a_token_counts_more_than_the_password_of_the_url() -> None:
    async with raw_module(answering(http(reply()))) as module:
        executor = executor_of(module.url.replace("http://", "http://user:p%40ss@"))
        attempt = await executor.execute(published(), seconds=10)
        await executor.reconcile(published(), seconds=10)
        health = await executor.probe("research", seconds=10)
        await executor.aclose()

    assert (attempt.outcome, health) == (Outcome.SUCCESS, Health.WELL)
    assert [request.line.split()[1] for request in module.requests] == ["/execute", "/reconcile", "/health"]
    assert {request.headers["authorization"] for request in module.requests} == {f"Bearer {TOKEN}"}


async def test_headers_that_change_are_sent_from_then_on() -> None:
    """Those of an address that stays the same; and none to another module."""
    with serve(make_module()) as owls, serve(make_module("crows")) as crows:
        services = {"owls": owls.url, "crows": crows.url}
        executor = HttpExecutor(services, client=HttpClient(), max_reply_bytes=2**20)
        await executor.execute(published("owls.echo"), seconds=10)
        executor.serve(services, headers={"owls": BEARER})
        await executor.execute(published("owls.echo"), seconds=10)
        await executor.execute(published("crows.echo"), seconds=10)
        await executor.aclose()

    assert owls.visits == [("/execute", None), ("/execute", f"Bearer {TOKEN}")]
    assert crows.visits == [("/execute", None)]


async def test_a_refusal_shows_neither_token_nor_password() -> None:
    """The error of a 401 says what an operator can do; nor has a repr of what is sent the token."""
    async with raw_module(answering(http(f"no: Bearer {TOKEN}".encode(), "401 X"))) as module:
        executor = executor_of(module.url)
        with capture_logs() as lines:
            attempt = await executor.execute(published(), seconds=10)
        address = executor._book.first("research")
        shown = f"{address} {lines}"
        await executor.aclose()

    assert attempt.result.error is not None
    assert attempt.result.error.startswith("Module returned status 401: no: [hidden] (for the operator: it does not ")
    assert "module_refused_credentials" in shown
    assert TOKEN not in shown


async def test_a_success_is_the_modules_own() -> None:
    """A result that happens to have the token in it stays as it is."""
    async with raw_module(answering(http(reply(result=TOKEN)))) as module:
        executor = executor_of(module.url)
        attempt = await executor.execute(published(), seconds=10)
        await executor.aclose()
    assert attempt.result.result == TOKEN


def test_a_child_gets_them_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one place where they are written out: the environment of a process of the fleet."""
    settings = Settings(module_headers={"owls": {"Authorization": SecretStr(f"Bearer {TOKEN}")}})
    monkeypatch.setenv("TOOLFLEET_MODULE_HEADERS", environment_of(settings)["TOOLFLEET_MODULE_HEADERS"])

    assert Settings().module_headers == settings.module_headers
