"""`toolfleet why`, beside a fleet and over a gateway."""

import json

import pytest

from support.command import Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.worker_process import WorkerProcess


@pytest.fixture
def why(run: Run, bed: TestBed, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command, with the fleet's settings."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", bed.redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({each.name: each.url for each in bed.modules}))
    monkeypatch.setenv("TOOLFLEET_AGENTS", '{"reader": {"tools": ["owls.nap"]}}')
    return lambda *words: run("why", *words)


def test_the_rules_are_printed_in_order(why: Run) -> None:
    """With where each stands; exit code 1 if the call may not be made."""
    allowed, refused = why("owls.echo"), why("owls.echo", "--agent", "reader")

    assert (allowed.code, refused.code) == (0, 1)
    assert "owls.echo may be called." in allowed.err
    for words in ("refuses", "TOOLFLEET_AGENTS", "not among those of agent 'reader'"):
        assert words in " ".join((refused.out + refused.err).split())
    found = json.loads(why("owls.echo", "--agent", "reader", "--json").out)
    assert [rule["about"] for rule in found["rules"]][:2] == ["module", "agent"]


def test_it_is_about_a_keys_holder(why: Run, bed: TestBed) -> None:
    """By the key's id, here and over a gateway; options that contradict it are refused."""
    with keyed_gateway(bed) as gateway:
        key, asked = gateway.key_id("gus"), json.loads
        here = asked(why("owls.echo", "--key", key, "--json").out)
        there = asked(_over(gateway, why, "owls.echo", "--key", key, "--json"))
        by_options = asked(_over(gateway, why, "owls.echo", "--permission", "guest", "--modules", "owls", "--json"))

    assert here["caller"]["user_id"] == "gus"
    assert (there["reason"], here["is_allowed"]) == (here["reason"], False)
    assert by_options["is_allowed"]
    assert why("owls.echo", "--key", "nobody").code == 1
    assert why("owls.echo", "--key", key, "--user", "ada").code == 2


def _over(gateway: KeyedGateway, why: Run, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["olga"].text)
        return why(*words, "--url", gateway.url).out
