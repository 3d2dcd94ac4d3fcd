"""A process holds a call as long as the store says so."""

import math

import pytest

from support.waiting import wait_until
from toolfleet_modules.calls import idempotency as claims
from toolfleet_modules.calls.idempotency import LEASE_SECONDS, RunClaim
from toolfleet_registry.once.port import MemoryReplies, PatientStore
from toolfleet_registry.system import fleet_clock


async def test_a_claim_is_held_for_its_lease_and_ends_when_another_process_has_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is renewed until then; that it is lost is known at the next renewal, long before the lease would end."""
    monkeypatch.setattr(claims, "RENEW_SECONDS", 0.001)
    store = PatientStore(MemoryReplies(), seconds=5)
    ours, other = (RunClaim(store, "call-1", "f", is_repeatable=False) for _ in range(2))

    assert await ours.take(None, 1)
    taken_at = fleet_clock.suspend_aware()
    async with ours.kept():
        await wait_until(lambda: ours.live_until() > taken_at + LEASE_SECONDS, "it was renewed")
        assert await other.take(await store.get("call-1"), 2)
        await wait_until(lambda: ours.live_until() == -math.inf, "it is known to be lost")
    found = await store.get("call-1")

    assert found is not None
    assert (found.token, found.attempt) == (other.token, 2)
