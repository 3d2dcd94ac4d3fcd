"""A pytest of somebody else's, in a process of its own: with our plugin, as everybody has it who has Toolfleet."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PYTEST = str(Path(sys.executable).with_name("pytest"))
# Of our own tests, and slow to import.
_WITHOUT = [
    word for name in ("hypothesispytest", "langsmith_plugin", "schemathesis", "xdist") for word in ("-p", f"no:{name}")
]


@dataclass(frozen=True)
class Outcome:
    """How many tests came to what, and all that was said."""

    counts: dict[str, int]
    said: str


def run_pytest(folder: Path, *options: str) -> Outcome:
    """Run the tests in `folder`, where no settings of ours are found."""
    (folder / "pytest.ini").touch()
    ended = subprocess.run(
        [PYTEST, "-p", "no:cacheprovider", *_WITHOUT, *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    summary = ended.stdout.splitlines()[-1]
    return Outcome(
        {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|errors?)", summary)}, ended.stdout
    )
