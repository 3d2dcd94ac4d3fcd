"""A tool folder that is served in this process, without sockets; its tools run in processes of their own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import wait_until, wait_until_answered
from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult

HEAD = "from toolfleet.sdk import Context, ModuleBusy, ToolError, tool\n"

GREET = (
    HEAD
    + '''
@tool(effect="read")
async def greet(name: str) -> str:
    """Greet."""
    return f"hoot {name}"
'''
)


@dataclass
class HostedFolder:
    """`path` is the folder; its module is named `owls`."""

    path: Path
    host: FolderHost
    client: ModuleClient

    def write(self, name: str, text: str) -> None:
        """Save a file at once, as editors do."""
        draft = self.path / f".{name}"
        draft.write_text(text)
        draft.rename(self.path / name)

    async def call(self, tool: str, **arguments: Any) -> ModuleResult:
        return await self.client.call(tool, **arguments)

    def errors(self) -> dict[str, tuple[str, str]]:
        """The kind and what is in effect, by the files' names."""
        return {Path(e.file).name: (e.error_type, e.in_effect) for e in self.host.manifest.load_errors or ()}

    def messages(self) -> str:
        return "\n".join(each.message for each in self.host.manifest.load_errors or ())

    async def wait_for_tools(self, *names: str) -> None:
        wanted = {f"owls.{name}" for name in names}
        await wait_until(lambda: set(self.host.tools) == wanted, f"{wanted} are served")

    async def wait_for_errors(self, expected: dict[str, tuple[str, str]]) -> None:
        await wait_until(lambda: self.errors() == expected, f"the load errors are {expected}")


becomes = wait_until_answered


@asynccontextmanager
async def hosted(path: Path, files: dict[str, str], **options: Any) -> AsyncGenerator[HostedFolder]:
    """Serve these files, by their names."""
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    host = FolderHost(FolderOptions("owls", path, debounce_ms=50, **options))
    async with ModuleClient(host, user_id=None, permission="user") as client:
        yield HostedFolder(path, host, client)
