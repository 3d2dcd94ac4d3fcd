"""Running one program: a launcher process for each, which ends when nobody waits for it any more."""

import asyncio
import base64
import contextlib
import json
import os
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from tempfile import gettempdir
from typing import Literal, NamedTuple

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from modules.code_executor.isolation import LAUNCHER, Isolation
from modules.code_executor.languages import Language
from modules.code_executor.limits import Limits

_END_SECONDS = 8  # longer than the launcher takes to end what the program started

BrokenLimit = Literal["wall_time", "cpu_time", "processes"]


class Program(NamedTuple):
    """What is run, and the files that it finds in its working folder, by name."""

    language: Language
    code: str
    files: dict[str, bytes]


class Ending(BaseModel):
    """How a program ended, in the launcher's words. A negative exit code is the signal that ended it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exit_code: int
    broken_limit: BrokenLimit | None
    stdout: str
    stderr: str
    seconds: float
    files: dict[str, Base64Bytes]
    """What it saved in its output folder, by name; empty for a program that had to be ended."""
    left_out: list[tuple[str, str]]
    """What of it is not in `files`, and why."""


async def run_program(
    program: Program, limits: Limits, isolation: Isolation, *, most_bytes: int, lock: int | None
) -> Ending:
    """Run a program. If this is cancelled, the program is ended.

    A file that it saves may have `most_bytes`. With `lock`, which its launcher keeps until nothing of it is left, it is the only
    program on this machine. Raises `RuntimeError` without a launcher.
    """
    job = {
        "language": program.language,
        "code": program.code,
        "files": {name: base64.b64encode(data).decode() for name, data in program.files.items()},
        "limits": limits.model_dump(),
        "most_bytes": most_bytes,
        "isolation": isolation,
        "alone": lock is not None,
    }
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", LAUNCHER),
        stdin=PIPE,
        stdout=PIPE,
        env={"PATH": os.defpath, "TMPDIR": gettempdir()},  # no more of ours: our environment may hold secrets
        start_new_session=True,
        pass_fds=() if lock is None else (lock,),
    )
    stdin, stdout = launcher.stdin, launcher.stdout
    assert stdin is not None and stdout is not None  # noqa: PT018 - both are pipes, which the types cannot say
    try:
        answer = await _ask(stdin, stdout, json.dumps(job).encode() + b"\n")
    finally:
        await _end(launcher, stdin)
    try:
        return Ending.model_validate_json(answer)
    except ValidationError as exc:
        raise RuntimeError(f"the launcher ended with {launcher.returncode} and no answer") from exc


async def _ask(stdin: StreamWriter, stdout: StreamReader, job: bytes) -> bytes:
    with contextlib.suppress(ConnectionError):  # then it says nothing either
        stdin.write(job)
        await stdin.drain()
    return await stdout.read()


async def _end(launcher: Process, stdin: StreamWriter) -> None:
    """Close its standard input, upon which it ends the program and itself."""
    stdin.close()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await launcher.wait()
    except TimeoutError:
        launcher.kill()
        await launcher.wait()
