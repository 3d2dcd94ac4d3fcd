"""`toolfleet keys`, on a real Redis."""

import functools
import json

import pytest

from support.command import Run
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.entries import key_seal
from toolfleet_registry.access.factory import open_key_store
from toolfleet_registry.access.port import KeyStore
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.contracts import Caller
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock

UNSEALED = key_seal(SigningSettings())


@pytest.fixture
def keys(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Run:
    """Runs `toolfleet keys`, with a Redis."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    return functools.partial(run, "keys")


@pytest.fixture
def store(redis_url: str) -> KeyStore:
    return open_key_store(Settings(redis_url=redis_url))


def test_a_key_is_printed_once(keys: Run, store: KeyStore) -> None:
    """On stdout stands nothing else, so that a program can take it; what lists it has only its id."""
    ended = keys("create", "--user", "ada", "--permission", "user", "--modules", "owls, notes", "--description", "CI")
    found = ApiKeys(store, UNSEALED).find(ended.out.strip())

    assert ended.code == 0
    assert found is not None
    assert found.caller == Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls", "notes"}))
    assert found.role == "none"
    assert found.expires_at == pytest.approx(fleet_clock.now() + 90 * 86400, abs=120)
    assert f"revoke {found.id}" in ended.err
    listed = keys("list")
    assert ended.out.strip() not in listed.out
    for shown in (found.id, "ada", "user", "notes, owls", "in 90 d", "never", "CI"):
        assert shown in listed.out


def test_a_key_has_what_it_is_given(keys: Run, store: KeyStore) -> None:
    """As JSON, too."""
    ended = keys(
        *(
            "create",
            "--user",
            "bot",
            "--permission",
            "owner",
            "--modules",
            "*",
            "--role",
            "admin",
            "--expires",
            "never",
        ),
        *("--acts-for-others", "--requests-per-second", "2.5", "--streams", "3", "--json"),
    )
    made = json.loads(ended.out)

    assert ApiKeys(store, UNSEALED).find(made.pop("key")) is not None
    (listed,) = json.loads(keys("list", "--json").out)
    assert listed == {**made, "last_used_at": None}
    assert {name: made[name] for name in ("allowed_modules", "role", "expires_at", "acts_for_others")} == {
        "allowed_modules": "*",
        "role": "admin",
        "expires_at": None,
        "acts_for_others": True,
    }
    assert (made["requests_per_second"], made["streams"], made["created_by"]) == (2.5, 3, "command line")
    assert "bot and others" in keys("list").out


@pytest.mark.parametrize(
    ("when", "seconds"),
    [("45m", 45 * 60), ("12h", 12 * 3600), ("30d", 30 * 86400), ("2w", 14 * 86400)],
)
def test_an_end_may_be_a_duration(keys: Run, when: str, seconds: int, store: KeyStore) -> None:
    """From now on."""
    found = ApiKeys(store, UNSEALED).find(keys("create", "--user", "ada", "--expires", when).out.strip())

    assert found is not None
    assert found.expires_at == pytest.approx(fleet_clock.now() + seconds, abs=120)


def test_an_end_may_be_a_date(keys: Run) -> None:
    """Its first moment, in UTC; or a time with its zone."""
    for when in ("2199-12-31", "2199-12-31T02:00+02:00"):
        made = json.loads(keys("create", "--user", "ada", "--expires", when, "--json").out)
        assert made["expires_at"] == "2199-12-31T00:00:00+00:00"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--expires", "soon"], "--expires"),
        (["--expires", "99999999d"], "--expires"),
        (["--expires", "2001-01-01"], "in the future"),
        (["--modules", "a b"], "--modules"),
        (["--user", ""], "--user"),
        (["--user", "x" * 257], "--user"),
        (["--user", "a\nb"], "--user"),
        (["--requests-per-second", "0"], "--requests-per-second"),
        (["--requests-per-second", "nan"], "--requests-per-second"),
        (["--streams", "-1"], "--streams"),
        (["--role", "owner"], "--role"),
        (["--permission", "root"], "--permission"),
        (["--description", "x" * 201], "--description"),
    ],
)
def test_what_is_wrong_is_named(keys: Run, store: KeyStore, words: list[str], named: str) -> None:
    """And no key is made."""
    ended = keys("create", "--user", "ada", *words)

    assert ended.code in {1, 2}
    assert named in ended.err
    assert ended.out == ""
    assert ApiKeys(store, UNSEALED).records() == []


def test_keys_are_revoked(keys: Run, store: KeyStore) -> None:
    """By their ids, or by what has leaked; one that is not there is named, and the others go all the same."""
    assert "There are no API keys" in keys("list").err
    texts = [keys("create", "--user", "ada").out.strip() for _ in range(3)]
    one, other, kept = (text.split("_")[1] for text in texts)
    ended = keys("revoke", one, "none", texts[1], one)

    assert ended.code == 1
    assert "Revoked: 2." in ended.err
    assert "'none'" in ended.err
    assert texts[1] not in ended.err
    assert [each["id"] for each in json.loads(keys("list", "--json").out)] == [kept]
    assert keys("revoke", kept).code == 0
    assert other not in keys("list").out


def test_an_expired_key_is_listed_as_such(keys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is revoked."""
    keys("create", "--user", "ada", "--expires", "1m")
    now = fleet_clock.now()
    monkeypatch.setattr(fleet_clock, "now", lambda: now + 3600)

    assert "expired" in keys("list").out


def test_a_redis_that_is_away_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of the commands."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "redis://127.0.0.1:1/0")
    for words in (["list"], ["create", "--user", "ada"], ["revoke", "x"]):
        ended = run("keys", *words)
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 1
