"""What calls were asked and answered can be seen for an hour: by admins, and by the user that a call was for."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, Request, serve
from support.owls import make_module
from support.waiting import wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, CallHandle, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.redis.keys import Keys

KEYS = Keys()
PATH = "/operations/calls"
USERS = itertools.count()


async def _login(request: Request) -> dict[str, Any]:
    return {"success": True, "result": f"{request['arguments']['password']} is right"}


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = make_module()
    module.add("login", _login, parameters=[{"name": "password", "type": "string", "sensitive": True}])
    with serve(module) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with own_bed(owls, tmp_path_factory.mktemp("fleet"), call_contents="all", stored_bytes_per_caller=100_000) as bed:
        yield bed


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway(bed) as gateway:
        yield gateway


@pytest.fixture
async def redis(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(bed.redis_url, decode_responses=True) as client:
        yield client


async def called(bed: TestBed, tool: str, arguments: Any, *, user: str | None = "bob", **options: Any) -> ToolResult:
    caller = Caller(user_id=user, permission="owner", allowed_modules="*")
    async with ToolFleet(settings=bed.settings) as fleet:
        return await fleet.call(ToolCall(tool_name=f"owls.{tool}", arguments=arguments), caller, **options)


async def contents(gateway: KeyedGateway, who: str, call_id: str) -> Any:
    """What a reader is shown of a call, once it is in the index."""
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = [await gateway.get(who, f"{PATH}/{call_id}")]
        return bool(found[0].status_code != 404)

    await wait_until_answered(is_there, "the call is known")
    return found[0].json().get("contents") if found[0].status_code == 200 else found[0].json()["type"]


CASES: dict[str, tuple[str, Any, dict[str, Any], Any, Any, str | None]] = {
    "a success": ("echo", {"q": "hoo"}, {}, {"q": "hoo"}, {"q": "hoo"}, None),
    "a failure": ("fail", {"q": "hoo"}, {}, {"q": "hoo"}, None, "I cannot."),
    "sensitive": ("login", {"password": "hunter22"}, {}, {"password": "[redacted]"}, "[redacted] is right", None),
    "refused by its agent": (
        "login",
        {"pasword": "hunter22"},
        {},
        {"pasword": "[redacted]"},
        None,
        "arguments.password is missing.",
    ),
    "timed out": ("brief_nap", {"seconds": 20}, {}, {"seconds": 20}, None, "Tool execution timed out (0.3s)."),
}


@pytest.mark.parametrize("case", CASES)
async def test_an_admin_sees_what_a_call_was_asked_and_answered(bed: TestBed, gateway: KeyedGateway, case: str) -> None:
    """However it ended, without what is sensitive; whatever its own caller is shown."""
    tool, arguments, options, asked, answered, error = CASES[case]
    result = await called(bed, tool, arguments, **options)
    kept = await contents(gateway, "ada", result.audit.call_id)

    assert kept, result
    assert (kept["arguments"], kept.get("result")) == (asked, answered)
    assert kept.get("error", "") == (error or "")
    assert "hunter22" not in str(kept)


async def test_what_its_agent_has_ended_is_shown_too(bed: TestBed, gateway: KeyedGateway) -> None:
    """A call that its caller has cancelled while it ran."""
    async with ToolFleet(settings=bed.settings) as fleet:
        caller = Caller(user_id="bob", permission="owner", allowed_modules="*")
        handle = await fleet.submit(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 20}), caller)
        await wait_until_answered(lambda: runs(handle), "it runs")
        await handle.cancel()
        result = await handle.result()
    kept = await contents(gateway, "ada", handle.id)

    assert (kept["arguments"], kept["error"]) == ({"seconds": 20}, result.error)


async def runs(handle: CallHandle) -> bool:
    return await handle.status() == "running"


@pytest.mark.parametrize(
    ("who", "shown"),
    [
        ("ada", {"q": "hoo"}),
        ("bob", {"q": "hoo"}),
        ("olga", None),
        ("vera", None),
        ("eve", "urn:toolfleet:problem:role-needed"),
    ],
)
async def test_who_is_shown_it(bed: TestBed, gateway: KeyedGateway, who: str, shown: Any) -> None:
    """Admins, and the call's own user, also one without a role; an operator and a viewer see the rest of the story."""
    result = await called(bed, "echo", {"q": "hoo"})
    kept = await contents(gateway, who, result.audit.call_id)
    assert (kept["arguments"] if isinstance(kept, dict) else kept) == shown


@pytest.mark.parametrize(
    ("modules", "status"), [(frozenset({"owls"}), 200), ("*", 200), (frozenset({"mail"}), 403), (frozenset[str](), 403)]
)
async def test_a_key_that_names_other_modules_is_not_shown_it(
    bed: TestBed, gateway: KeyedGateway, modules: Any, status: int
) -> None:
    """A narrow key of the call's user, or one that acts for others in a user's name, sees calls of its own modules."""
    result = await called(bed, "echo", {"q": "hoo"})
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        made = keys.create(KeyDraft(user_id="bob", permission="user", allowed_modules=modules), COMMAND_LINE)
        try:
            narrow = KeyedGateway(gateway.gateway, {**gateway.keys, "narrow": made})
            await contents(gateway, "ada", result.audit.call_id)
            answer = await narrow.get("narrow", f"{PATH}/{result.audit.call_id}")
        finally:
            keys.revoke([made.key.id])
    assert answer.status_code == status
    assert ("hoo" in answer.text) == (status == 200)


async def test_it_lasts_an_hour_and_counts_in_the_share_of_its_user(
    bed: TestBed, redis: Redis, worker: WorkerProcess
) -> None:
    """Up to a half of the share: what is kept alone never has a call refused."""
    user = f"user-{next(USERS)}"
    results = [await called(bed, "echo", {"text": "x" * 9_000}, user=user) for _ in range(6)]
    keys = [KEYS.contents(result.audit.call_id) for result in results]
    there = [await redis.exists(key) for key in keys]

    assert all(result.success for result in results)
    assert there == [1, 1, 0, 0, 0, 0]
    assert 3_500 < await redis.ttl(keys[0]) <= 3_600
    assert 36_000 < int(await redis.get(f"{KEYS.stored(user)}:bytes") or 0) < 50_000


async def test_it_is_removed_with_the_data_of_its_user(bed: TestBed, gateway: KeyedGateway, redis: Redis) -> None:
    """By an admin, with a line in the audit; what is another user's stays, and so does the call's line."""
    theirs, others = [await called(bed, "echo", {}, user=user) for user in ("uma", "otto")]
    denied = await gateway.delete("olga", f"{PATH}/contents?user_id=uma")
    done = await gateway.delete("ada", f"{PATH}/contents?user_id=uma")
    again = await gateway.delete("ada", f"{PATH}/contents?user_id=uma")
    audit = (await gateway.get("ada", "/operations/audit?changes=true&limit=2")).json()["lines"]

    assert (denied.status_code, done.json(), again.json()) == (403, {"calls": 1}, {"calls": 0})
    assert [await redis.exists(KEYS.contents(each.audit.call_id)) for each in (theirs, others)] == [0, 1]
    assert await redis.exists(KEYS.stored("uma"), f"{KEYS.stored('uma')}:bytes") == 0
    assert [(line["change"], line["tool"], line["calls"]) for line in audit] == [
        ("contents_forgotten", "uma", 0),
        ("contents_forgotten", "uma", 1),
    ]


@pytest.mark.parametrize(("mode", "more"), [("off", 0), ("failures", 0), ("all", 1)])
async def test_it_costs_a_call_one_command_at_most(owls: ModuleServer, tmp_path: Path, mode: str, more: int) -> None:
    """In the write in which its result leaves; none where nothing is kept."""
    with own_bed(owls, tmp_path, call_contents="all") as bed, bed.worker(call_contents=mode):  # the fleet's one worker
        await called(bed, "echo", {"q": "first"})  # has Redis learn the scripts
        async with Redis.from_url(bed.redis_url, decode_responses=True) as redis, redis.monitor() as monitor:
            result = await called(bed, "echo", {"q": "hoo"})
            await redis.echo("by now")
            seen = list[Any]()
            while "by now" not in (each := await monitor.next_command())["command"]:
                seen.append(each)
    sent = [each for each in seen if each["client_type"] == "tcp" and result.audit.call_id in each["command"]]
    kept = [each for each in sent if KEYS.contents(result.audit.call_id) in each["command"]]
    finished = [each for each in sent if KEYS.audit in each["command"]]

    assert (len(kept), len(finished)) == (more, 1)
    assert {each["client_port"] for each in kept} <= {each["client_port"] for each in finished}
