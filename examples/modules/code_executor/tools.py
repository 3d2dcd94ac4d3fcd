"""The tools of `code_executor`: which programs run, and how their end is told."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from modules.code_executor.isolation import ALONE, Isolation
from modules.code_executor.languages import Language
from modules.code_executor.limits import Limits
from modules.code_executor.programs import BrokenLimit, Ending, Program, run_program
from modules.code_executor.turns import Turns
from modules.files import FilePipeline, FileRefused, FilesUnavailable
from toolfleet.sdk import ModuleBusy, ToolError

FILES_SECONDS = 12  # for all files that a program reads, and again for all that it has saved
_OUTPUT = "output"
_SHOWN_CHARS = 800  # of each stream in an error, which the fleet cuts at 2 kB

Code = Annotated[str, Field(max_length=100_000)]
Files = Annotated[list[str], Field(max_length=16)]


class CodeExecutor:
    """Runs programs, a few at a time; one at a time if nothing keeps one user's from another's."""

    def __init__(self, limits: Limits, isolation: Isolation, files: FilePipeline) -> None:
        self._limits = limits
        self._isolation: Isolation = isolation
        self._files = files
        self._turns = Turns(limits.concurrency, alone=isolation in ALONE)

    async def run_python(self, code: Code, user_id: str | None, files: Files | None = None) -> dict[str, Any]:
        """Run a Python program and return its exit_code, stdout and stderr; it starts in an empty folder.

        Files that it saves directly in the folder 'output', or in a /tmp of its own, become files of the user, if it ends by itself.

        Args:
            code: A Python program. Print what you want to see.
            files: Names (or file_ids) of the user's files that the program reads, such as ['sales.csv']: it finds copies of them,
                called by their names, in its working folder.
        """
        return await self._run("python", code, user_id, files or [])

    async def run_shell(self, commands: Code, user_id: str | None, files: Files | None = None) -> dict[str, Any]:
        """Run commands of the shell, and return the last one's exit_code, and stdout and stderr; they start in an empty folder.

        Files that they save directly in the folder 'output', or in a /tmp of their own, become files of the user, if they end by themselves.

        Args:
            commands: One line or many, such as 'sort -u names.txt | head'. A failed one does not stop the rest, but after 'set -e'.
            files: Names (or file_ids) of the user's files that they read, such as ['sales.csv']: they find copies,
                called by their names, in their working folder.
        """
        return await self._run("shell", commands, user_id, files or [])

    async def load_file(
        self,
        file: Annotated[str, Field(description="The file's name, such as 'sales.csv', or its file_id.")],
        user_id: str | None,
        start: Annotated[int, Field(ge=0)] = 0,
        max_chars: Annotated[int, Field(ge=1, le=200_000)] = 20_000,
    ) -> dict[str, Any]:
        """Load a file of the user: its name, media type and size in bytes, and its text if it is one, or a part of that.

        A program gets the whole file, text or not, with its name in the argument files of run_python.

        Args:
            start: The first character to return.
            max_chars: How many characters to return.
        """
        record, data = await self._files.open(user_id, file)
        told = {"name": record.name, "file_id": record.file_id, "media_type": record.media_type, "bytes": record.size}
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return {**told, "is_text": False}
        return {
            **told,
            "is_text": True,
            "content": text[start : start + max_chars],
            "start": start,
            "total_chars": len(text),
        }

    async def _run(self, language: Language, code: str, user_id: str | None, files: list[str]) -> dict[str, Any]:
        program = Program(language, code, await self._copies(files, user_id))
        async with self._turn() as lock:
            ending = await run_program(
                program, self._limits, self._isolation, most_bytes=self._files.max_bytes, lock=lock
            )
        if ending.broken_limit:
            raise ToolError(f"The program was ended: {self._reason(ending.broken_limit)}.{_last_words(ending)}")
        result = ending.model_dump(include={"exit_code", "stdout", "stderr", "seconds"})
        return {**result, **await self._keep(ending, user_id)}

    async def _copies(self, names: list[str], user_id: str | None) -> dict[str, bytes]:
        try:
            async with asyncio.timeout(FILES_SECONDS):
                opened = [(name, *await self._files.open(user_id, name)) for name in names]
        except (TimeoutError, FilesUnavailable):
            raise ToolError(
                "The program was not started: its files cannot be read now; try again later.", effect_state="none"
            ) from None
        # A name stays spelt as the program will spell it.
        copies = {record.name if name == record.file_id else name: data for name, record, data in opened}
        if _OUTPUT in copies:
            raise FileRefused(f"No file can be called {_OUTPUT!r} here: it is the name of the program's output folder.")
        return copies

    async def _keep(self, ending: Ending, user_id: str | None) -> dict[str, Any]:
        """Save the program's files. What it printed is told in any case."""
        saved: list[dict[str, Any]] = []
        lost = dict(ending.left_out)
        waiting = dict(ending.files)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FILES_SECONDS):
                while waiting:
                    name = next(iter(waiting))
                    try:
                        record = await self._files.save(user_id, name, waiting[name], "code_executor")
                        saved.append({"name": record.name, "bytes": record.size})
                    except FileRefused as exc:
                        lost[name] = str(exc)
                    except FilesUnavailable:
                        break
                    del waiting[name]
        lost |= dict.fromkeys(waiting, "the file store did not answer in time; perhaps it is saved all the same")
        told = {"saved_files": saved, "not_saved": [{"name": name, "reason": lost[name]} for name in lost]}
        return {key: value for key, value in told.items() if value}

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[int | None]:
        async with AsyncExitStack() as stack:
            try:
                lock = await stack.enter_async_context(self._turns.turn(self._limits.queue_seconds))
            except TimeoutError:
                raise ModuleBusy(retry_after_seconds=math.ceil(self._limits.wall_seconds)) from None
            yield lock

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
