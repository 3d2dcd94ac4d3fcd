"""`toolfleet keys`, on a real Redis."""

import functools
import json
from pathlib import Path

import pytest

from support.api_keys import UNSEALED, key_of
from support.command import Run
from toolfleet_registry.api_keys import API_KEYS, ApiKeys
from toolfleet_registry.contracts import Caller
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.documents import DocumentStore
from toolfleet_registry.store.factory import open_documents
from toolfleet_registry.system import fleet_clock


@pytest.fixture
def keys(redis_run: Run) -> Run:
    """Runs `toolfleet keys`, with a Redis."""
    return functools.partial(redis_run, "keys")


@pytest.fixture
def store(redis_url: str) -> DocumentStore:
    return open_documents(Settings(redis_url=redis_url), API_KEYS)


def test_a_key_is_printed_once(keys: Run, store: DocumentStore) -> None:
    """On stdout stands nothing else, so that a program can take it; what lists it has only its id."""
    ended = keys("create", "--user", "ada", "--permission", "user", "--modules", "owls, notes", "--description", "CI")
    listed = keys("list")
    found = key_of(ended.out.strip(), store)

    assert ended.code == 0
    assert found is not None
    assert found.caller == Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls", "notes"}))
    assert found.role == "none"
    assert found.expires_at == pytest.approx(fleet_clock.now() + 90 * 86400, abs=120)
    assert f"revoke {found.id}" in ended.err
    assert ended.out.strip() not in listed.out
    for shown in (found.id, "ada", "user", "notes, owls", "in 90 d", "never", "CI"):
        assert shown in listed.out


def test_a_key_has_what_it_is_given(keys: Run, store: DocumentStore) -> None:
    words = "--user bot --permission owner --modules * --role admin --expires never"
    more = "--acts-for-others --requests-per-second 2.5 --streams 3 --json"
    ended = keys("create", *words.split(), *more.split())
    made = json.loads(ended.out)

    text = made.pop("key")
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
    assert key_of(text, store) is not None


@pytest.mark.parametrize(("when", "days"), [("45m", 1 / 32), ("12h", 0.5), ("30d", 30), ("2w", 14)])
def test_an_end_may_be_a_duration(keys: Run, when: str, days: float, store: DocumentStore) -> None:
    found = key_of(keys("create", "--user", "ada", "--expires", when).out.strip(), store)

    assert found is not None
    assert found.expires_at == pytest.approx(fleet_clock.now() + days * 86400, abs=120)


def test_an_end_may_be_a_date(keys: Run) -> None:
    """Its first moment, in UTC; or a time with its zone."""
    for when in ("2199-12-31", "2199-12-31T02:00+02:00"):
        made = json.loads(keys("create", "--user", "ada", "--expires", when, "--json").out)
        assert made["expires_at"] == "2199-12-31T00:00:00+00:00"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--expires", "2001-01-01"], "in the future"),
        *(
            ([option, wrong], option)
            for option, values in {
                "--expires": ["soon", "99999999d"],
                "--modules": ["a b"],
                "--user": ["", "x" * 257, "a\nb"],
                "--requests-per-second": ["0", "nan"],
                "--streams": ["-1"],
                "--role": ["owner"],
                "--permission": ["root"],
                "--description": ["x" * 201],
            }.items()
            for wrong in values
        ),
    ],
)
def test_what_is_wrong_is_named(keys: Run, store: DocumentStore, words: list[str], named: str) -> None:
    ended = keys("create", "--user", "ada", *words)

    assert ended.code in {1, 2}
    assert named in ended.err
    assert ended.out == ""
    assert ApiKeys(store, UNSEALED).records() == []


def test_an_expired_key_is_listed_as_such(keys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There are no API keys" in keys("list").err
    keys("create", "--user", "ada", "--expires", "1m")
    now = fleet_clock.now()
    monkeypatch.setattr(fleet_clock, "now", lambda: now + 3600)

    assert "expired" in keys("list").out


def test_keys_are_changed_without_a_redis(run: Run, tmp_path: Path) -> None:
    """They may be in a database; the command says that the audit has no line of it."""
    here = {"TOOLFLEET_REGISTRY_URL": f"sqlite:///{tmp_path}/registry.db"}
    made = run("keys", "create", "--user", "ada", "--json", env=here)
    key_id = json.loads(made.out)["id"]
    listed = run("keys", "list", env=here)
    revoked = run("keys", "revoke", key_id, env=here)

    unwritten = "The audit may have no line of this: there is no Redis that answers.\n"
    assert (made.code, made.err) == (0, unwritten)
    assert key_id in listed.out
    assert listed.err == ""
    assert (revoked.code, revoked.err) == (0, f"{unwritten}Revoked: 1.\n")
