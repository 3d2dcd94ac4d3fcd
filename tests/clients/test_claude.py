"""Claude Code itself, run by Claude's agent SDK, calls the fleet: its model is a server that follows a script."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from support.documents import programs
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.servers.scripted_claude import Step, scripted_claude
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import TESTS, WorkerProcess

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).parent / "claude" / "requirements.lock"
FOLDER = ROOT / ".cache" / "clients" / "claude"
GUIDE = programs("docs/guides/agent-frameworks.md")
TEXT = GUIDE["claude"]
_INSTALL_SECONDS, _SECONDS = 300, 90
_TAMPERED = "Hash mismatch"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the SDK is, with the program that comes inside it: by the lock file's digests, beside what it needs of ours."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(FOLDER), "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--require-hashes", "--requirement", str(LOCK)],
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"claude-agent-sdk has not come in {_INSTALL_SECONDS} s")
    assert _TAMPERED not in done.stderr, done.stderr
    if done.returncode != 0:
        pytest.skip(f"claude-agent-sdk cannot be installed: {done.stderr.strip()[:200]}")
    return FOLDER


def environment(installed: Path, url: str, home: Path) -> dict[str, str]:
    """Without a network: Claude Code asks nobody but the script, and waits for the server before its first request."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{installed}:{TESTS}",
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ENABLE_TOOL_SEARCH": "false",
        "MCP_CONNECTION_NONBLOCKING": "false",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


@asynccontextmanager
async def running(
    installed: Path, bed: TestBed, url: str, home: Path, text: str = TEXT
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The guide's program, ended with the test."""
    command = [sys.executable, str(LOCK.with_name("run.py")), text, bed.redis_url, "Ask the owl."]
    env, pipe = environment(installed, url, home), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, cwd=home, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ask(installed: Path, bed: TestBed, url: str, home: Path, text: str = TEXT) -> str:
    async with running(installed, bed, url, home, text) as process, asyncio.timeout(_SECONDS):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return said.decode().strip()


async def test_claude_code_calls_reads_failures_and_joins_repeats(
    installed: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess, tmp_path: Path
) -> None:
    """It is offered the caller's tools, and a failure says what decides about another try; a session that is played again joins the calls of the first."""
    owls.forget()
    steps: list[Step] = [
        ("mcp__toolfleet__owls__echo", {"text": "hoo"}, "toolu_0"),
        ("mcp__toolfleet__owls__nap_once", {"seconds": 0}, "toolu_1"),
        ("mcp__toolfleet__owls__garble", {}, "toolu_2"),
    ]
    for _ in range(2):
        async with scripted_claude(*steps) as script:
            assert await ask(installed, bed, script.url, tmp_path) == "done"

        echo, nap, garble = script.shown
        assert "mcp__toolfleet__owls__admin_only" not in script.offered[0]
        assert "hoo" in str(echo["content"])
        assert "awake" in str(nap["content"])
        assert garble["is_error"]
        for fact in ("error_code: invalid_response", "effect_state: unknown", "retryable: false", "hint: "):
            assert fact in str(garble["content"])
    assert [len(owls.calls(name)) for name in ("echo", "nap_once", "garble")] == [1, 1, 1]


async def test_a_program_that_ends_takes_its_call_back(
    installed: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess, tmp_path: Path
) -> None:
    """Whoever interrupts the session has the worker hang up on the module."""
    owls.forget()
    step = ("mcp__toolfleet__owls__nap", {"seconds": 60}, "toolu_9")
    async with scripted_claude(step) as script, running(installed, bed, script.url, tmp_path) as process:
        await wait_until(lambda: owls.running == 1, "the call runs", seconds=3 * PATIENCE_SECONDS)
        process.send_signal(signal.SIGINT)
        await wait_until(lambda: owls.interrupted, "the module was hung up on")
        async with asyncio.timeout(_SECONDS):
            await process.communicate()


async def test_a_session_is_deferred_and_goes_on_with_the_one_result(
    installed: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess, tmp_path: Path
) -> None:
    """Claude Code ends the run at the hook's word, and the resumed session shows its model the end of the call, which ran once."""
    owls.forget()
    text = GUIDE["claude-deferred"].replace("defer_after=20", "defer_after=0.1")
    steps: list[Step] = [
        ("mcp__toolfleet__owls__nap_once", {"seconds": 1}, f"toolu_{uuid4().hex}"),
        ("mcp__toolfleet__owls__echo", {"text": "hoo"}, f"toolu_{uuid4().hex}"),
    ]
    async with scripted_claude(*steps) as script:
        assert await ask(installed, bed, script.url, tmp_path, text) == "done"

    nap, echo = script.shown
    assert "awake" in str(nap["content"])
    assert "hoo" in str(echo["content"])
    assert [len(owls.calls(name)) for name in ("nap_once", "echo")] == [1, 1]
