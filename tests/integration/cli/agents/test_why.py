"""`toolfleet why`, beside a fleet and over a gateway."""

import json
from pathlib import Path

import pytest

from support.command import Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts import Level


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


@pytest.mark.parametrize("permission", ["guest", "user", "owner"])
@pytest.mark.parametrize("modules", [None, "*", "owls", "crows"])
def test_one_caller_has_one_answer(why: Run, run: Run, bed: TestBed, permission: Level, modules: str | None) -> None:
    """In Python, by `call`, and by `why`: without `--modules` a guest reaches the default ones only."""
    allowed = {"allowed_modules": modules if modules in {None, "*"} else frozenset({modules})}
    caller = Caller.model_validate({"permission": permission, **allowed})
    with ToolFleet.sync(settings=bed.settings) as fleet:
        in_python = fleet.modules.explain("owls.echo", caller).is_allowed
        called = fleet.call(ToolCall(tool_name="owls.echo"), caller)
    options = ("--permission", permission, *(() if modules is None else ("--modules", modules)))
    said = run("call", "owls.echo", "--timeout", "30", "--json", *options).out
    by_command = json.loads(
        said[said.index("{\n") :]
    )  # behind what this process may log, as an earlier test has set it up
    explained = json.loads(why("owls.echo", "--json", *options).out)

    assert in_python == ((permission, modules) != ("guest", None) and modules != "crows")
    assert (called.success, by_command["success"], explained["is_allowed"]) == (in_python, in_python, in_python)
    assert by_command["error"] == called.error


def test_it_says_how_much_a_run_has_used(
    run: Run, bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`toolfleet call --run-id` counts in the run that it names, and `why --run-id` says how far that is; likewise conversations."""
    kinds = {"run_limit": 1, "thread_limit": 3}
    limits = [{"name": "tool_call_limit", "tools": ["owls.echo"], kind: most} for kind, most in kinds.items()]
    agents, named = {"brief": {"middleware": limits}}, ("owls.echo", "--agent", "brief", "--conversation-id", "talk")
    with redis_server(tmp_path / "redis") as url:
        own = TestBed(url, bed.modules, bed.folder, {"agents": agents})
        for name, value in environment_of(own.settings).items():
            monkeypatch.setenv(name, value)
        with own.worker():
            calls = [run("call", *named, "--run-id", each, "--json") for each in ("one", "one", "two")]
            unnamed = run("call", *named, "--json")
            one, three = (json.loads(run("why", *named, "--run-id", each, "--json").out) for each in ("one", "three"))

    assert [(each.code, json.loads(each.out)["error_code"]) for each in (*calls, unnamed)] == [
        (0, None),
        (1, "rate_limited"),
        (0, None),
        (1, "rate_limited"),
    ]
    assert "'run_id'" in json.loads(unnamed.out)["error"]
    used = [[rule["says"] for rule in each["rules"] if "has made" in rule["says"]] for each in (one, three)]
    assert sorted(used[0]) == [
        "Conversation 'talk' has made 2 of its 3 calls of this kind.",
        "Run 'one' has made 1 of its 1 calls of this kind.",
    ]
    assert "Run 'three' has made 0 of its 1 calls of this kind." in used[1]
    assert (one["is_allowed"], one["reason"], three["is_allowed"]) == (
        False,
        json.loads(calls[1].out)["error"],
        True,
    )


def _over(gateway: KeyedGateway, why: Run, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["olga"].text)
        return why(*words, "--url", gateway.url).out
