"""A new user's first ten minutes: the page, from top to bottom, in an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from support.command import run
from support.documents import ROOT
from support.up import Up, up
from support.waiting import PATIENCE_SECONDS, wait_until_sync

PAGE = (ROOT / "docs" / "getting-started.md").read_text()
BIN = Path(sys.executable).parent
FILES = {"agent": "agent.py", "waiting": "waiting.py", "profile": "careful.toml"}
"""Where a reader puts each program; a tool is added to the module's own file."""
_PARTS = re.compile(
    r"^(?:<!-- program: (?P<name>[a-z-]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_TYPED = re.compile(r"^\$ (.*)\n([^$]*)", re.MULTILINE)
WAITED = PAGE.partition("Then `waiting.py` prints `")[2].partition("`")[0]


class Reader:
    """Somebody who does what the page says, in three shells."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.fleet: Up | None = None
        self.said: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        if name == "tool":
            path = self.folder / "owls" / "tools.py"
            path.write_text(f"{path.read_text()}\n\n{text}")
            self.wait_for("From now on calls reach owls", "up.txt")
        else:
            (self.folder / FILES[name]).write_text(text)

    def type(self, command: str, shown: str) -> None:
        """What it prints is what the page shows, where that shows anything."""
        program, *words = shlex.split(command)
        if words[:1] == ["up"]:
            self.fleet = self._stack.enter_context(up(self.folder, None, *words[1:]))
        elif words[:1] == ["host"]:
            self._start(program, *words)
            self.wait_for("clock serves 2 tools", "shell.txt")
            wait_until_sync(lambda: "clock.convert_time" in self._listed(), "the fleet has its tools")
        elif words == ["waiting.py"]:
            self._start(program, *words)
            wait_until_sync(self._approvals, "its call waits")
        elif program != "pip":
            (waiting,) = self._approvals() if "APPROVAL" in words else [""]
            said = self._ended(program, *(waiting if word == "APPROVAL" else word for word in words))
            assert said == shown or not shown, command
            self.said[command] = said

    def _start(self, program: str, *words: str) -> None:
        env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        with (self.folder / "shell.txt").open("ab") as output:
            process = subprocess.Popen(
                [BIN / program, *words], cwd=self.folder, env=env, stdout=output, stderr=subprocess.STDOUT
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)

    def _ended(self, program: str, *words: str) -> str:
        if program == "toolfleet":
            ended = run(*words, cwd=self.folder)
            assert ended.code == 0, (words, ended)
            return ended.out
        return subprocess.check_output([BIN / program, *words], cwd=self.folder, text=True)

    def wait_for(self, words: str, file: str) -> None:
        """Nothing is asked of the fleet meanwhile, which has enough to do."""
        said = self.folder / file
        wait_until_sync(lambda: words in said.read_text(), f"{words!r} is said", seconds=3 * PATIENCE_SECONDS)

    def _listed(self) -> str:
        return run("tools", "list", cwd=self.folder).out

    def _approvals(self) -> list[str]:
        return [one["id"] for one in json.loads(run("approvals", "list", "--json", cwd=self.folder).out)]


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    """Each program, each command and each output is as the page has it, in order, and nothing else is typed."""
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for part in _PARTS.finditer(PAGE):
            if part["language"] == "console":
                for command, shown in _TYPED.findall(part["text"]):
                    reader.type(command, shown)
            else:
                reader.write(part["name"], part["text"])
        reader.wait_for(WAITED, "shell.txt")
        assert reader.fleet is not None
        up_said = reader.fleet.said()

    assert "3 passed" in reader.said["pytest owls"]
    assert "Asia/Tokyo" in reader.said[next(command for command in reader.said if "clock.convert_time" in command)]
    assert (tmp_path / ".toolfleet" / "gateway-key").read_text().strip() in up_said
    assert "/console" in up_said


def test_it_has_ten_minutes_at_most() -> None:
    """A reader types no more than twenty commands, on one page of no more than 1,000 words."""
    assert len(_TYPED.findall(PAGE)) <= 20
    assert len(PAGE.split()) <= 1000
