"""What operators do at the command line over a gateway, without Redis: the same as with it, and with a line in the audit."""

import json
import os
import select
import subprocess
from typing import Any

import pytest

from support.command import Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.up import COMMAND
from support.workers.dead_news import RECEIVER, maker


def changes_of(run_as: Run, *words: str) -> list[dict[str, Any]]:
    """What the audit has of changes, oldest first."""
    ended = run_as("vera", "audit", "tail", "--changes", "--json", *words)
    return [json.loads(line) for line in ended.out.splitlines()]


def test_the_status_is_shown(run_as: Run, gateway: KeyedGateway) -> None:
    """The same screen, with the gateway in the place of Redis; the JSON is that of the fleet."""
    shown, found = run_as("vera", "status"), json.loads(run_as("vera", "status", "--json").out)
    refused = run_as("bob", "status")

    assert shown.out.splitlines()[0] == f"Gateway      {gateway.url}"
    assert "Lane fast    1 worker" in shown.out
    assert found["lanes"][0]["workers"]
    assert (refused.code, "the role 'viewer'" in refused.err) == (1, True)


def test_tools_are_disabled_and_shown_as_closed(run_as: Run, gateway: KeyedGateway) -> None:
    """The audit says by which key; a viewer may look, and not change."""
    disabled = run_as("olga", "tools", "disable", "owls.fail_once")
    closed = json.loads(run_as("vera", "tools", "list", "--closed", "--json").out)
    enabled, refused = (run_as(who, "tools", "enable", "owls.fail_once") for who in ("olga", "vera"))
    last, line = changes_of(run_as, "--tool", "owls.fail_once")[-2:], run_as("vera", "audit", "tail", "--changes")

    assert (disabled.out, enabled.out) == ("owls.fail_once: disabled\n", "owls.fail_once: enabled\n")
    assert "owls.fail_once" in {each["name"] for each in closed}
    assert (refused.code, refused.out) == (1, "")
    assert [(each["change"], each["user_id"], each["by"]) for each in last] == [
        ("tool_disabled", "olga", f"key {gateway.key_id('olga')}"),
        ("tool_enabled", "olga", f"key {gateway.key_id('olga')}"),
    ]
    assert f"success  tool_enabled  owls.fail_once  olga  key {gateway.key_id('olga')}" in line.out


def test_a_changed_tool_of_a_pinned_module_is_approved(run_as: Run, bed: TestBed) -> None:
    """What differs is shown as from the registry, and its digest may be named; then an earlier version comes back."""
    definition = bed.modules[0].definitions[1]
    before = dict(definition)
    pinned = run_as("olga", "tools", "pin", "owls")
    definition.update(description="Sleeps.", version="2.0")
    run_as("olga", "modules", "refresh")
    shown, pending = run_as("vera", "tools", "diff", "owls.nap"), run_as("vera", "tools", "diff", "--json", "owls.nap")
    (found,) = json.loads(pending.out)["pending"]
    unknown = run_as("vera", "tools", "diff", "larks")
    approved = run_as("olga", "tools", "approve", "owls.nap", "--digest", found["digest"])
    unpinned = run_as("olga", "tools", "unpin", "owls")
    versions = json.loads(run_as("vera", "tools", "versions", "owls.nap", "--json").out)
    by_text = {each["spec"]["description"]: each for each in versions}
    earlier = by_text["nap"]["version"]
    back = run_as("olga", "tools", "rollback", "owls.nap", earlier)
    in_force = [
        each["version"]
        for each in json.loads(run_as("vera", "tools", "versions", "owls.nap", "--json").out)
        if each["is_in_force"]
    ]
    forgotten = run_as("olga", "tools", "forget", "owls.nap")
    definition.clear()
    definition.update(before)
    run_as("olga", "modules", "refresh")

    assert "owls.nap" in pinned.out
    assert "-nap\n    +Sleeps." in shown.out
    assert found["fields"]["description"] == {"registered": "nap", "offered": "Sleeps."}
    assert found["fields"]["version"]["offered"] == "2.0"
    assert (unknown.code, unknown.err) == (1, "Unknown module: larks\n")
    assert approved.out.startswith("owls.nap: approved with digest sha256:")
    assert unpinned.out == "owls: not pinned any more\n"
    assert (by_text["Sleeps."]["version"], by_text["Sleeps."]["is_in_force"]) == ("2.0", True)
    assert back.out == f"owls.nap: version {earlier} is in force\n"
    assert in_force == [earlier]
    assert forgotten.code == 0


def test_tools_are_found_by_words(run_as: Run) -> None:
    """The best first, as from Redis."""
    found = json.loads(run_as("bob", "tools", "search", "echo", "--json").out)
    nothing = run_as("bob", "tools", "search", "xyzzy")

    assert found[0]["name"] == "owls.echo"
    assert "No tool of this caller" in nothing.err


def test_a_key_is_made_listed_and_revoked(run_as: Run, gateway: KeyedGateway) -> None:
    """Within the rights of the key that makes it; a whole key is revoked by its id."""
    words = ("keys", "create", "--user", "ada", "--modules", "owls,larks", "--role", "viewer", "--json")
    made = json.loads(run_as("ada", *words).out)
    listed = run_as("ada", "keys", "list")
    beyond = run_as("ada", "keys", "create", "--user", "bob")
    revoked = run_as("ada", "keys", "revoke", made["key"], "none")

    assert (made["allowed_modules"], made["role"], made["permission"]) == (["larks", "owls"], "viewer", "guest")
    assert made["id"] in listed.out
    assert (beyond.code, beyond.out) == (1, "")
    assert revoked.code == 1
    assert revoked.err.splitlines()[0] == "Revoked: 1."
    assert [(each["change"], each["outcome"]) for each in changes_of(run_as, "--tool", made["id"])] == [
        ("key_created", "success"),
        ("key_revoked", "success"),
    ]


def test_modules_are_added_and_removed(run_as: Run) -> None:
    """The lane is said, and for how long calls that wait are run."""
    added = run_as("olga", "modules", "add", "barn", "http://127.0.0.1:9", "--slow")
    removed = run_as("olga", "modules", "remove", "barn", "--drain", "2")

    assert added.out == "Module barn is in the slow lane, at http://127.0.0.1:9.\n"
    assert "in 2 s are ended" in removed.out


def test_wakeups_are_shown_and_tried(run_as: Run, bed: TestBed) -> None:
    """Those that wait, and a dead one is named with where to look."""
    make = maker(bed.redis_url)
    make("job-dead", dead=True)
    shown = run_as("vera", "wakes", "show", "job-dead")
    replayed = run_as("olga", "wakes", "replay", "job-dead", "job-none")
    listed = run_as("vera", "wakes", "list", "--json")
    dropped = run_as("olga", "dead", "drop", "job-dead")

    assert "given up" in shown.out
    assert replayed.code == 1
    assert "'job-dead' is dead" in replayed.err
    assert "'job-none'" in replayed.err
    assert isinstance(json.loads(listed.out), list)
    assert dropped.err == "Dropped: 1.\n"


def test_all_letters_of_a_kind_are_replayed_and_dropped(run_as: Run, bed: TestBed) -> None:
    """How many, and what is the matter with the others; of calls only one by one."""
    make = maker(bed.redis_url)
    make("job-secret", dead=True, kind="call")
    make(f"7@{RECEIVER}", dead=True, kind="registry")
    replayed = run_as("olga", "dead", "replay", "--all", "--kind", "wakeup")
    calls = run_as("olga", "dead", "replay", "--all")
    dropped = [run_as("olga", "dead", "drop", "--all", "--kind", kind).err for kind in ("wakeup", "webhook")]
    last = changes_of(run_as)[-2:]

    assert replayed.code == 1
    assert "sensitive arguments" in replayed.err
    assert calls.code == 2
    assert dropped == ["Dropped: 1.\n", "Dropped: 1.\n"]
    assert [(each["change"], each["tool"], each["count"]) for each in last] == [
        ("dead_letters_dropped", "wakeup", 1),
        ("dead_letters_dropped", "webhook", 1),
    ]


def test_the_audit_is_followed(run_as: Run, gateway: KeyedGateway) -> None:
    """Calls and changes come as they end, each once."""
    env = {**os.environ, "TOOLFLEET_GATEWAY_KEY": gateway.keys["vera"].text}
    command = [*COMMAND, "audit", "tail", "-n", "0", "--follow", "--json", "--url", gateway.url]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        said = list[dict[str, Any]]()
        try:
            assert process.stdout is not None
            for _ in range(60):  # until it has begun to follow
                run_as("olga", "tools", "enable", "owls.garble_read")
                if select.select([process.stdout], [], [], 0.5)[0]:
                    break
            run_as("olga", "tools", "disable", "owls.none")
            while not said or said[-1]["tool"] != "owls.none":
                said.append(json.loads(process.stdout.readline()))
        finally:
            process.kill()

    assert (said[-1]["change"], said[-1]["outcome"]) == ("tool_disabled", "refused")
    assert len({each["ts"] for each in said}) == len(said)
    assert not any("is_begun" in each for each in said)


def test_wakeups_that_wait_are_dropped(run_as: Run, bed: TestBed, gateway: KeyedGateway) -> None:
    """One by its id, and all of a filter; who may only look drops nothing."""
    make = maker(bed.redis_url)
    for name in ("drop-1", "drop-2", "drop-3"):
        make(name, conversation_id="remote-drops")
    refused, one = (run_as(who, "wakes", "drop", "drop-1") for who in ("vera", "olga"))
    none = run_as("olga", "wakes", "drop", "drop-1")
    listed = json.loads(run_as("vera", "wakes", "list", "--about", "remote-drops", "--json").out)
    all_of_it = run_as("olga", "wakes", "drop", "--all", "--about", "remote-drops")
    changes = [each for each in changes_of(run_as) if each["change"].startswith("wakeup")][-3:]

    assert (refused.code, "the role 'operator'" in refused.err) == (1, True)
    assert (one.code, one.err.strip()) == (0, "Dropped: 1.")
    assert none.code == 1
    assert {each["wake_id"] for each in listed} == {"drop-2", "drop-3"}
    assert (all_of_it.code, all_of_it.err.strip()) == (0, "Dropped: 2.")
    assert [(each["change"], each["outcome"]) for each in changes] == [
        ("wakeup_dropped", "success"),
        ("wakeup_dropped", "refused"),
        ("wakeups_dropped", "success"),
    ]
    assert {each["by"] for each in changes} == {f"key {gateway.key_id('olga')}"}


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_name_of_dots_is_nothings_name(run_as: Run, bed: TestBed, name: str) -> None:
    """A client, or a proxy, would take it out of the path, and all that there is would be meant."""
    make = maker(bed.redis_url)
    make("dots-1", conversation_id="remote-dots")
    done = [run_as("olga", *words, name) for words in (("wakes", "drop"), ("wakes", "replay"), ("dead", "drop"))]
    shown = run_as("olga", "wakes", "show", name)
    left = json.loads(run_as("vera", "wakes", "list", "--about", "remote-dots", "--json").out)
    run_as("olga", "wakes", "drop", "dots-1")

    assert [each.code for each in (*done, shown)] == [1, 1, 1, 1]
    assert all(f"There is no wake-up {name!r}" in each.err for each in (done[0], done[1], shown))
    assert f"There is no dead letter {name!r}" in done[2].err
    assert [each["wake_id"] for each in left] == ["dots-1"]
