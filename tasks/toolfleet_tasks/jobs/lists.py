"""Lists the ids of jobs, of a user, of a workflow or of all, in the order in which they are shown."""

from collections.abc import Iterable
from typing import Any

from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages.ids import workflow_mark
from toolfleet_tasks.redis.connection import PipelinedConnection

_ASKED_AT_ONCE = 500  # records, for one field


async def of_user(
    connection: PipelinedConnection,
    keys: Keys,
    user_id: str | None,
    *,
    ended: bool,
    workflow_id: str | None,
    limit: int,
) -> list[str]:
    """At most `limit` of the user's jobs, the newest first."""
    scores: dict[str, float] = {}
    for name in (keys.jobs_of(user_id), keys.jobs_ended_of(user_id))[: 1 + ended]:
        scores |= scored(await connection.execute("ZREVRANGE", name, 0, _last(limit, workflow_id), "WITHSCORES"))
    ids = await _of_workflow(connection, keys, scores, workflow_id)
    return sorted(ids, key=lambda job_id: -scores[job_id])[:limit]


async def of_all(
    connection: PipelinedConnection, keys: Keys, *, ended: bool, workflow_id: str | None, limit: int
) -> list[str]:
    """At most `limit` jobs of all users: those that are due next first, then, with `ended`, the latest that have ended."""
    ids, last = list[str](), _last(limit, workflow_id)
    for command, name in (("ZRANGE", keys.jobs_due), ("ZREVRANGE", keys.jobs_ended))[: 1 + ended]:
        found = [one.decode() for one in await connection.execute(command, name, 0, last)]
        ids += await _of_workflow(connection, keys, found, workflow_id)
    return list(dict.fromkeys(ids))[:limit]


def scored(answer: list[Any]) -> dict[str, float]:
    """Members and scores, as RESP3 pairs them or RESP2 lists them."""
    if answer and isinstance(answer[0], list):
        return {member.decode(): float(score) for member, score in answer}
    return {answer[i].decode(): float(answer[i + 1]) for i in range(0, len(answer), 2)}


def _last(limit: int, workflow_id: str | None) -> int:
    """The index of the last that is asked for: of a workflow nobody knows where they are."""
    return limit - 1 if workflow_id is None else -1


async def _of_workflow(
    connection: PipelinedConnection, keys: Keys, ids: Iterable[str], workflow_id: str | None
) -> list[str]:
    """Those of them that are of this workflow, of whichever user; `None`: all."""
    wanted, found = list(ids), list[str]()
    if workflow_id is None:
        return wanted
    mark = workflow_mark(workflow_id).encode()
    for first in range(0, len(wanted), _ASKED_AT_ONCE):
        batch = wanted[first : first + _ASKED_AT_ONCE]
        asked = [connection.execute("HGET", keys.job(one), "workflow") for one in batch]
        found += [one for one, answer in zip(batch, asked, strict=True) if await answer == mark]
    return found
