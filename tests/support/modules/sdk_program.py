"""A module of its own process, whose effects are lines in a file: `uvicorn support.modules.sdk_program:app`.

`SDK_REPLIES` is where it remembers its calls: empty for its memory, a Redis URL, or a file; `SDK_JOURNAL` the file.
`SDK_STORE_SECONDS`: how long it waits for an answer from there.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx

from support.files.pictures import PNG
from support.programs.fork_server import Process, end, start
from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet.sdk import (
    Accepted,
    Context,
    File,
    Image,
    Media,
    MemoryReplies,
    Module,
    ModuleBusy,
    RedisReplies,
    Replies,
    SQLiteReplies,
    StatusAnswer,
    ToolError,
)
from toolfleet_modules.calls import idempotency
from toolfleet_modules.sdk import app as sdk_app

TESTS = Path(__file__).parents[2]
JOURNAL = Path(os.environ.get("SDK_JOURNAL", "journal"))


def _replies() -> Replies:
    where = os.environ.get("SDK_REPLIES", "")
    if not where:
        return MemoryReplies()
    return RedisReplies(where) if where.startswith("redis://") else SQLiteReplies(where)


if "SDK_JOURNAL" in os.environ:  # the program itself, and not the test that imports what starts it
    idempotency.LEASE_SECONDS, idempotency.RENEW_SECONDS = 2.0, 0.5
    sdk_app.STORE_SECONDS = float(os.environ.get("SDK_STORE_SECONDS", sdk_app.STORE_SECONDS))
module = Module("owls", description="Writes down what it does.", replies=_replies())


def write(line: str) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(f"{line}\n")


def lines() -> list[str]:
    return JOURNAL.read_text().splitlines() if JOURNAL.exists() else []


async def act(name: str, context: Context, wait: bool = False) -> str:  # noqa: FBT002 - a tool's arguments
    """Write the name down; and wait until somebody makes the file `go`, if that is wanted."""
    write(name)
    await context.progress(0.5, "written")
    try:
        while wait and not JOURNAL.with_name("go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        write(f"{name} cancelled")
        raise
    return name


module.add(act, name="once", effect="once")
module.add(act, name="read", effect="read")


@module.tool(effect="read")
def thread(name: str) -> str:
    """Write the name down and wait for the file, in a thread that nobody can stop."""
    write(name)
    while not JOURNAL.with_name("go").exists():
        time.sleep(0.01)
    return name


@module.tool(effect="read")
async def second_time(name: str, kind: str) -> str:
    """Fail at the first call."""
    write(name)
    if lines().count(name) == 1:
        raise ModuleBusy(0) if kind == "busy" else ToolError(kind, retryable=True)
    return name


@module.tool(permission="user", effect="read")
async def told(context: Context, user_id: str) -> dict[str, object]:
    """What the fleet says of a call."""
    return {
        "user_id": user_id,
        "permission": context.permission,
        "call_id": context.call_id,
        "seconds_left": context.seconds_left,
    }


@module.tool(effect="read")
async def measure(picture: Annotated[bytes, Media("image/png")]) -> int:
    """Write down how many bytes came."""
    write(str(len(picture)))
    return len(picture)


@module.tool(effect="once")
async def draw(size: int) -> dict[str, object]:
    """Draw a PNG of so many bytes, and write about it."""
    write("drawn")
    return {"chart": Image(PNG.ljust(size, b"x")), "about": File(b"Owls.", name="about.txt")}


nests = set[str]()


@module.tool(effect="once")
async def brood() -> str:
    """Write it down, and go on until there is a file `hatched` beside the journal."""
    write("brood")
    nests.add(f"nest-{len(nests) + 1}")
    raise Accepted(f"nest-{len(nests)}", poll_after_seconds=0.2)


@module.status
async def where(handle: str, *, cancel: bool) -> StatusAnswer:
    """Say where a brood is; after a restart that is not known."""
    del cancel
    if handle not in nests:
        return StatusAnswer.unknown()
    return StatusAnswer.done("owls") if JOURNAL.with_name("hatched").exists() else StatusAnswer.running(0.5, "warm")


app = module.app

_ADDRESS = re.compile(r"Uvicorn running on (http://\S+)")


@dataclass(frozen=True)
class Running:
    """A server of it."""

    url: str
    process: Process

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=2 * PATIENCE_SECONDS, trust_env=False, verify=PLAIN)


@contextmanager
def running(
    folder: Path,
    *,
    replies: object = "",
    workers: int = 1,
    key: str = "",
    env: Mapping[str, str] | None = None,
    port: int = 0,
) -> Generator[Running]:
    """Serve it on this port, or on a free one, its journal in the folder."""
    log = folder / f"module-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "uvicorn", "support.modules.sdk_program:app", "--host", "127.0.0.1"]
    own = {"PYTHONPATH": str(TESTS), "SDK_REPLIES": str(replies), "SDK_JOURNAL": str(folder / "journal")}
    with log.open("wb") as output:
        process = start(
            [*command, "--port", str(port), "--workers", str(workers)],
            env={**own, "TOOLFLEET_MODULE_KEY": key, **(env or {})},
            cwd=folder,
            output=output,
        )
    try:

        def is_up() -> bool:
            said = log.read_text()
            return said.count("Application startup complete.") >= workers and bool(_ADDRESS.search(said))

        wait_until_sync(lambda: is_up() or process.poll() is not None, "the module runs")
        said = log.read_text()
        assert process.poll() is None, said
        address = _ADDRESS.search(said)
        assert address, said
        yield Running(address[1], process)
    finally:
        end(process, patience_seconds=5)
