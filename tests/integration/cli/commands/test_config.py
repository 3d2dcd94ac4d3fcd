"""`toolfleet config`: what is set, and where, without secrets."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from support.module_server import ModuleServer
from toolfleet_cli.console import SECRETS, shown_url
from toolfleet_registry.settings import Settings

KEY = "0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what the suite sets for all tests."""
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def toml(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something is set in every place."""
    path = elsewhere / "toolfleet.toml"
    path.write_text(f"""\
slow_modules = ["b", "a"]
registry_url = "postgresql://me:s3cret@db/tools"
signing_key = "{KEY}"

[module_services]
a = "http://me:s3cret@a:1"
""")
    monkeypatch.setenv("TOOLFLEET_DEFAULT_TIMEOUT", "7")
    return path


def test_each_setting_is_shown_with_its_place(run: Run, toml: Path) -> None:
    """The variable, or the file and its line; what is as it is by default is shown on demand."""
    rows = dict(line.split(maxsplit=1) for line in run("config").out.splitlines())

    assert set(rows) == {"SETTING", "slow_modules", "registry_url", "signing_key", "module_services", "default_timeout"}
    assert rows["default_timeout"].split() == ["7", "TOOLFLEET_DEFAULT_TIMEOUT"]
    assert rows["slow_modules"].rstrip().endswith(f"{toml}, line 1")
    assert rows["slow_modules"].startswith('["a", "b"]')
    assert rows["module_services"].rstrip().endswith(f"{toml}, line 5")
    everything = run("config", "--all").out
    assert "audit_kept" in everything
    assert everything.count("\n") == len(Settings.model_fields) + 1


def test_it_shows_no_secret(run: Run, toml: Path) -> None:
    """Neither keys nor passwords, for people and for programs."""
    for words in (["--all"], ["--json"]):
        said = run("config", *words).out

        assert [text in said for text in (KEY, "s3cret", "(hidden)", "http://me:**@a:1")] == [False, False, True, True]


def test_every_setting_that_may_hold_a_secret_is_known() -> None:
    """Settings that no log shows are hidden here, or URLs."""
    quiet = {name for name, field in Settings.model_fields.items() if not field.repr}

    assert quiet - SECRETS == {"redis_url", "broker_url", "registry_url", "module_services", "core_url"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:s3cret@host/0", "redis://:**@host/0"),
        ("redis://me:s3:c@ret@host/0", "redis://me:**@host/0"),
        (
            "sentinel://me:s3cret@a:1,b:2/0?sentinel_password=s3cret&ssl=1",
            "sentinel://me:**@a:1,b:2/0?sentinel_password=**&ssl=1",
        ),
        ("amqp://me:s3cret@a;amqp://me:s3cret@b", "amqp://me:**@b"),
        ("postgresql://me:s3/cret@db/tools", "postgresql://me:**@db/tools"),
        ("http://a:80/b", "http://a:80/b"),
    ],
)
def test_a_url_is_shown_without_passwords(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_it_has_a_form_for_programs(run: Run, toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings, with their values as JSON."""
    monkeypatch.setenv("TOOLFLEET_UNSERVED_SECONDS", "inf")
    said = run("config", "--json").out
    found: dict[str, Any] = {one["setting"]: one for one in json.loads(said)["settings"]}

    assert "Infinity" not in said
    assert found["unserved_seconds"]["value"] == "inf"
    assert set(found) == set(Settings.model_fields)
    assert found["default_timeout"] == {
        "setting": "default_timeout",
        "variable": "TOOLFLEET_DEFAULT_TIMEOUT",
        "value": 7,
        "source": "environment",
        "place": "TOOLFLEET_DEFAULT_TIMEOUT",
    }
    assert (found["lane"]["source"], found["lane"]["place"]) == ("default", None)


def test_it_lists_the_tools_that_are_reached_now_and_were_not_before(
    run: Run, owls: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By callers who name no modules; without a Redis that answers the rest is there all the same."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": owls.url}))
    run("modules", "refresh")
    assert "and not before: owls.admin_only, owls.brief_nap, owls.echo" in run("config").out
    monkeypatch.setenv("TOOLFLEET_DEFAULT_GUEST_MODULES", "owls")
    assert "not before" not in run("config").out

    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "redis://127.0.0.1:1/0")
    away = run("config")
    assert away.code == 0
    assert "redis://127.0.0.1:1/0" in away.out
    assert "Which tools are reached is not known: Redis at 127.0.0.1:1 does not answer" in away.err


def test_a_file_that_nothing_reads_is_named(run: Run, elsewhere: Path) -> None:
    """Who has written a `.env` for a compose file may think that it holds here."""
    (elsewhere / ".env").write_text("TOOLFLEET_LANE=fast\n")
    ended = run("config")

    assert f"{elsewhere / '.env'} is not read here" in ended.err
    assert "Nothing is set here" in ended.err
