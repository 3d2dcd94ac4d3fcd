"""Stored approvals: who finds which of them in lists, what these leave out, and how they count in their user's share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from toolfleet import Approver, Caller
from toolfleet_registry.contracts.calls import ApprovalRule
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.approvals.approvers import AskedApproval
from toolfleet_tasks.approvals.records import ApprovalChange, ApprovalRecords, ListedApproval, StoredApproval
from toolfleet_tasks.approvals.views import may_see
from toolfleet_tasks.redis_connection import PipelinedConnection

SHARE = 400_000
EVE = Approver("key k9", "eve", "user", key_id="k9")
SUMMARY_FIELDS = ("summary", "summarised", "words", "stored_key", "stored_member")


@pytest.fixture(params=["unsigned", "signed"])
def settings(redis_url: str, request: pytest.FixtureRequest) -> Settings:
    key = "a secret of more than thirty-two characters" if request.param == "signed" else None
    return Settings(redis_url=redis_url, signing_key=key, stored_bytes_per_caller=SHARE)


@pytest.fixture
def records(connection: PipelinedConnection, settings: Settings) -> ApprovalRecords:
    return ApprovalRecords(connection, settings)


def rule(**fields: Any) -> ApprovalRule:
    none: dict[str, Any] = {"permission": None, "users": frozenset(), "keys": frozenset()}
    return ApprovalRule(digest="2" * 64, quorum=1, expires_seconds=600.0, self_approval=False, **{**none, **fields})


async def ask(
    records: ApprovalRecords,
    call_id: str,
    *,
    user: str = "ada",
    text: str = "x",
    conversation: str | None = None,
    **rule_fields: Any,
) -> str | None:
    """Have a call wait; `None`, or why it does not."""
    caller = Caller(user_id=user, permission="user", allowed_modules="*")
    call = published("bank.pay", call_id=call_id, arguments={"text": text}, user_id=user, caller=caller, effect="once")
    number = int(call_id.rpartition("-")[2])
    request = AskedApproval(
        approval_id=call_id,
        tool_name=call.tool_name,
        tool_version=None,
        arguments=call.arguments,
        sensitive=(),
        caller=caller,
        user_id=user,
        rules=(rule(**(rule_fields or {"permission": "admin"})),),
        binding="3" * 64,
        requested_at=time.time(),
        expires_at=time.time() + 600 + number,
        conversation_id=conversation,
    )
    refusal = await records.request(call, request, intention=None)
    return None if refusal is None else refusal.kind


async def page(records: ApprovalRecords, viewer: Approver | None = None, **asked: Any) -> list[str]:
    usual: dict[str, Any] = {"settled": False, "limit": 50, "offset": 0}
    found = await records.page(
        **{**usual, **asked},
        viewer=viewer,
        keep=lambda each: viewer is None or may_see(each, viewer),
    )
    return [each.approval_id for each in found]


async def bytes_of(redis: Redis, settings: Settings, user: str = "ada") -> int:
    return int(await redis.get(settings.keys.stored(user) + ":bytes") or 0)


async def decide(records: ApprovalRecords, approval_id: str, state: Any, text: str | None = None) -> None:
    found = await stored(records, approval_id)
    changed: dict[str, Any] = {} if text is None else {"arguments": {"text": text}}
    request, call = found.request.model_copy(update=changed), found.call.model_copy(update=changed)
    assert await records.decide(found, ApprovalChange(state, request, call, found.votes, found.journal)) == "taken"


async def stored(records: ApprovalRecords, approval_id: str) -> StoredApproval:
    found = await records.read(approval_id)
    assert found is not None
    return found


async def listed(records: ApprovalRecords, approval_id: str) -> ListedApproval:
    found = await records.listed(approval_id)
    assert found is not None
    return found


VIEWERS: list[tuple[Approver | None, list[str]]] = [
    (None, ["a-0", "a-1", "a-2", "a-3", "a-4"]),
    (Approver("key k1", "ada", "guest"), ["a-0", "a-1", "a-2"]),
    (Approver("key k1", "bob", "admin"), ["a-0", "a-2"]),
    (Approver("key k1", "bob", "owner"), ["a-0", "a-2"]),
    (Approver("key k1", "carol", "user"), ["a-1", "a-2", "a-3"]),
    (Approver("key k2", None, "guest", key_id="k2"), ["a-4"]),
    (Approver("key k2", "eve", "user", key_id="k3"), ["a-3", "a-4"]),
    (Approver("key k3", None, "user", key_id="k3"), []),
    (Approver("command line", None, "guest"), []),
]


@pytest.mark.parametrize(("viewer", "seen"), VIEWERS)
async def test_a_list_has_what_its_viewer_may_see(
    records: ApprovalRecords, viewer: Approver | None, seen: list[str]
) -> None:
    """Those that they may decide, by level, user or key, and those that they have asked for; page by page as well."""
    await ask(records, "a-0", permission="admin", conversation="c-1")
    await ask(records, "a-1", users=frozenset({"carol"}))
    await ask(records, "a-2", permission="admin", users=frozenset({"carol"}), conversation="c-2")
    await ask(records, "a-3", user="eve", users=frozenset({"carol"}))
    await ask(records, "a-4", user="eve", keys=frozenset({"k2"}), conversation="c-1")

    assert await page(records, viewer) == seen
    assert [each for k in range(5) for each in await page(records, viewer, limit=1, offset=k)] == seen
    assert await page(records, viewer, conversation_id="c-1") == [each for each in seen if each in {"a-0", "a-4"}]


async def test_nothing_is_decided_after_an_approval_has_expired(
    records: ApprovalRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody has noted that yet; and none expires before its time."""
    await ask(records, "a-0")
    found = await stored(records, "a-0")

    async def answer(state: Any) -> str:
        return await records.decide(found, ApprovalChange(state, found.request, found.call, found.votes, found.journal))

    assert await answer("expired") == "waiting"
    monkeypatch.setattr(fleet_clock, "now", lambda: found.request.expires_at)
    assert [await answer(state) for state in ("waiting", "approved", "rejected")] == ["expired"] * 3
    assert (await stored(records, "a-0")).state == "waiting"
    assert await answer("expired") == "taken"


async def test_a_long_list_is_read_in_parts(records: ApprovalRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of Redis has few of them; none is missing, and none comes twice."""
    monkeypatch.setattr("toolfleet_tasks.approvals.records._MOST_READ", 7)
    monkeypatch.setattr("toolfleet_tasks.approvals.records._AT_ONCE", 3)
    for k in range(20):
        await ask(records, f"a-{k}", user="ada" if k % 2 else "eve")
    every = [f"a-{k}" for k in range(20)]

    assert await page(records) == every
    assert await page(records, EVE, offset=4) == every[8::2]
    assert await page(records, EVE, limit=3, offset=1) == every[2:8:2]
    for each in every:
        await records.settle(each)
    assert await page(records, settled=False) == []
    assert sorted(await page(records, settled=True, limit=15)) != sorted(every)
    assert sorted(await page(records, settled=True)) == sorted(every)


@pytest.mark.parametrize(("size", "is_left_out"), [(16_000, False), (17_000, True)])
async def test_lists_leave_large_arguments_out(records: ApprovalRecords, size: int, *, is_left_out: bool) -> None:
    """The approval itself has them until it is settled; small ones stay."""
    await ask(records, "a-0", text="x" * size)
    whole, in_list = await stored(records, "a-0"), await listed(records, "a-0")

    assert (whole.request.arguments, whole.arguments_left_out) == ({"text": "x" * size}, False)
    assert (in_list.request.arguments, in_list.arguments_left_out) == (
        {} if is_left_out else whole.request.arguments,
        is_left_out,
    )
    assert in_list.effect == "once"

    await decide(records, "a-0", "rejected")
    await records.settle("a-0", await stored(records, "a-0"))
    settled = await stored(records, "a-0")
    assert (settled.request.arguments, settled.call.arguments) == (in_list.request.arguments,) * 2
    assert settled.arguments_left_out == is_left_out
    assert (await listed(records, "a-0")).arguments_left_out == is_left_out


async def test_approvals_of_older_processes_are_listed(records: ApprovalRecords, redis: Redis) -> None:
    """They have no summary, or one from before a decision: it is made again. What cannot be read is left out."""
    for k in range(5):
        await ask(records, f"a-{k}", user="ada" if k else "eve")
    await redis.hdel(records.keys.approval("a-0"), *SUMMARY_FIELDS)
    await redis.hdel(records.keys.approval("a-1"), *SUMMARY_FIELDS)
    await redis.hset(records.keys.approval("a-1"), "call", "not a call")
    await redis.hdel(records.keys.approval("a-2"), *SUMMARY_FIELDS)
    await redis.hincrby(records.keys.approval("a-3"), "revision", 1)
    await redis.delete(records.keys.approval("a-4"))

    assert await page(records) == ["a-0", "a-2", "a-3"]
    assert await page(records, EVE) == ["a-0"]
    assert (await listed(records, "a-3")).revision == 2
    assert await redis.hget(records.keys.approval("a-3"), "summarised") == "2"
    assert await records.listed("a-1") is None
    assert await records.listed("a-4") is None


async def test_many_approvals_of_older_processes_are_listed(records: ApprovalRecords, redis: Redis) -> None:
    """Each answer of Redis names at most twenty of them, and the list is complete and in order all the same."""
    names = [f"a-{k}" for k in range(45)]
    for name in names:
        assert await ask(records, name, user=name) is None
        await redis.hdel(records.keys.approval(name), *SUMMARY_FIELDS)
    _, _, first = await records._listed(most=len(names), want=len(names))
    assert first == []
    assert sum([await redis.hexists(records.keys.approval(name), "summary") for name in names]) == 20
    assert await page(records, limit=len(names)) == names


async def test_a_summary_of_another_call_is_not_shown(records: ApprovalRecords, redis: Redis) -> None:
    """Where somebody has written to Redis: what a list shows of an approval is that approval's."""
    for k in range(2):
        await ask(records, f"a-{k}")
    other = await redis.hget(records.keys.approval("a-0"), "summary")
    await redis.hset(records.keys.approval("a-1"), "summary", other)

    assert await page(records) == ["a-0"]


@dataclass(frozen=True)
class End:
    """A way in which an approval ends, and whether it counts after that."""

    name: str
    end: Callable[[ApprovalRecords], Any]
    counts: bool


ENDS = [
    End("rejected", lambda records: decide(records, "a-0", "rejected"), counts=False),
    End("approved", lambda records: decide(records, "a-0", "approved"), counts=False),
    End("edited", lambda records: decide(records, "a-0", "waiting", "x" * 60_000), counts=True),
    End("settled", lambda records: records.settle("a-0"), counts=False),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda each: each.name)
async def test_what_waits_counts_in_its_users_share(
    records: ApprovalRecords, redis: Redis, settings: Settings, end: End
) -> None:
    """By all its bytes, until people have decided; an edited one by what it has then."""
    await ask(records, "a-0", text="x" * 100_000)
    before = await bytes_of(redis, settings)
    await end.end(records)
    after = await bytes_of(redis, settings)

    assert 200_000 < before < 210_000
    assert (120_000 < after < 130_000) if end.counts else after == 0
    assert await bytes_of(redis, settings, "eve") == 0


async def test_no_call_waits_where_its_users_share_is_full(
    records: ApprovalRecords, redis: Redis, settings: Settings
) -> None:
    """Others' calls do; what waits already stays, and a request that is sent again counts once."""
    for k in range(2):
        assert [await ask(records, f"a-{k}", text="x" * 100_000) for _ in range(2)] == [None, None]
    full = await bytes_of(redis, settings)

    assert SHARE < full < SHARE + 30_000
    assert await ask(records, "a-2") == "stored"
    assert await ask(records, "a-3", user="eve") is None
    assert await page(records) == ["a-0", "a-1", "a-3"]
    await decide(records, "a-0", "rejected")
    assert await ask(records, "a-2") is None


async def test_small_calls_that_wait_are_bounded_in_number(records: ApprovalRecords) -> None:
    """Each counts with 16 KiB at least."""
    asked = [await ask(records, f"a-{k}") for k in range(30)]

    assert asked == [None] * (SHARE // 16_384 + 1) + ["stored"] * (30 - SHARE // 16_384 - 1)
