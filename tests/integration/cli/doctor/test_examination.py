"""All checks at once: what hangs, breaks or is away is a finding, and keeps nobody waiting."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from support.command import Run
from support.programs.closed_port import closed_port
from toolfleet_cli.doctor.check import Check, CheckResult, Patient, remark, warning
from toolfleet_cli.doctor.examination import CHECKS, Examination, examine
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.settings import Settings


def scripted(name: str, result: CheckResult | Exception | None) -> Check:
    """A check that returns or raises this; with `None` it hangs."""

    async def examine(patient: Patient) -> CheckResult:
        del patient
        if result is None:
            await asyncio.Event().wait()
        if isinstance(result, Exception):
            raise result
        assert result is not None
        return result

    return Check(name, examine, seconds=0.05, asks_redis=False)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path / "redis") as url:
        yield url


def examined(url: str, *checks: Check) -> Examination:
    return asyncio.run(examine(Patient(Settings(redis_url=url), environ={}), checks))


def test_the_exit_code_says_what_was_found(redis_url: str) -> None:
    """0 for nothing and for notes, 1 for what weighs."""
    note, fault = remark("a", "b", "c"), warning("a", "b", "c")

    assert examined(redis_url, scripted("one", CheckResult())).exit_code == 0
    assert examined(redis_url, scripted("one", CheckResult((note,)))).exit_code == 0
    assert examined(redis_url, scripted("one", CheckResult((note, fault)))).exit_code == 1


def test_a_check_that_hangs_or_breaks_is_a_finding(redis_url: str) -> None:
    """The others are heard, and the doctor says that it could not look everywhere."""
    found = examined(
        redis_url,
        scripted("hangs", None),
        scripted("breaks", RuntimeError("a defect")),
        scripted("works", CheckResult((remark("seen", "b", "c"),))),
    )

    assert set(found.blind) == {"hangs", "breaks"}
    assert [finding.what for _, finding in found.findings if "seen" in finding.what] == ["seen"]
    assert found.exit_code == 2


def test_a_redis_that_is_away_is_a_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks nobody is looked at all the same, and the exit code is 2."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", f"redis://127.0.0.1:{closed_port()}/0")
    monkeypatch.setenv("TOOLFLEET_REDIS_ULR", "redis://127.0.0.1:1/0")
    ended = run("doctor")

    assert ended.code == 2
    assert "does not answer: nobody listens there" in ended.out
    assert "TOOLFLEET_REDIS_ULR is no setting" in ended.out
    assert "Not looked at: canary (Redis does not answer)" in ended.err


def test_a_frozen_redis_is_a_finding_and_keeps_nobody_waiting(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and answers nothing: the doctor gives up after seconds."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", url)
    with Redis.from_url(url) as redis:
        pid = int(redis.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        begun_at = time.monotonic()
        ended = run("doctor", "--json")
        took = time.monotonic() - begun_at
    finally:
        os.kill(pid, signal.SIGCONT)

    assert ended.code == 2
    assert '"severity": "error"' in ended.out
    assert took < sum(check.seconds for check in CHECKS)  # none of them has waited for all of its time
