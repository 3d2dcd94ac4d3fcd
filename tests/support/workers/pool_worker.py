"""A worker process of `pool_app`, and the calls for it."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.worker_process import Calls, WorkerProcess, worker_process

QUEUE = "tools.pool"
REDIS_VARIABLE = "POOL_APP_REDIS_URL"
_QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat")


@contextmanager
def pool_worker(
    url: str, folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Generator[WorkerProcess]:
    """A worker on `url`'s Redis, ready; `options` are those of `celery worker`."""
    variables = {REDIS_VARIABLE: url, **(env or {})}
    with worker_process("support.workers.pool_app", *_QUIET, *options, env=variables, folder=folder) as worker:
        yield worker


def pool_calls(url: str) -> Iterator[Calls]:
    """For a fixture: closed at its end."""
    calls = Calls(url, QUEUE)
    yield calls
    calls.close()
