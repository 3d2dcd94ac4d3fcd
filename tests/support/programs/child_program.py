"""A function of a test file, run in a process of its own: for what could take all memory, or never end."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def run_apart(function: Callable[[], None], file: str, *, seconds: float) -> None:
    """Run a function of the module in `file`; fails with the last line that it printed unless it ends well in time."""
    here = Path(file)
    program = f"import sys; sys.path[:0] = {sys.path!r}; import {here.stem}; {here.stem}.{function.__name__}()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=here.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()

    assert process.returncode == 0, f"at {output.splitlines()[-1:]}: {errors[-2_000:]}"
