"""All that operators are shown of one fleet, word for word: over REST, by the command at its two doors, on the console's pages.

What is shown now lies in `golden/`. A change of it is made on purpose: with `GOLDEN=write` these tests write the files anew, and the
difference is read before it is committed. Ids, times and ports are numbered, or replaced by what they are.
"""

import asyncio
import contextlib
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from redis import Redis

from support.command import run
from support.console.console_fixtures import bed, worker
from support.console.console_fleet import bury
from support.fleet import TestBed
from support.gateways.gateway_here import keyed_gateway_here
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_sync
from support.worker_process import WorkerProcess
from support.workers.stored_programs import program_records, waiting_program
from support.workers.wakes import wake
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.contracts.call_context import LogLevel
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.scripts import FILES
from toolfleet_tasks.wakeups.events import wake_body

__all__ = ["bed", "worker"]

GOLDEN = Path(__file__).parent / "golden"
LATER_SECONDS = 3600
COMMANDS = """\
agents list | agents list --json | agents show production | agents show production --json | agents show --versions production
approvals list | approvals list --json | approvals show {approval} | approvals show {approval} --json
audit tail --changes | audit tail --changes --json | audit show {call} | audit show {call} --json
dead-letters list | dead-letters list --json | dead-letters show dead-1 | dead-letters show dead-1 --json
jobs list | jobs list --json | jobs show {job} | jobs show {job} --json
keys list | keys list --json
modules list | modules list --json
jobs list --programs | jobs list --programs --json | jobs show {program} | jobs show {program} --json
queues list | queues list --json
status | status --json
tools list | tools list --json | tools list --closed | tools show owls.feed | tools show owls.feed --json
tools search echo | tools show --versions owls | tools list --errors | tools diff
wake-ups list | wake-ups list --json | wake-ups show wake-1 | wake-ups show wake-1 --json
why owls.feed --user bob | why owls.feed --user bob --json
"""
ROUTES = """\
/approvals /approvals/{approval} /calls/{call} /jobs /jobs/{job} /modules /tools?limit=3 /tools/owls.feed /tools/owls.feed/why
/tools/errors /programs /programs/{program} /operations/agents /operations/agents/production /operations/agents/production/versions /operations/audit?changes=true
/operations/calls /operations/calls/{call} /operations/calls/values?field=tool /operations/dead-letters /operations/dead-letters/dead-1
/operations/jobs /operations/jobs/{job} /operations/jobs/{job}/wake-ups /operations/keys /operations/modules /operations/queues
/operations/programs /operations/programs/{program} /operations/status /operations/tools /operations/tools/owls.feed/versions /operations/wake-ups /operations/wake-ups/wake-1
"""
PAGES = """\
/ /agents /agents/production /approvals /approvals/{approval} /audit?changes=true /calls /calls/{call} /conversation?id=nest&user=bob
/dead-letters /dead-letters/call/dead-1 /errors /jobs /jobs/{job} /keys /limits?user=bob /modules /modules/owls /programs
/programs/{program} /queues /tools
/tools/owls.feed /tools/owls.echo/try /wake-ups /wake-ups/wake-1
"""
"""What is asked of a fleet that has something of each kind."""

_ID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|\b[0-9a-f]{32}\b"
_OTHERS = (
    (r'\n *("|&#34;)own_ms\1: \[[^\]]*\],', ""),  # some calls only have it
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?", "TIME"),
    (r"\b1[789]\d{8}(\.\d+)?\b", "SECONDS"),
    (r"\b1[789]\d{11}(\.\d+)?\b", "MILLISECONDS"),
    (r"\b(\d\d-)?\d\d \d\d:\d\d(:\d\d)?", "TIME"),
    (r"\b\d+(\.\d+)?( ?(ms|s|min|h)\b| (seconds?|minutes?|hours?)\b)", "SPAN"),
    (r'("|&#34;)([a-z_]*(seconds|ms|duration|age|lag|left|bytes))\1: -?\d+(\.\d+)?', r"\2: NUMBER"),
    (r"\ball-\d+@[\w.-]+", "WORKER"),
    (r'(?<=name="csrf" value=)"[^"]+"', "CSRF"),
    (rf"\b{re.escape(platform.node())}:\d+", "PROCESS"),
    (r'(?<=data-series=")[^"]+', "CHART"),
    (r'"[\d.]+%"', "SHARE"),
    (r"[0-9a-f]{19}…", "<id>…"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
)


def _levels_in_order(found: dict[str, Any]) -> dict[str, Any]:
    """Put the log levels in our order: Python has one `Literal | None` for all of the same words, in the order that came first."""
    levels = list(get_args(LogLevel))
    return {**found, "enum": levels} if sorted(map(str, found.get("enum", ()))) == sorted(levels) else found


class Faces:
    """A fleet with something of each kind, and what it shows to an admin."""

    def __init__(self, gateway: KeyedGateway, ids: dict[str, str]) -> None:
        self._gateway, self._ids = gateway, ids
        self._named = {each.key.id: f"key of {who}" for who, each in gateway.keys.items()}
        self._named |= {value: name for name, value in ids.items()}

    def rest(self) -> Iterator[tuple[str, str]]:
        with httpx.Client(base_url=self._gateway.url, headers=_by(self._gateway, "ada"), trust_env=False) as client:
            for path in ROUTES.split():
                answer = client.get(self._filled(path))
                yield f"GET {path}", f"{answer.status_code}\n{json.dumps(answer.json(), indent=1, ensure_ascii=False)}"

    def document(self) -> Iterator[tuple[str, str]]:
        document = httpx.get(f"{self._gateway.url}/openapi.json", headers=_by(self._gateway, "ada"), trust_env=False)
        told = json.loads(document.text, object_hook=_levels_in_order)
        for path, methods in told.pop("paths").items():
            for method, operation in methods.items():
                yield f"{method.upper()} {path}", _lines(operation)
        for name, schema in told["components"].pop("schemas").items():
            yield f"schema {name}", json.dumps(schema, ensure_ascii=False)
        yield "the rest", _lines(told)

    def console(self) -> Iterator[tuple[str, str]]:
        with httpx.Client(base_url=self._gateway.url, trust_env=False) as browser:
            browser.post("/console/login", data={"credential": self._gateway.keys["ada"].text})
            for path in PAGES.split():
                answer = browser.get(f"/console{self._filled(path)}")
                yield f"GET /console{path}", f"{answer.status_code}\n{answer.text}"

    def command(self, door: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
        for line in COMMANDS.replace("\n", " | ").split(" | "):
            if line:
                ended = run(*shlex.split(self._filled(line)), cwd=folder, env=door)
                yield f"$ toolfleet {line}", f"{ended.code}\n{ended.out}{ended.err}"

    def plain(self, text: str) -> str:
        """Return the text without what is another one each time."""
        for value, name in self._named.items():
            text = text.replace(value, f"<{name}>")
        for pattern, name in _OTHERS:
            text = re.sub(pattern, name, text)
        numbers = dict[str, str]()
        text = re.sub(_ID, lambda found: numbers.setdefault(found[0], f"<id {len(numbers) + 1}>"), text)
        return re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))

    def _filled(self, text: str) -> str:
        return text.format(**self._ids)


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway_here(bed) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def faces(gateway: KeyedGateway, bed: TestBed) -> Faces:
    """Something of each kind is in the fleet."""
    bury(bed, ["dead-1", "dead-2"], tool="owls.feed")
    with Redis.from_url(bed.redis_url) as redis:
        put = (
            FILES.functions("wakeups", "wake_put")
            + " wake_put(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4])"
        )
        for name in ("wake-1", "wake-2"):
            body = wake_body(wake(name, conversation_id="nest", user_id="bob"))
            due_at = (time.time() + LATER_SECONDS) * 1000
            redis.eval(put, 2, Keys().wake(name), Keys().wakes_due, name, int(due_at), "continue", body)

    def sent(who: str, path: str, body: dict[str, object]) -> httpx.Response:
        answer = httpx.post(f"{gateway.url}{path}", json=body, headers=_by(gateway, who), trust_env=False)
        return answer.raise_for_status()

    call = sent("bob", "/calls", {"tool_name": "owls.echo", "arguments": {"a": "hoo"}}).json()
    asked = sent("bob", "/calls", {"tool_name": "owls.feed", "arguments": {"n": 1, "pin": "1234"}}).json()
    later = {"schedule": {"delay_seconds": LATER_SECONDS}, "conversation": {"conversation_id": "nest"}}
    job = sent("bob", "/jobs", later).json()
    sent("olga", "/operations/tools/owls.fail_once/disable", {"reason": "It fails."})
    sent("olga", "/operations/queues/tools.owls", {"action": "pause", "reason": "The owls sleep."})
    httpx.get(f"{gateway.url}/tools", headers=_by(gateway, "ada"), trust_env=False).raise_for_status()
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:  # a gateway notes a key's use after it has answered
        wait_until_sync(lambda: _users_of(keys) == {"ada", "bob", "olga"}, "their keys' use is noted")
    asyncio.run(_put_program(bed))
    ids = {"call": call["audit"]["call_id"], "approval": asked["call_id"], "job": job["job_id"], "program": "program-1"}
    return Faces(gateway, ids)


async def _put_program(bed: TestBed) -> None:
    async with program_records(bed.settings) as records:
        await waiting_program(records, "program-1", calls=2)


@pytest.mark.parametrize("face", ["document", "rest", "console"])
def test_a_gateway_shows_it(faces: Faces, face: str) -> None:
    _check(faces, face, getattr(faces, face)())


@pytest.mark.parametrize("door", ["redis", "gateway"])
def test_the_command_shows_it(faces: Faces, gateway: KeyedGateway, bed: TestBed, tmp_path: Path, door: str) -> None:
    over = {"TOOLFLEET_GATEWAY_URL": gateway.url, "TOOLFLEET_GATEWAY_KEY": gateway.keys["ada"].text}
    _check(
        faces, f"command-at-{door}", faces.command(environment_of(bed.settings) if door == "redis" else over, tmp_path)
    )


def _users_of(keys: ApiKeys) -> set[str]:
    return {record.key.user_id for record in keys.records() if record.last_used_at is not None}


def _check(faces: Faces, name: str, shown: Iterator[tuple[str, str]]) -> None:
    text = "".join(f"{asked}\n{faces.plain(answer).strip()}\n\n" for asked, answer in shown)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def _lines(told: dict[str, object]) -> str:
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in told.items())


def _by(gateway: KeyedGateway, who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.keys[who].text}"}
