"""A fleet whose processes are of different versions: an agent's program of one, worker and beat of another."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from support.fleet import STOP_SECONDS
from support.module_server import ModuleServer, Request, serve
from support.modules.works import make_works
from support.owls import make_module
from support.versions.releases import Release
from support.waiting import wait_until_sync
from toolfleet_modules.hosts.child_process import spawn, stop

_TESTS = Path(__file__).parents[2]
_AGENT = _TESTS / "wire" / "agent_program.py"
_AGENT_SECONDS = 100
_SAID = {"worker": "toolfleet worker ready", "beat": "beat: Starting"}


@dataclass(frozen=True)
class MixedWorker:
    """A process of some version, and the file that it writes its log into."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """All that it has logged."""
        return self.log.read_text(errors="replace")


@dataclass(frozen=True)
class MixedFleet:
    """`env` has the fleet's settings, as every version reads them."""

    env: Mapping[str, str]
    folder: Path

    @contextmanager
    def running(self, release: Release) -> Generator[None]:
        """A worker and beat of that release, from their readiness on."""
        beat = ["-m", "celery", "-A", "toolfleet_tasks.app", "beat", "--scheduler=celery.beat:Scheduler"]
        with ExitStack() as stack:
            stack.enter_context(self.worker(release))
            stack.enter_context(self._process(release, "beat", beat))
            yield

    @contextmanager
    def worker(self, release: Release, name: str = "mixed") -> Generator[MixedWorker]:
        """A worker of that release under this name, from its readiness on."""
        with self._process(release, "worker", ["-m", "toolfleet_workers", "--hostname", f"{name}@%h"]) as worker:
            yield worker

    def agent(self, release: Release, *words: str) -> dict[str, Any]:
        """What the agent's program of that release saw; `words` are its arguments."""
        done = subprocess.run(
            [release.python, _AGENT, *words],
            env={**_bare_environment(), **self.env, "PYTHONPATH": f"{release.env['PYTHONPATH']}{os.pathsep}{_TESTS}"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_AGENT_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-5_000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @contextmanager
    def _process(self, release: Release, name: str, command: list[str]) -> Generator[MixedWorker]:
        log = self.folder / f"{name}-{len(list(self.folder.iterdir()))}.log"
        with log.open("wb") as output:
            env = {**self.env, **release.env, "PYTHONUNBUFFERED": "1"}
            process = spawn([release.python, *command], env=env, cwd=self.folder, output=output)

        def has_begun() -> bool:
            return _SAID[name] in log.read_text(errors="replace") or process.poll() is not None

        try:
            wait_until_sync(has_begun, f"the {name} is ready")
            assert process.poll() is None, log.read_text(errors="replace")
            yield MixedWorker(process, log)
        except BaseException:
            print(log.read_text(errors="replace")[-10_000:])  # noqa: T201 - pytest shows it beside the failure
            raise
        finally:
            stop(process, patience_seconds=STOP_SECONDS)


@contextmanager
def mixed_fleet(
    redis_url: str, folder: Path, more: Sequence[ModuleServer] = (), /, **settings: str
) -> Generator[MixedFleet]:
    """The modules that the agent's program calls, and a fleet that has them, and `more`, which are served already."""
    works, owls = make_works(ends_after=2), make_module()
    owls.add("limited", owls.tools["owls.echo"], effect="read", daily_limit=1)
    owls.add("talk", _talk, effect="read")
    with serve(owls), serve(works.server):
        services = json.dumps({module.name: module.url for module in (owls, works.server, *more)})
        env = {
            "TOOLFLEET_REDIS_URL": redis_url,
            "TOOLFLEET_MODULE_SERVICES": services,
            "TOOLFLEET_JOBS_INTERVAL_SECONDS": "0.1",
            # Settings of earlier versions.
            "TOOLFLEET_SHORTEST_POLL_SECONDS": "0.05",
            "TOOLFLEET_MAX_JOB_SECONDS": "3000000000",
            **{f"TOOLFLEET_{name.upper()}": value for name, value in settings.items()},
        }
        yield MixedFleet(env, folder)


async def _talk(request: Request) -> web.Response:
    """Says how far it is, and takes its time then: what comes right before the reply nobody needs to hear."""

    async def lines() -> AsyncIterator[bytes]:
        yield b'{"progress": 0.5, "message": "half"}\n'
        await asyncio.sleep(0.5)
        yield json.dumps({"tool_name": request["tool_name"], "success": True, "result": "done"}).encode() + b"\n"

    return web.Response(body=lines(), headers={"Content-Type": "application/x-ndjson"})


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TOOLFLEET_")}
