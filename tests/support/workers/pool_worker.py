"""A worker process of `pool_app`, and the calls for it."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from support.worker_process import Calls, WorkerProcess, worker_process

QUEUE = "tools.pool"
REDIS_VARIABLE = "POOL_APP_REDIS_URL"
_QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat")


@contextmanager
def pool_worker(
    url: str,
    folder: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    constants: Mapping[str, float] = MappingProxyType({}),
) -> Generator[WorkerProcess]:
    """A worker on `url`'s Redis, ready; `options` are those of `celery worker`, `constants` as of `worker_process`."""
    variables = {REDIS_VARIABLE: url, **(env or {})}
    words = (*_QUIET, *options)
    with worker_process(
        "support.workers.pool_app", *words, env=variables, folder=folder, constants=constants
    ) as worker:
        yield worker


def pool_calls(url: str) -> Iterator[Calls]:
    """For a fixture: closed at its end."""
    calls = Calls(url, QUEUE)
    yield calls
    calls.close()
