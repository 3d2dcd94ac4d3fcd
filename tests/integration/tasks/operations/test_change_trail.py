"""What operators change has one line in the audit, whatever happens while they do it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from redis import Redis

from support.programs.closed_port import closed_port
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.errors import FleetUnavailable, NoSuchEntry, OperationRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail
from toolfleet_tasks.resources.keys import create_key, list_keys, revoke_key
from toolfleet_tasks.resources.operation import FleetOperator, OperationRequest

B = TypeVar("B")

KEY = Keys().audit
ADA = Actor("ada", "key abc")

DYING = """
import asyncio, sys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail

async def main():
    async with ChangeTrail.of(Settings(redis_url=sys.argv[1]), Actor("ada", "key abc")) as trail:
        async with trail.change("tool_disabled", "owls.echo"):
            print("begun", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


def lines(redis_url: str) -> list[dict[str, Any]]:
    """All lines of the audit, without their times."""
    with Redis.from_url(redis_url) as redis:
        entries: Any = redis.xrange(KEY)
    found = [json.loads(entry[b"line"]) for _, entry in entries]
    assert all(line.pop("ts") > 0 for line in found)
    return found


async def test_a_change_is_one_line(redis_url: str) -> None:
    """Who, by which key, what, with which facts, and how it ended; the line that stood there meanwhile is gone."""
    settings = Settings(redis_url=redis_url)
    async with ChangeTrail.of(settings, ADA) as trail, trail.change("tool_approved", "owls.echo") as change:
        (meanwhile,) = lines(redis_url)
        change.facts["digest"] = "sha256:1"

    assert (meanwhile["outcome"], meanwhile["is_begun"]) == ("unknown", True)
    assert lines(redis_url) == [
        {
            "change": "tool_approved",
            "tool": "owls.echo",
            "user_id": "ada",
            "by": "key abc",
            "signed": False,
            "outcome": "success",
            "digest": "sha256:1",
        }
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OperationRefused("It is pinned."), "refused"),
        (FleetUnavailable("No answer."), "unknown"),  # it may have happened
        (RuntimeError("A defect."), "unknown"),
    ],
)
async def test_what_goes_wrong_is_in_the_line(redis_url: str, error: Exception, outcome: str) -> None:
    """A refusal has its reason; what is not known is not said to have failed. The error goes on to whoever asked."""
    async with ChangeTrail.of(Settings(redis_url=redis_url), ADA) as trail:
        with pytest.raises(type(error)):
            async with trail.change("module_pinned", "owls"):
                raise error
    (line,) = lines(redis_url)

    assert (line["outcome"], line.get("reason")) == (outcome, "It is pinned." if outcome == "refused" else None)
    assert "is_begun" not in line


def test_a_process_that_dies_leaves_its_line(redis_url: str) -> None:
    """Killed between the change's beginning and its end: the line says that nobody knows."""
    command = [sys.executable, "-c", DYING, redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    (line,) = lines(redis_url)

    assert (line["change"], line["tool"], line["user_id"]) == ("tool_disabled", "owls.echo", "ada")
    assert (line["outcome"], line["is_begun"]) == ("unknown", True)


async def test_a_leaked_key_is_revoked_while_redis_is_away(tmp_path: Path) -> None:
    """The audit fails open: keys that are in a database are changed, and the lines count as missed."""
    settings = Settings(
        redis_url=f"redis://127.0.0.1:{closed_port()}", registry_url=f"sqlite:///{tmp_path}/registry.db"
    )
    creation = _asked(settings, KeyDraft(user_id="ada"))
    made = await create_key.run(creation)
    revocation = _asked(settings, None, key_id=made.key.id)
    await revoke_key.run(revocation)

    assert (await list_keys.run(_asked(settings, None))).count == 0
    assert (creation.audit_missed, revocation.audit_missed) == (2, 2)  # each has two


async def test_no_key_stands_in_the_audit(redis_url: str) -> None:
    """Neither of one that is made, nor one that is given in the place of an id, nor what is mistyped of it."""
    settings = Settings(redis_url=redis_url)
    made = await create_key.run(_asked(settings, KeyDraft(user_id="bob", role="viewer")))
    for wrong in (made.text, f"{made.text}x"):
        with pytest.raises(NoSuchEntry):
            await revoke_key.run(_asked(settings, None, key_id=wrong))
    await revoke_key.run(_asked(settings, None, key_id=made.key.id))
    found = lines(redis_url)

    assert made.text[20:] not in repr(made)
    assert made.text[20:] not in json.dumps(found)
    assert [(line["change"], line["tool"], line["outcome"]) for line in found] == [
        ("key_created", made.key.id, "success"),
        ("key_revoked", made.key.id, "refused"),  # the whole text is no id
        ("key_revoked", "?", "refused"),
        ("key_revoked", made.key.id, "success"),
    ]
    assert (found[0]["key_user"], found[0]["key_role"]) == ("bob", "viewer")


async def test_names_are_bounded_and_can_be_written(redis_url: str) -> None:
    """Half a surrogate pair, and what is longer than any name."""
    settings, actor = Settings(redis_url=redis_url), Actor("\ud800da", "key abc")
    async with ChangeTrail.of(settings, actor) as trail, trail.change("tool_disabled", "o" * 5_000):
        pass
    (line,) = lines(redis_url)

    assert (line["user_id"], len(line["tool"])) == ("?da", 256)


def _asked(settings: Settings, body: B, **path: str) -> OperationRequest[B, None]:
    """Return a request of ada's."""

    async def no_fleet() -> NoReturn:
        pytest.fail("This needs no client.")

    return OperationRequest(
        settings=settings,
        operator=FleetOperator(ADA, COMMAND_LINE, caller=None),
        fleet=no_fleet,
        body=body,
        query=None,
        path=path,
    )
