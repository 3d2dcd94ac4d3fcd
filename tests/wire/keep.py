"""Writes the fixtures of a wire version: all that its agents and workers leave in Redis, its messages' fields and its keys.

`PYTHONPATH=tests python tests/wire/keep.py 1`. With `accepted` it writes what today's leave of calls with which modules go on.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from redis import Redis

from support.module_server import serve
from support.servers import redis_snapshot
from support.servers.hatchery import make_hatchery
from support.versions.mixed_fleet import mixed_fleet
from support.versions.releases import Release, build, here, versions
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import Keys

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


def keep_accepted(folder: Path) -> None:
    """Write down two calls with which their module goes on; the second one was with several of its processes."""
    for mode, settings in MODES.items():
        nest, logs = make_hatchery(), folder / f"accepted-{mode}"
        nest.poll_after = 30.0
        logs.mkdir()
        with redis_server(folder / f"redis-accepted-{mode}") as url, serve(nest.server):
            with mixed_fleet(url, logs, [nest.server], **settings) as fleet, fleet.worker(here()):
                left = fleet.agent(here(), "leave-accepted")
                wait_until_sync(partial(_are_parked, url, list(left.values())), "both are parked")
            with Redis.from_url(url) as redis:  # as `MOVE` writes it
                record = Keys().call(left["elsewhere"])
                redis.hset(record, mapping={"replica": "gone-1", "scattered": "1"})
            text = redis_snapshot.take(url)
        (FIXTURES / f"2-{mode}-accepted.json").write_text(text)


def _are_parked(url: str, call_ids: list[str]) -> bool:
    with Redis.from_url(url) as redis:
        return all(redis.hexists(Keys().call(call_id), "parked") for call_id in call_ids)


def _printed(release: Release, program: str) -> str:
    """What a program of this folder prints of that release."""
    path, env = str(Path(__file__).with_name(program)), {**os.environ, **release.env}
    done = subprocess.run([release.python, path], env=env, check=True, capture_output=True, timeout=_SECONDS)
    return done.stdout.decode()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if sys.argv[1] == "accepted":
            keep_accepted(Path(scratch))
        else:
            keep(int(sys.argv[1]), Path(scratch))
