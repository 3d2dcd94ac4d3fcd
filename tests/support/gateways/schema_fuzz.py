"""Runs Schemathesis over the OpenAPI document of a gateway, in the name of somebody with a key."""

import asyncio
import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer
from toolfleet_cli.local.redis_server import redis_server

_CONFIG = Path(__file__).with_name("schemathesis.toml")
_CALLS: Mapping[str, Mapping[str, object]] = {
    "owls.echo": {"text": "hoo"},
    "owls.nap": {"seconds": 3},
    "owls.garble": {},  # nobody knows how it ends: it becomes a dead letter
}
_JOBS: Sequence[Mapping[str, object]] = (
    {"message": "Feed the owls.", "schedule": {"delay_seconds": 3600}},
    {"start": {"tool_name": "owls.echo", "arguments": {}}},
    {"hook": {"secrets": ["whsec_" + "b3ds" * 8]}},
)
_TOOLS = ("owls.echo", "owls.fail", "owls.fail_once", "owls.nap", "owls.purr")


@dataclass(frozen=True)
class Plan:
    """What is tried: `examples` of each operation, in the phases; it is ended after `seconds`."""

    phases: str
    examples: int
    seconds: float
    seed: int = 1
    without: Sequence[str] = ()
    """Operations that are left out."""


@contextmanager
def fuzzed_gateway(owls: ModuleServer, folder: Path) -> Generator[KeyedGateway]:
    """A gateway with a fleet of its own: tools are disabled there, modules added, and keys made."""
    for name in ("redis", "logs"):
        (folder / name).mkdir()
    with redis_server(folder / "redis") as url:
        bed = TestBed(url, (owls,), folder / "logs")
        with bed.worker(), keyed_gateway(bed) as gateway:
            yield gateway


async def report_of(gateway: KeyedGateway, who: str, plan: Plan, folder: Path) -> tuple[int, str]:
    """Its exit code, which is 0 if nothing was found, and what it has printed."""
    folder.mkdir()
    shutil.copy(_CONFIG, folder)
    for name, known in (await _names(gateway, who)).items():
        (folder / f"{name}.txt").write_text("".join(f'"{one}"\n' for one in known))
    key = gateway.gateway.key if who == "ada" else gateway.keys[who].text  # hers could be revoked on the way
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(folder / _CONFIG.name), "run"),
        *(f"{gateway.url}/openapi.json", "--header", f"Authorization: Bearer {key}"),
        *("--phases", plan.phases, "--max-examples", str(plan.examples), "--seed", str(plan.seed)),
        *(f"--exclude-operation-id={name}" for name in plan.without),
        *("--workers", "2", "--continue-on-failure", "--no-color", "--warnings", "off"),
        env={**os.environ, "NO_PROXY": "*"},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(plan.seconds):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        printed, _ = await process.communicate()
        return 1, f"It took more than {plan.seconds:g} s.\n{printed.decode()}"
    return process.returncode or 0, printed.decode()


async def _names(gateway: KeyedGateway, who: str) -> dict[str, list[str]]:
    """What there is: calls that have ended, run, and are somebody else's; jobs that wait, and have ended; a dead letter."""
    made = [await _made(gateway, one) for one in dict.fromkeys([who, "bob"])]
    letters = (await gateway.get("ada", "/operations/dead-letters")).json()["letters"]
    return {
        "tools": list(_TOOLS),
        "modules": ["owls", "jays"],
        "calls": [call for calls, _ in made for call in calls] or ["none"],
        "jobs": [job for _, jobs in made for job in jobs] or ["none"],
        "letters": [letter["id"] for letter in letters] or ["none"],
        "urls": ["http://127.0.0.1:1"],
    }


async def _made(gateway: KeyedGateway, who: str) -> tuple[list[str], list[str]]:
    calls, jobs = list[str](), list[str]()
    async with gateway.client(who) as client:
        for tool, arguments in _CALLS.items():
            body = {"tool_name": tool, "arguments": arguments}
            answer = await client.post("/calls", json=body, headers={"prefer": "respond-async"})
            if answer.status_code == 202:
                calls.append(answer.json()["call_id"])
        for wish in _JOBS:
            where = {"conversation": {"conversation_id": "nest"}, "workflow_id": "wf"}
            answer = await client.post("/jobs", json={**wish, **where})
            if answer.status_code == 201:
                jobs.append(answer.json()["job_id"])
    return calls, jobs
