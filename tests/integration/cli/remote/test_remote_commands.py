"""The command over a gateway, without Redis: as with it, for whoever has a key."""

import asyncio
import json

import pytest

from support.command import Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.system.listening import listening_socket


def test_tools_are_listed_and_shown_as_from_redis(run_as: Run) -> None:
    """The table and the JSON are those of the fleet, of what the key may use."""
    listed, shown = run_as("bob", "tools", "list"), run_as("bob", "tools", "show", "owls.echo", "--json")

    assert (listed.code, shown.code) == (0, 0)
    assert "owls.echo" in listed.out
    assert "owls.admin_only" not in listed.out
    assert json.loads(shown.out)["name"] == "owls.echo"


def test_a_tool_that_the_key_may_not_use_is_not_there(run_as: Run) -> None:
    """It is one sentence, and exit code 1."""
    shown = run_as("bob", "tools", "show", "owls.ekho")

    assert (shown.code, shown.out) == (1, "")
    assert "There is no such tool for this caller. Did you mean" in shown.err


def test_host_and_port_name_the_gateway(run: Run, gateway: KeyedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tools list --host H --port P` asks it, with the key of the environment; without a key it says what is missing."""
    host, port = gateway.gateway.address
    without = run("tools", "list", "--host", host, "--port", str(port))
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["bob"].text)
    found = run("tools", "list", "--host", host, "--port", str(port), "--json")

    assert (without.code, without.err) == (1, "The gateway needs a key: set TOOLFLEET_GATEWAY_KEY.\n")
    assert (found.code, len(json.loads(found.out))) == (0, 9)


def test_a_gateway_that_is_not_there_is_one_sentence(run: Run) -> None:
    """It says where nobody listens, and nothing else."""
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    ended = run("tools", "list", "--host", "127.0.0.1", "--port", str(port))

    assert (ended.code, ended.out, ended.err) == (2, "", f"cannot connect to 127.0.0.1:{port}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tools", "list", "--url", "redis://127.0.0.1"), "is no http:// or https:// URL"),
        (("tools", "list", "--url", "http://127.0.0.1", "--port", "1"), "say either --url"),
        (("tools", "list", "--url", "http://127.0.0.1", "--user", "ada"), "a gateway goes by its key"),
        (("jobs", "cancel", "1", "--url", "http://127.0.0.1", "--as", "ada"), "a gateway goes by its key"),
        (("tools", "disable", "owls.echo", "--url", "http://127.0.0.1", "--as", "ada"), "a gateway goes by its key"),
    ],
)
def test_what_a_gateway_cannot_do_is_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    """Nothing is asked then, and the exit code is 2."""
    ended = run(*words)

    assert ended.code == 2
    assert said in " ".join(ended.err.replace("│", " ").split())


def test_a_call_is_made_and_its_result_shown(run_as: Run) -> None:
    """Text is read as the tool takes it; what fails, or is refused, is exit code 1."""
    good = run_as("bob", "call", "owls.echo", "text=hoo", "number:=3")
    bad = run_as("bob", "call", "owls.fail", "--json")
    refused = run_as("bob", "call", "owls.admin_only")

    assert (good.code, json.loads(good.out)) == (0, {"text": "hoo", "number": 3})
    assert (bad.code, json.loads(bad.out)["error_code"]) == (1, "module_error")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("owls.admin_only: There is no such tool for this caller.")


def test_modules_are_listed_and_refreshed(run_as: Run) -> None:
    """A refresh is for operators."""
    listed, refreshed = run_as("bob", "modules", "list", "--json"), run_as("olga", "modules", "refresh")
    refused = run_as("bob", "modules", "refresh")

    assert [each["module"] for each in json.loads(listed.out)] == ["owls"]
    assert "owls" in refreshed.out
    assert refused.code == 1
    assert "the role 'operator'" in refused.err


def test_jobs_are_listed_shown_and_cancelled(run_as: Run, gateway: KeyedGateway) -> None:
    """They are those of the key's user."""
    body = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": "c"}, "workflow_id": "flow"}
    jobs = [asyncio.run(gateway.post("eve", "/jobs", body)).json()["job_id"] for _ in range(2)]
    listed = json.loads(run_as("eve", "jobs", "list", "--json").out)
    shown = run_as("eve", "jobs", "show", jobs[0])
    foreign = run_as("bob", "jobs", "show", jobs[0])
    cancelled, rest = run_as("eve", "jobs", "cancel", jobs[0]), run_as("eve", "jobs", "cancel", "--workflow", "flow")

    assert {job["job_id"] for job in listed} == set(jobs)
    assert "waiting" in shown.out
    assert foreign.code == 1
    assert (cancelled.err, rest.err) == ("The job is cancelled.\n", "Cancelled: 1.\n")


def test_jobs_of_all_users_are_for_operators(run_as: Run, gateway: KeyedGateway) -> None:
    """Whoever's they are they are listed, shown and ended, with a line in the audit; without the role they are not there."""
    body = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": "c"}}
    jobs = [asyncio.run(gateway.post("eve", "/jobs", body)).json()["job_id"] for _ in range(2)]
    listed = [run_as("vera", "jobs", "list", "--json", *words) for words in (("--all-users",), ("--user", "eve"))]
    shown = run_as("vera", "jobs", "show", jobs[0], "--all-users")
    refused = [run_as(who, "jobs", "cancel", "--user", "eve") for who in ("vera", "bob")]
    cancelled = run_as("olga", "jobs", "cancel", jobs[0], "--all-users")
    rest = run_as("olga", "jobs", "cancel", "--user", "eve")
    audit = run_as("vera", "audit", "tail", "--changes", "--json", "-n", "2", "--user", "olga").out.splitlines()

    assert all(set(jobs) <= {job["job_id"] for job in json.loads(each.out)} for each in listed)
    assert "waiting" in shown.out
    assert [each.code for each in refused] == [1, 1]
    assert (cancelled.err, rest.err) == ("The job is cancelled.\n", "Cancelled: 1.\n")
    assert [json.loads(line)["change"] for line in audit] == ["job_cancelled", "jobs_cancelled"]


def test_dead_letters_are_shown_replayed_and_dropped(run_as: Run, bed: TestBed) -> None:
    """A letter that is not there is exit code 1, and the others are dropped all the same."""

    async def die() -> str:
        async with ToolFleet(settings=bed.settings) as fleet:
            call = ToolCall(tool_name="owls.garble")
            return (await fleet.call(call, Caller(permission="owner", allowed_modules="*"))).audit.call_id

    call_id = asyncio.run(die())
    listed = json.loads(run_as("vera", "dead", "list", "--kind", "call", "--json").out)
    shown = run_as("vera", "dead", "show", call_id)
    replayed = run_as("olga", "dead", "replay", call_id, "--json")
    new_id = json.loads(replayed.out)["audit"]["call_id"]
    dropped = run_as("olga", "dead", "drop", new_id, "none")

    assert call_id in {letter["id"] for letter in listed}
    assert "owls.garble" in shown.out
    assert replayed.code == 1
    assert dropped.code == 1
    assert "Dropped: 1." in dropped.err
    assert "no dead letter 'none'" in dropped.err


def test_errors_are_listed_for_viewers(run_as: Run) -> None:
    """Where everything loads it says so."""
    good, refused = run_as("vera", "tools", "errors"), run_as("bob", "tools", "errors")

    assert (good.code, good.err) == (0, "Everything is served as it stands.\n")
    assert refused.code == 1
