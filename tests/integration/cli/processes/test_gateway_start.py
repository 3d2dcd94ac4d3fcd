"""Where `toolfleet gateway` starts, and where it does not."""

import contextlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.gateways.gateway_process import LEAVE_SECONDS
from support.programs.shortened import TESTS, shortened
from support.servers.plain_http import PLAIN
from support.waiting import wait_until_sync
from toolfleet_cli import console as console_output
from toolfleet_cli.commands.up import can_have_gateway
from toolfleet_gateway.auth.own_secrets import generate_key
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.settings import Settings

EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is what is asked for


@contextmanager
def gateway(redis_url: str, log: Path, *options: str) -> Generator[str]:
    """What a gateway that is ready has said."""
    command = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", "0", *options]
    env = {"TOOLFLEET_REDIS_URL": redis_url, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = spawn(shortened(command, {LEAVE_SECONDS: 0}), env=env, output=output)
    try:
        wait_until_sync(lambda: "ready url=" in log.read_text() or process.poll() is not None, "it is ready")
        assert process.poll() is None, log.read_text()
        yield log.read_text()
    finally:
        stop(process, patience_seconds=10)


def test_a_gateway_without_keys_lets_nobody_in_from_elsewhere(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts, makes no key and takes none that it was given itself, says what it needs, and takes the first API key at once."""
    given = generate_key().text
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", given)
    with gateway(redis_url, tmp_path / "log", "--host", EVERYWHERE) as said:
        assert "key:" not in said
        assert "All requests are refused until `toolfleet keys create` has made a key." in said
        url = f"http://127.0.0.1:{said.rpartition(':')[2].strip()}/tools"

        def status(key: str) -> int:
            return httpx.get(url, headers={"authorization": f"Bearer {key}"}, verify=PLAIN).status_code

        assert status(given) == 401
        with contextlib.closing(ApiKeys.of(Settings(redis_url=redis_url))) as keys:
            made = keys.create(KeyDraft(user_id="ada"), COMMAND_LINE)
        wait_until_sync(lambda: status(made.text) == 200, "the first key is known")


def test_it_makes_a_key_for_this_machine(redis_url: str, tmp_path: Path) -> None:
    """Which it prints once, before it is ready."""
    with gateway(redis_url, tmp_path / "log") as said:
        assert said.startswith("key: tfk_")
        assert "url=http://127.0.0.1:" in said


def test_a_fleet_without_the_libraries_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`toolfleet up` says so in one line."""
    assert can_have_gateway()
    monkeypatch.setitem(console_output.__dict__["_LIBRARIES"], "gateway", ("no_such_library",))

    assert not can_have_gateway()
    assert "no_such_library is not installed: pip install 'toolfleet[gateway]'" in capsys.readouterr().err
