"""Runs the commands of `docs/troubleshooting.md` against a real fleet, in their order, and puts their output in its place.

What happens between them, such as a module that goes away, stands in the page as a comment that readers do not see.
`PYTHONPATH=tests python -m support.troubleshooting_session` writes the page anew.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.module_server import serve
from support.modules.troubled_modules import OWLS, letters
from support.up import COMMAND, up
from support.waiting import PATIENCE_SECONDS, wait_until_sync

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
READY = "toolfleet worker ready"

_PART = re.compile(r"^<!-- (?P<change>[a-z ]+) -->$|^```console\n(?P<session>.*?)^```$", re.MULTILINE | re.DOTALL)
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_READ = re.compile(
    r"toolfleet (modules (list|refresh)|tools (list|show|diff)|audit|dead-letters (list|show)|logs|status)\b"
)
_SHOWN = "http://letters:8000"
_SHELL = f'toolfleet() {{ {shlex.join(COMMAND)} "$@"; }}\n'


def session(folder: Path, *, patience_seconds: float = 0) -> str:
    """Run the page's commands, and return the page with what they print.

    Commands that only look are run again, for so long, while they say something else than the page.
    """
    with ExitStack() as stack:
        return _PART.sub(_Stage(folder, stack, patience_seconds).played, PAGE.read_text())


def plain(page: str) -> str:
    """The page without what is another time and place in each session."""
    page = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.\d]*Z?", "<time>", page)
    page = re.sub(r"\b[\d.]+ (ms|s|min)\b", "<duration>", page)
    page = re.sub(r"127\.0\.0\.1:\d+", "<address>", page)
    page = page.replace("recovering", "ok")  # until it has answered some calls
    return re.sub(r" +", " ", _UUID.sub("<id>", page))


class _Stage:
    """A fleet, its modules, and what an operator types."""

    def __init__(self, folder: Path, stack: ExitStack, patience_seconds: float) -> None:
        self._stack = stack
        self._patience_seconds = patience_seconds
        self._module = letters()
        self._serving = ExitStack()
        stack.callback(self._serving.close)
        self._open()
        self._folder = folder / "fleet"
        owls = self._folder / "owls"
        owls.mkdir(parents=True)
        (owls / "__init__.py").touch()
        (owls / "main.py").write_text(OWLS)
        self._fleet = stack.enter_context(up(self._folder, None, "--module", "owls"))
        self._env = dict[str, str]()
        self._seen_id = ""

    def played(self, part: re.Match[str]) -> str:
        """What stands in the page in place of a comment, or of a block of commands."""
        if part["change"]:
            self._change(part["change"])
            return part[0]
        shown = (one.partition("\n") for one in re.split(r"^\$ ", part["session"], flags=re.MULTILINE)[1:])
        said = (f"$ {command}\n{self._said(command, before)}".rstrip() for command, _, before in shown)
        return "\n".join(["```console", *said, "```"])

    def _said(self, command: str, before: str) -> str:
        """What it prints; what a look was to show may take a moment."""
        end = time.monotonic() + self._patience_seconds
        while plain(said := self._run(command)).strip() != plain(before).strip():
            if not _READ.match(command) or time.monotonic() > end:
                break
        return said

    def _change(self, what: str) -> None:
        changes = {
            "letters goes away": self._serving.close,
            "letters is back": self._open,
            "letters changes": self._change_letters,
            "a fleet whose only worker is for the fast lane": self._go_elsewhere,
            "back in the first fleet": self._come_back,
        }
        changes[what]()

    def _open(self) -> None:
        port = int(self._module.url.rpartition(":")[2] or 0)
        self._serving.enter_context(serve(self._module, port=port))

    def _change_letters(self) -> None:
        self._module.definitions[0]["description"] = "Send a letter. Always send a copy to the archive."

    def _go_elsewhere(self) -> None:
        """Another database of the same Redis is another fleet."""
        url = str(self._fleet.run_file().settings["redis_url"]).removesuffix("/0")
        self._folder, self._env = self._fleet.folder.parent, {"TOOLFLEET_REDIS_URL": f"{url}/1"}
        self._stack.enter_context(_worker(self._folder, self._env))

    def _come_back(self) -> None:
        self._folder, self._env = self._fleet.folder, {}

    def _run(self, command: str) -> str:
        """What it prints, with names in the place of addresses and folders that are this machine's."""
        real = _UUID.sub(self._seen_id, command).replace(_SHOWN, self._module.url)
        ended = subprocess.run(
            ["/bin/bash", "-c", f"{_SHELL}{real}"],
            cwd=self._folder,
            env={**_environment(), "COLUMNS": "200", **self._env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * PATIENCE_SECONDS,
            check=False,
        )
        if ids := _UUID.findall(ended.stdout):
            self._seen_id = ids[0]
        said = ended.stdout.replace(str(self._folder), "…")
        url = re.escape(self._module.url)
        said = re.sub(
            rf"{url}(\S*  )", lambda cell: _SHOWN + cell[1] + " " * (len(self._module.url) - len(_SHOWN)), said
        )
        said = said.replace(self._module.url, _SHOWN).replace(
            urlsplit(self._module.url).netloc, urlsplit(_SHOWN).netloc
        )
        return "\n".join(line.rstrip() for line in said.splitlines())


def _environment() -> dict[str, str]:
    """Ours, without the settings of tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOOLFLEET_")}


@contextmanager
def _worker(folder: Path, env: dict[str, str]) -> Generator[None]:
    """A worker of the fast lane, until the end of the block."""
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, "worker", "--lane", "fast"],
            cwd=folder,
            env={**_environment(), **env},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_sync(
            lambda: READY in log.read_text() or process.poll() is not None, "it is ready", seconds=3 * PATIENCE_SECONDS
        )
        yield
    finally:
        process.terminate()
        process.wait(2 * PATIENCE_SECONDS)


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        page = session(Path(folder), patience_seconds=20)
    PAGE.write_text(page)
    sys.stdout.write(f"{PAGE} is written anew\n")


if __name__ == "__main__":
    main()
