"""Completes approvals, from any worker: denies those not decided in time, publishes approved calls.

At least once: the deciding process may have died before it did the step, and the whole fleet may have been down. Each
step may come twice.
"""

import asyncio

from redis.exceptions import ResponseError

from toolfleet_registry.errors import FleetError
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.service import ApprovalService
from toolfleet_tasks.redis.connection import RedisConnectionLost

_BATCH = 100
_AT_ONCE = 8  # each is read as a whole, and may have megabytes
_AGAIN_SECONDS = 15.0  # until a call that was published, and is not started, is published again
_MARGIN_SECONDS = 5.0  # after a deadline, for those who wait for the call to end it with what they know

log = get_logger(__name__)


async def settle_due(service: ApprovalService, *, seconds: float, lease_seconds: float) -> int:
    """Settle due approvals, for at most `seconds`. Returns how many were settled. Raises Redis's errors."""
    count, loop = 0, asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        due = await service.records.due(count=_BATCH, lease_seconds=lease_seconds)
        count += len(due)
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(_settle_one(service, each) for each in due[first : first + _AT_ONCE]))
        if len(due) < _BATCH:
            break
    return count


async def _settle_one(service: ApprovalService, approval_id: str) -> None:
    try:
        await _settle(service, approval_id)
    except (FleetError, RedisConnectionLost, ResponseError, TimeoutError) as exc:  # it is due again after its lease
        log.warning("approval_not_settled", approval_id=approval_id, error=str(exc) or repr(exc))


async def _settle(service: ApprovalService, approval_id: str) -> None:
    found = await service.records.read(approval_id)
    if found is None or found.place == "done":
        await service.records.settle(approval_id, found)
        return
    if found.state == "waiting":
        if await service.expire(found):
            found = await service.show(approval_id)
        else:  # by another clock it is not late, or it was decided just now
            await service.records.put_off(approval_id, max(found.request.expires_at, fleet_clock.now() + 1))
            return
    if found.state != "approved":
        await service.go_on(found)
        await service.records.settle(approval_id, found)
        return
    await _follow_up(service, found)


async def _follow_up(service: ApprovalService, found: StoredApproval) -> None:
    """Publish an approved call until it is started, and end it if it is still open at its deadline."""
    now, deadline = fleet_clock.now(), found.call.deadline_at
    if now > deadline + _MARGIN_SECONDS:
        await service.end_late(found)
        await service.records.settle(found.approval_id, found)
    elif found.place == "published":
        await service.go_on(found)
        await service.records.put_off(found.approval_id, min(now + _AGAIN_SECONDS, deadline + 2 * _MARGIN_SECONDS))
    else:
        await service.records.put_off(found.approval_id, deadline + 2 * _MARGIN_SECONDS)
