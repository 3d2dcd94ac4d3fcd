"""Files go to a module and come back, through a real worker: signed, stored, and within the bounds of calls and results."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.files.pictures import JPEG, PNG, base64
from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.modules.sdk_program import running
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet.formats import from_result
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.messages.signing import module_key

KEY = "a secret of more than thirty-two characters"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def bed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet that signs, and a module of the SDK that remembers its replies in a file."""
    replies, key = folder / "replies.db", module_key(KEY, "owls")
    with redis_server(tmp_path_factory.mktemp("redis")) as url, running(folder, replies=replies, key=key) as server:
        owls = ModuleServer("owls", url=server.url)
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"signing_key": KEY})


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


def journal(folder: Path) -> list[str]:
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []


def draw(size: int) -> ToolCall:
    return ToolCall(tool_name="owls.draw", arguments={"size": size})


@pytest.mark.parametrize("size", [70, 2_000_000], ids=["announced whole", "fetched"])
async def test_an_image_comes_back(bed: TestBed, worker: WorkerProcess, owner: Caller, size: int) -> None:
    """Beside the result, which says in words what it is; a provider's message shows it."""
    async with ToolFleet(settings=bed.settings) as fleet:
        result = await fleet.call(draw(size), owner)

    assert result.result == {
        "chart": f"image 1 (image/png, {size} bytes)",
        "about": "file 2 'about.txt' (text/plain, 5 bytes)",
    }
    assert [(file.kind, file.media_type, file.name) for file in result.files] == [
        ("image", "image/png", None),
        ("file", "text/plain", "about.txt"),
    ]
    assert result.files[0].read() == PNG.ljust(size, b"x")
    message = from_result(result, "anthropic", "1")
    assert [block["type"] for block in message["content"]] == ["text", "image", "document"]


async def test_a_repeat_brings_the_same_files(bed: TestBed, worker: WorkerProcess, owner: Caller, folder: Path) -> None:
    """They are stored with the result, and the tool does not run again."""
    call = draw(100).model_copy(update={"idempotency_key": "one drawing"})
    async with ToolFleet(settings=bed.settings) as fleet:
        first = await fleet.call(call, owner)
        before = journal(folder)
        again = await fleet.call(call, owner)

    assert again.files == first.files != ()
    assert journal(folder) == before


def as_celery_reads(bed: TestBed, call_id: str) -> dict[str, Any]:
    calls = FleetCalls(bed.settings)
    try:
        return calls.results(call_id)[0]
    finally:
        calls.close()


async def test_who_knows_no_files_reads_text(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """What Celery's readers and older agents see is a result with text in the place of each file."""
    async with ToolFleet(settings=bed.settings) as fleet:
        call_id = (await fleet.call(draw(70), owner)).audit.call_id
        stored = await asyncio.to_thread(as_celery_reads, bed, call_id)

    assert stored["result"]["chart"] == "image 1 (image/png, 70 bytes)"
    assert stored["v"] == 2, "older readers leave out what they do not know"


async def test_a_file_goes_to_a_module(bed: TestBed, worker: WorkerProcess, owner: Caller, folder: Path) -> None:
    """Some 750 kB of bytes are within the bound of arguments."""
    picture = PNG.ljust(750_000, b"x")
    async with ToolFleet(settings=bed.settings) as fleet:
        call = ToolCall(tool_name="owls.measure", arguments={"picture": base64(picture)})
        result = await fleet.call(call, owner)

    assert (result.result, result.error) == (750_000, None)
    assert journal(folder)[-1] == "750000"


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        ("no base64!", "picture: This is no base64"),
        ("", "picture: This has no bytes"),
        (base64(JPEG), "picture: This is image/jpeg; image/png is wanted"),
        (base64(b"hello"), "picture: This is not image/png"),
        (base64(PNG.ljust(800_000, b"x")), "Arguments have 1066682 bytes as JSON; at most 1048576 can be sent."),
    ],
    ids=["no base64", "empty", "another type", "unknown bytes", "too large"],
)
async def test_what_is_no_such_file_is_refused(
    bed: TestBed, worker: WorkerProcess, owner: Caller, folder: Path, picture: str, why: str
) -> None:
    """With one sentence, before the tool runs; of one that is too large the hint names the setting."""
    before = journal(folder)
    async with ToolFleet(settings=bed.settings) as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.measure", arguments={"picture": picture}), owner)

    assert (result.success, result.effect_state) == (False, "none")
    assert why in str(result.error)
    assert len(str(result.error)) < 200
    assert ("TOOLFLEET_MAX_ARGUMENTS_BYTES" in str(result.hint)) == ("at most 1048576" in why)
    assert journal(folder) == before


async def test_files_are_in_no_other_place(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """Neither in the audit nor in a worker's log."""
    async with ToolFleet(settings=bed.settings) as fleet, Redis.from_url(bed.redis_url) as redis:
        result = await fleet.call(draw(200), owner)
        lines = str(await redis.xrange("toolfleet:audit"))

    assert result.audit.call_id in lines
    assert result.files[0].data not in lines + worker.said()
