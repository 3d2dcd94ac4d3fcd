"""Installs public MCP servers by their versions, each in a folder of its own, and says how each is started."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.packages import NODE, NPM

_FOLDER = Path(__file__).parents[3] / ".cache" / "clients" / "mcp_servers"
_INSTALL_SECONDS = 300
OLDER = "mcp<2"


@dataclass(frozen=True)
class PublicServer:
    """A server: `package` in `version`, started with `words` and `env`, in which `{}` is a folder of its own.

    `program` is a console script of a Python package, or a file of a package of npm. `has_sets`: its descriptions list sets in no order. `needs`: the SDK that
    a package of Python was written for, where it takes any.
    """

    module: str
    package: str
    version: str
    program: str
    words: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    has_sets: bool = False
    needs: str = "mcp>=1"

    @property
    def is_node(self) -> bool:
        return self.program.endswith(".js")

    def command(self, folder: Path) -> list[str]:
        """How it is started; it is installed unless it is. Skips where it cannot be had."""
        home = _FOLDER / f"{self.module}-{self.version}"
        program = home / "node_modules" / self.package / self.program if self.is_node else home / "bin" / self.program
        if not program.exists():
            home.mkdir(parents=True, exist_ok=True)
            self._install(home)
        return [*([str(NODE)] if self.is_node else []), str(program), *(word.format(folder) for word in self.words)]

    def environment(self, folder: Path) -> dict[str, str]:
        """What it is given beside the path."""
        return {"HOME": str(folder), **{name: text.format(folder) for name, text in self.env.items()}}

    def _install(self, home: Path) -> None:
        npm = [str(NODE), str(NPM), "install", "--ignore-scripts", "--no-save", "--no-audit", "--no-fund"]
        uv = str(Path(sys.executable).with_name("uv"))
        pinned = f"{self.package}@{self.version}" if self.is_node else f"{self.package}=={self.version}"
        steps = (
            [[*npm, "--prefix", str(home), pinned]]
            if self.is_node
            else [
                [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
                [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), pinned, self.needs],
            ]
        )
        env = {**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"}
        for step in steps:
            try:
                done = subprocess.run(
                    step, env=env, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"{pinned} has not come in {_INSTALL_SECONDS} s")
            if done.returncode != 0:
                pytest.skip(f"{pinned} cannot be installed: {done.stderr.strip()[-300:]}")


SERVERS = (
    PublicServer("calculator", "mcp-server-calculator", "0.2.1", "mcp-server-calculator"),
    PublicServer("calc", "@coo-quack/calc-mcp", "2.1.1", "dist/index.js"),
    PublicServer("commander", "@wonderwhy-er/desktop-commander", "0.2.52", "dist/index.js"),
    PublicServer("diff", "mcp-server-diff-python", "0.1.2", "mcp-server-diff-python", needs=OLDER),
    PublicServer("duckdb", "mcp-server-motherduck", "1.1.0", "mcp-server-motherduck", ["--db-path", ":memory:", "--read-write"]),
    PublicServer("everything", "@modelcontextprotocol/server-everything", "2026.8.31", "dist/index.js"),
    PublicServer("excel", "excel-mcp-server", "2.2.2", "excel-mcp-server", ["stdio"]),
    PublicServer("fetch", "mcp-server-fetch", "2026.10.24", "mcp-server-fetch"),
    PublicServer("fetch_all", "mcp-fetch", "0.6.5", "mcp-fetch", needs=OLDER),
    PublicServer("fs", "@modelcontextprotocol/server-filesystem", "2026.8.31", "dist/index.js", ["{}"]),
    PublicServer("git", "mcp-server-git", "2026.10.19", "mcp-server-git"),
    PublicServer("markitdown", "markitdown-mcp", "0.0.1a8", "markitdown-mcp"),
    PublicServer("math", "mcp-server-math", "0.1.0", "mcp-server-math", needs=OLDER),
    PublicServer(
        "memory", "@modelcontextprotocol/server-memory", "2026.8.31", "dist/index.js", env={"MEMORY_FILE_PATH": "{}/m.json"}
    ),
    PublicServer("ripgrep", "mcp-ripgrep", "0.4.0", "dist/index.js"),
    PublicServer("shell", "mcp-shell-server", "1.1.14", "mcp-shell-server", env={"ALLOW_COMMANDS": "cat,ls"}, has_sets=True),
    PublicServer("sqlite", "mcp-server-sqlite", "2025.4.25", "mcp-server-sqlite", ["--db-path", "{}/s.db"], needs=OLDER),
    PublicServer("text_editor", "mcp-text-editor", "1.0.2", "mcp-text-editor", needs=OLDER),
    PublicServer("thinking", "@modelcontextprotocol/server-sequential-thinking", "2026.8.31", "dist/index.js"),
    PublicServer("time_node", "time-mcp", "1.0.6", "dist/index.js"),
    PublicServer("time_python", "mcp-server-time", "2026.10.19", "mcp-server-time"),
)  # fmt: skip
