"""Reads a Dockerfile as far as ours go, and does on this machine what its COPY and CMD say."""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stage:
    """One stage: each instruction's name and argument, continued lines joined."""

    instructions: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [argument for found, argument in self.instructions if found == name]

    def sources(self) -> list[str]:
        """What it copies from the context."""
        return [source for copy in self._copies() for source in copy.split()[:-1]]

    def cmd(self) -> list[str]:
        words = json.loads(self.all("CMD")[-1])
        assert isinstance(words, list)
        return [str(word) for word in words]

    def environment(self) -> dict[str, str]:
        """All that it sets, as a shell would read it."""
        return dict(word.split("=", 1) for argument in self.all("ENV") for word in shlex.split(argument))

    def folder(self) -> str:
        """Where its command starts."""
        return self.all("WORKDIR")[-1]

    def lay_out(self, context: Path, root: Path) -> Path:
        """Copy what it copies from `context` to below `root`. Returns its working folder there."""
        here = Path("/")
        for name, argument in self.instructions:
            if name == "WORKDIR":
                here = here / argument
            elif name == "COPY" and not argument.startswith("--from"):
                *sources, target = argument.split()
                for source in sources:
                    _copy(context / source, root / (here / target).relative_to("/"), into=target.endswith("/"))
        return root / here.relative_to("/")

    def _copies(self) -> list[str]:
        return [copy for copy in self.all("COPY") if not copy.startswith("--from")]


def read_stages(path: Path) -> list[Stage]:
    """The stages of a Dockerfile, the first one first."""
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^#.*\n", "", path.read_text())).splitlines()
    stages: list[Stage] = []
    for line in filter(None, lines):
        name, _, argument = line.partition(" ")
        if name == "FROM":
            stages.append(Stage([]))
        stages[-1].instructions.append((name, argument.strip()))
    return stages


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".venv"))
        return
    target = target / source.name if into else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
