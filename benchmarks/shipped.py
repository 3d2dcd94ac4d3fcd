"""Runs what `toolfleet up` runs: its Redis with its file, worker, beat, Flower and gateway, with the settings that they have by default."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.environments import ROOT, python_of
from benchmarks.stage import Stage
from benchmarks.systems import System
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.config.run_file import FOLDER, NAME, RunFile
from toolfleet_registry.redis.servers import sync_client

_STOP_SECONDS = 10
_POLL_SECONDS = 0.05
_REDIS = "TOOLFLEET_REDIS_URL"
# For measuring only; what is shipped logs each call, for one.
_OTHERWISE = (_REDIS, "TOOLFLEET_LOG_LEVEL")


class DidNotStart(Exception):
    """`toolfleet up` has ended, or takes too long."""


@dataclass(frozen=True)
class ShippedFleet:
    """What runs: a stage with the Redis of that fleet, and its workers' process ids."""

    stage: Stage
    worker_pids: list[int]


@contextmanager
def shipped_fleet(system: System, stage: Stage, seconds: float) -> Generator[ShippedFleet]:
    """Run `toolfleet up` in a folder of its own. Without `system.is_durable` it is given the stage's Redis, which has no file.

    Raises `DidNotStart`.
    """
    folder = Path(mkdtemp(prefix="up-", dir=stage.folder))
    variables = {key: value for key, value in system.environment_variables(stage).items() if key not in _OTHERWISE}
    if not system.is_durable:
        stage.empty_redis()
        variables[_REDIS] = stage.redis_url
    with (folder / "up.log").open("wb") as log:
        command: list[str | Path] = [python_of("toolfleet"), "-m", "toolfleet_cli", "up"]
        process = spawn(command, env={"PYTHONPATH": str(ROOT), **variables}, cwd=folder, output=log)
    try:
        give_up_at = time.monotonic() + seconds
        while (run_file := _run_file(folder)) is None:
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise DidNotStart((folder / "up.log").read_text(errors="replace"))
            time.sleep(_POLL_SECONDS)
        yield _found(run_file, stage, variables)
    finally:
        stop(process, patience_seconds=_STOP_SECONDS)


def _run_file(folder: Path) -> RunFile | None:
    """What `up` tells other commands, from when its processes are ready."""
    path = folder / FOLDER / NAME
    found = RunFile.model_validate_json(path.read_bytes()) if path.is_file() else None
    return found if found is not None and found.processes else None


def _found(run_file: RunFile, stage: Stage, variables: Mapping[str, str]) -> ShippedFleet:
    url = variables.get(_REDIS) or str(run_file.settings["redis_url"])
    with sync_client(url) as redis:
        port, pid = (int(redis.info("server")[name]) for name in ("tcp_port", "process_id"))
    workers = [process.pid for name, process in run_file.processes.items() if name.startswith("worker-")]
    return ShippedFleet(replace(stage, redis_port=port, redis_pid=pid), workers)
