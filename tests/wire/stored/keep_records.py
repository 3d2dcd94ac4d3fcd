"""Writes fixtures of the records that today's version has in Redis: `PYTHONPATH=tests python -m wire.stored.keep_records NAME`.

`NAME` begins with the version of messages, and is one that is not there yet: what older processes have left stays.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from support.servers import redis_snapshot
from toolfleet_cli.local.redis_server import redis_server
from wire.keep import MODES
from wire.stored.records_program import write_records
from wire.stored.samples.forms import FIXTURES

RECORDS = FIXTURES / "records"


def keep_records(name: str) -> None:
    """Have a Redis filled in each mode, and write down what is in it."""
    RECORDS.mkdir(exist_ok=True)
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as url:
            asyncio.run(write_records(url, mode))
            (RECORDS / f"{name}-{mode}.json").write_text(redis_snapshot.take(url))


if __name__ == "__main__":
    keep_records(sys.argv[1])
