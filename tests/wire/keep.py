"""Writes the fixtures of a wire version: all that its agents and workers leave in Redis, its messages' fields and its keys.

`PYTHONPATH=tests python tests/wire/keep.py 1`
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.servers import redis_snapshot
from support.versions.mixed_fleet import mixed_fleet
from support.versions.releases import Release, build, versions
from toolfleet_cli.local.redis_server import redis_server

FIXTURES = Path(__file__).parent / "fixtures"
_SECONDS = 30
KEY = "a secret of more than thirty-two characters"
MODES: dict[str, dict[str, str]] = {"unsigned": {}, "signed": {"signing_key": KEY}}


def keep(number: int, folder: Path) -> None:
    """Run a fleet of that version with each mode, and write down what is in its Redis then."""
    version = next(version for version in versions() if version.number == number)
    release = build(version, folder / "release")
    for name in ("fields", "keys"):
        (FIXTURES / f"{number}-{name}.json").write_text(_printed(release, f"{name}_program.py"))
    for mode, settings in MODES.items():
        logs = folder / mode
        logs.mkdir()
        with redis_server(folder / f"redis-{mode}") as url, mixed_fleet(url, logs, **settings) as fleet:
            with fleet.running(release):
                fleet.agent(release, "small")
            left = fleet.agent(release, "leave")
            text = redis_snapshot.take(url)
        (FIXTURES / f"{number}-{mode}.json").write_text(text)
        (FIXTURES / f"{number}-{mode}-left.json").write_text(json.dumps(left) + "\n")


def _printed(release: Release, program: str) -> str:
    """What a program of this folder prints of that release."""
    path, env = str(Path(__file__).with_name(program)), {**os.environ, **release.env}
    done = subprocess.run([release.python, path], env=env, check=True, capture_output=True, timeout=_SECONDS)
    return done.stdout.decode()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        keep(int(sys.argv[1]), Path(scratch))
