"""What an MCP server logs: to the call that it is of, as its caller wants it, and to nobody else."""

import asyncio
import logging
from pathlib import Path

import pytest

from support.hosts.mcp_server import KINDS, HostedServer, hosted_nest
from support.waiting import wait_until
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.client import ModuleResult
from toolfleet_registry.contracts.call_context import MOST_MESSAGES, LogLevel, LogMessage

pytestmark = pytest.mark.asyncio


async def log(served: HostedServer, text: str, level: LogLevel | None, user_id: str | None = None) -> ModuleResult:
    return await served.client.send("nest.log", {"text": text}, log_level=level, user_id=user_id)


def wakes(text: str) -> LogMessage:
    return LogMessage(level="info", data=f"{text} wakes", logger="owls")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_hears_what_it_wants_to_hear(tmp_path: Path, kind: str) -> None:
    """Whatever the server speaks: what is grave enough, and nothing unless it was asked for. Older ones are told the lowest level, once."""
    async with hosted_nest(kind, tmp_path) as served:
        silent = await log(served, "ada", None)
        info = [await log(served, "ada", "info") for _ in range(2)]
        error = await log(served, "ada", "error")
        debug = await log(served, "ada", "debug")

    warning = LogMessage(level="warning", data={"owl": "ada", "key": "egg", "nothing": None}, logger="owls")
    quiet = LogMessage(level="debug", data="ada sleeps", logger="owls")
    assert all(each.success for each in (silent, *info, error, debug))
    assert (silent.log, error.log) == ((), ())
    assert [each.log for each in info] == [(wakes("ada"), warning)] * 2
    assert debug.log == (quiet, wakes("ada"), warning)
    levels = [each for each in served.noted() if each.startswith("level")]
    assert levels == (["level info", "level debug"] if "--old" in kind else [])


async def test_two_callers_of_one_program_never_hear_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While both are at work nobody hears anything: it is in the host's log."""
    caplog.set_level(logging.INFO, "toolfleet.host.server")
    async with hosted_nest("stdio", tmp_path) as served:
        ada = asyncio.ensure_future(log(served, "ada!", "debug", "ada"))
        await wait_until(lambda: "log ada!" in served.noted(), "the first call runs")
        bob = asyncio.ensure_future(log(served, "bob!", "debug", "bob"))
        await wait_until(lambda: "bob! wakes" in caplog.text, "the second call has said something")
        (tmp_path / "go").touch()
        results = await asyncio.gather(ada, bob)

    heard = [
        {message.data if isinstance(message.data, str) else message.data["owl"] for message in each.log}
        for each in results
    ]
    assert all(each.success for each in results)
    assert heard[0] <= {"ada! sleeps", "ada! wakes", "ada!"}
    assert heard[1] <= {"bob!"}


@pytest.mark.parametrize("kind", ["http", "http --old"])
async def test_over_http_each_caller_hears_its_own(tmp_path: Path, kind: str) -> None:
    """A message comes on the stream of its request: also with many at once."""
    async with hosted_nest(kind, tmp_path) as served:
        names = [f"owl{number}!" for number in range(8)]
        calls = [asyncio.ensure_future(log(served, name, "info", name)) for name in names]
        await wait_until(lambda: all(f"log {name}" in served.noted() for name in names), "all calls run")
        (tmp_path / "go").touch()
        results = await asyncio.gather(*calls)

    assert all(each.success for each in results)
    for name, each in zip(names, results, strict=True):
        assert each.log[0].data == f"{name} wakes"
        assert [message.data["owl"] for message in each.log[1:]] == [name]


async def test_a_flood_is_bounded_and_counted(tmp_path: Path) -> None:
    """The first messages are passed on, the last one says how many were left out, and the call is none the worse."""
    async with hosted_nest("http", tmp_path) as served:
        flooded = await served.client.send("nest.flood", {"text": "700"}, log_level="info")

    assert flooded.success
    assert [message.data for message in flooded.log[:-1]] == [str(number) for number in range(MOST_MESSAGES)]
    assert (flooded.log[-1].level, flooded.log[-1].logger) == ("warning", "toolfleet")
    assert flooded.log[-1].data.startswith("500 log messages were left out")


@pytest.mark.parametrize("kind", ["http", "http --old"])
async def test_secrets_are_hidden_in_what_a_server_logs(tmp_path: Path, kind: str) -> None:
    """As in its results."""
    async with hosted_nest(kind, tmp_path, {"EGG": "s3cr3t-owl"}, secrets=Secrets({"EGG": "s3cr3t-owl"})) as served:
        heard = await log(served, "ada", "info")

    assert heard.log[-1].data["owl"] == "ada"
    assert "s3cr3t" not in str(heard.log)
