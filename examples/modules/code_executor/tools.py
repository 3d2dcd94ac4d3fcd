"""The tool of `code_executor`: which programs run, and how their end is told."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from modules.code_executor.limits import Limits
from modules.code_executor.programs import BrokenLimit, Ending, run_program
from modules.service import ModuleBusy, ToolError
from modules.user_files import FileSettings, UserFiles

_SHOWN_CHARS = 800  # of each stream in an error, which the fleet cuts at 2 kB


class CodeExecutor:
    """Runs Python programs, a few at a time. These are limits, not a sandbox: see `launcher.py`."""

    def __init__(self, limits: Limits, file_settings: FileSettings) -> None:
        self._limits = limits
        self._file_settings = file_settings
        self._room = asyncio.Semaphore(limits.concurrency)

    async def run_python(
        self,
        *,
        code: Annotated[str, Field(max_length=100_000)],
        files: Annotated[list[str], Field(max_length=16)] | None = None,
        user_id: str | None,
    ) -> dict[str, Any]:
        """Run a program with copies of some of the user's files.

        A program that ends by itself is a result, whatever its exit code; one that had to be ended is an error.
        """
        copies = await asyncio.to_thread(self._copies, files or [], user_id)
        async with self._turn():
            ending = await run_program(code, copies, self._limits)
        if ending.broken_limit:
            raise ToolError(f"The program was ended: {self._reason(ending.broken_limit)}.{_last_words(ending)}")
        return ending.model_dump(include={"exit_code", "stdout", "stderr", "seconds"})

    def _copies(self, names: list[str], user_id: str | None) -> dict[str, bytes]:
        if not names:
            return {}
        files = UserFiles.of(user_id, self._file_settings)
        return {name: files.read(name) for name in names}

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await self._room.acquire()
        except TimeoutError:
            raise ModuleBusy(retry_after_seconds=math.ceil(self._limits.wall_seconds)) from None
        try:
            yield
        finally:
            self._room.release()

    def _reason(self, broken_limit: BrokenLimit) -> str:
        match broken_limit:
            case "wall_time":
                return f"it ran longer than {self._limits.wall_seconds:g} s"
            case "cpu_time":
                return f"it used more than {self._limits.cpu_seconds} s of processor time"
            case "processes":
                return f"it had more than {self._limits.processes} processes at once"


def _last_words(ending: Ending) -> str:
    streams = (("stdout", ending.stdout), ("stderr", ending.stderr))
    shown = [f" Its {stream} ended in: {text[-_SHOWN_CHARS:]}" for stream, text in streams if text]
    return "".join(shown) or " It had printed nothing."
