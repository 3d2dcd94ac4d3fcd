"""A fleet that has something to show on each page of the console: a tool that people approve, hostile names, dead letters."""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from support.fleet import TestBed
from support.module_server import serve
from support.owls import echo, make_module
from support.published_call import published
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.contracts.calls import DeadAttempt
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.contents import dead_letter

HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>"
"""What must be text on each page."""

_AGENTS = {"production": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.feed"], "quorum": 1}]}}


@contextmanager
def console_bed(folder: Path) -> Generator[TestBed]:
    """The owls, one of which is fed only with an approval."""
    module = make_module()
    parameters = [
        {"name": "n", "type": "integer", "description": HOSTILE},
        {"name": "note", "type": "string", "description": "", "required": False},
        {"name": "pin", "type": "string", "description": "", "required": False, "sensitive": True},
    ]
    module.add("feed", echo, effect="once", parameters=parameters, description=f"Feeds an owl. {HOSTILE}")
    more: dict[str, object] = {"agents": _AGENTS, "default_agent": "production", "jobs_interval_seconds": 1}
    with serve(module) as served, redis_server(folder / "redis") as url:
        (folder / "logs").mkdir()
        yield TestBed(url, (served,), folder / "logs", more)


def bury(
    bed: TestBed, call_ids: Iterable[str], *, tool: str = "owls.echo", reason: str = "Nobody saw its end."
) -> None:
    """Keep dead letters, as the ledger does."""
    caller = Caller(user_id="ada", permission="user", allowed_modules="*")
    with Redis.from_url(bed.redis_url) as redis:
        for number, call_id in enumerate(call_ids):
            fields: dict[str, Any] = {"arguments": {"text": HOSTILE}, "caller": caller, "user_id": "ada"}
            call = published(tool, call_id=call_id, **fields)
            result = ToolResult.failed(tool, "outcome_unknown", reason, effect_state="unknown")
            died_at = time.time() - 60 + number / 1000
            attempts = (DeadAttempt(attempt=1, outcome="never closed"),)
            redis.hset(Keys().dead, call_id, dead_letter(call, result, attempts=attempts, died_at=died_at))
            redis.zadd(Keys().dead_order, {call_id: died_at * 1000})
