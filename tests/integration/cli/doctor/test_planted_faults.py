"""The doctor finds what is planted in a real Redis, in the settings and in the environment."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from support.waiting import wait_until_sync
from toolfleet import Caller, Conversation, HookSpec, ToolFleet
from toolfleet_cli.doctor.check import Diagnosis, Examine, Patient, Severity
from toolfleet_cli.doctor.queues import check_manifests, check_queues
from toolfleet_cli.doctor.servers import check_keys, check_redis, check_rights
from toolfleet_cli.doctor.settings import check_secrets, check_settings
from toolfleet_cli.doctor.workers import check_clocks, check_leases, check_versions
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import Keys, canary_key
from toolfleet_registry.settings import Settings

KEYS = Keys()
_LONG = "a long secret of more than 32 letters"


@pytest.fixture(scope="module")
def process_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def server(process_url: str) -> Iterator[Redis]:
    """A Redis whose set-up may be spoilt: empty, and as `toolfleet up` sets one up."""
    with Redis.from_url(process_url, decode_responses=True) as redis:
        for name, value in _AS_IT_SHOULD_BE.items():
            redis.config_set(name, value)
        redis.replicaof("NO", "ONE")
        redis.flushall()
        yield redis


_AS_IT_SHOULD_BE = {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}


def settings_at(redis: Redis, **more: Any) -> Settings:
    options = redis.connection_pool.connection_kwargs
    url = f"redis://{options['host']}:{options['port']}/0"
    return Settings.model_validate({"redis_url": url, **more})


def found_by(check: Examine, settings: Settings, **patient: Any) -> list[Diagnosis]:
    """What it finds, notes left out."""
    given: dict[str, Any] = {"environ": {}, **patient}
    result = asyncio.run(check(Patient(settings, **given)))
    for finding in result.findings:
        assert all([finding.what, finding.why, finding.fix]), finding
    return [finding for finding in result.findings if finding.weighs]


def evict(redis: Redis) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")


def forget(redis: Redis) -> None:
    redis.config_set("appendonly", "no")


def write_late(redis: Redis) -> None:
    redis.config_set("appendfsync", "everysec")


def fill(redis: Redis) -> None:
    empty, key = redis.info("memory")["used_memory"], "toolfleet:audit"
    redis.set(key, "x" * 20 * 2**20)
    full = empty + redis.memory_usage(key)  # an allocator may give more than was asked for
    wait_until_sync(lambda: redis.info("memory")["used_memory"] < full + 2**20, "Redis has freed its buffers")
    redis.config_set("maxmemory", int(full * 1.1))


def follow(redis: Redis) -> None:
    redis.replicaof("127.0.0.1", "1")


@pytest.mark.parametrize(
    ("plant", "severity", "word"),
    [
        (evict, Severity.ERROR, "maxmemory-policy allkeys-lru"),
        (forget, Severity.WARNING, "append-only file"),
        (write_late, Severity.WARNING, "appendfsync everysec"),
        (fill, Severity.WARNING, "of the memory"),
        (follow, Severity.ERROR, "replica"),
    ],
)
def test_a_redis_that_would_lose_something_is_found(
    server: Redis, plant: Callable[[Redis], None], severity: Severity, word: str
) -> None:
    """Before it does; one that is set up as the documents say has nothing."""
    settings = settings_at(server)

    assert found_by(check_redis, settings) == []
    plant(server)
    assert [(one.severity, word in one.what) for one in found_by(check_redis, settings) if word in one.what] == [
        (severity, True)
    ]


def test_a_user_who_may_too_little_is_found(server: Redis) -> None:
    """By trying what the fleet does; the user of the documents may all of it."""
    common: dict[str, Any] = {"enabled": True, "passwords": ["+long enough, and of many letters"], "reset": True}
    allowed = "+@read +@write +@connection +@pubsub +@transaction +@scripting +time +info".split()
    server.acl_setuser(
        "fleet", keys=["*"], channels=["*"], commands=["-@all", *allowed[:-1], "-@dangerous", "+info"], **common
    )
    server.acl_setuser(
        "reader", keys=["*"], channels=["*"], commands=["-@all", "+@read", "+@connection", "+info"], **common
    )
    port = server.connection_pool.connection_kwargs["port"]
    url = "redis://{}:long%20enough%2C%20and%20of%20many%20letters@127.0.0.1:{}/0"

    assert found_by(check_rights, Settings(redis_url=url.format("fleet", port))) == []
    (finding,) = found_by(check_rights, Settings(redis_url=url.format("reader", port)))
    assert "EVAL" in finding.what
    assert "+@scripting" in finding.fix


def test_keys_that_never_expire_are_found(server: Redis) -> None:
    """Of those that should; what lasts by its rule does not count, and foreign keys are a note."""
    server.set(canary_key(KEYS, "0" * 32), 1)
    server.set(KEYS.data_id, "x")
    server.set("somebody:else", 1)
    (finding,) = found_by(check_keys, settings_at(server))

    assert finding.what.startswith("1 keys like toolfleet:canary:")


def test_workers_with_another_lease_are_found(server: Redis) -> None:
    """Of two kinds at once, and of another kind than these settings."""
    now = server.time()[0]
    server.zadd(KEYS.modes, {"fast/60s vm:1": now})
    assert found_by(check_leases, settings_at(server)) == []

    (other,) = found_by(check_leases, settings_at(server, visibility_timeout=90))
    assert other.severity is Severity.WARNING
    server.zadd(KEYS.modes, {"stock/7200s vm:2": now})
    (mixed,) = found_by(check_leases, settings_at(server))
    assert (mixed.severity, "vm:2" in mixed.what) == (Severity.ERROR, True)


def test_a_drain_that_is_shorter_than_calls_is_found(server: Redis) -> None:
    """Calls would be interrupted by each restart."""
    (finding,) = found_by(check_leases, settings_at(server, drain_seconds=30))

    assert ("30 s" in finding.what, finding.fix[:34]) == (True, "export TOOLFLEET_DRAIN_SECONDS=130")


@pytest.mark.parametrize(
    ("lane", "notes", "said"),
    [
        ("fast", ["10 vm:1 v3", "10 vm:2 v2"], "version 2: vm:2; version 3: vm:1"),
        ("slow", ["10 vm:1"], "version 1"),
    ],
    ids=["mixed", "all of them"],
)
def test_older_workers_are_found(server: Redis, lane: str, notes: list[str], said: str) -> None:
    server.zadd(KEYS.slots(lane), dict.fromkeys(notes, server.time()[0]))
    (finding,) = found_by(check_versions, settings_at(server))

    assert said in finding.what


def test_a_queue_without_a_worker_is_found(server: Redis) -> None:
    """With the command that starts one of its lane."""
    settings = settings_at(
        server, module_services={"owls": "http://127.0.0.1:1", "larks": "http://127.0.0.1:1"}, slow_modules=["larks"]
    )
    server.lpush("tools.larks", "x")
    fixes = [(one.fix, one.severity) for one in found_by(check_queues, settings)]

    assert fixes.count(("toolfleet worker --lane slow", Severity.ERROR)) == 2
    assert fixes.count(("toolfleet worker --lane fast", Severity.ERROR)) == 2


def test_a_paused_queue_is_found(server: Redis) -> None:
    """Somebody may have forgotten it: also one whose module is gone. That its calls wait is no trouble of its own."""
    settings = settings_at(server, module_services={"owls": "http://127.0.0.1:1"})
    for name, state in (("owls", "paused"), ("gone", "draining"), ("lane:slow", "paused")):
        server.hset("toolfleet:queue-states", name, f'{{"state":"{state}","since":1.0}}')
    server.lpush("tools.owls", "x")
    found = [one for one in found_by(check_queues, settings) if "toolfleet queues resume" in one.fix]

    assert [one.fix.split(";")[0].split()[-1] for one in found] == ["gone", "lane:slow", "owls"]
    assert {one.severity for one in found} == {Severity.WARNING}
    assert "whose module is not there" in found[0].what
    assert "wait in tools.owls" not in str(found_by(check_queues, settings))


def test_a_job_whose_hook_takes_another_jobs_request_is_found(server: Redis) -> None:
    """By its id; those that are over, and those whose requests must name them, are no finding."""
    settings = settings_at(server)

    async def made() -> list[str]:
        caller, where = Caller(user_id="ada"), Conversation(conversation_id="nest")
        plain = HookSpec(secrets=HookSpec.new().secrets)
        async with ToolFleet(settings=settings) as fleet:
            jobs = [
                await fleet.jobs.start(hook=hook, caller=caller, conversation=where)
                for hook in (plain, plain, HookSpec.new())
            ]
            await fleet.jobs.cancel(jobs[0].job_id, caller)
        return [job.job_id for job in jobs]

    ended, found, named = asyncio.run(made())
    (finding,) = [one for one in found_by(check_queues, settings) if "requires_job_id" in one.fix]

    assert finding.severity == Severity.WARNING
    assert [job_id in finding.what for job_id in (ended, found, named)] == [False, True, False]


def test_a_lane_that_scales_from_zero_needs_no_worker_but_a_module_its_manifest(server: Redis) -> None:
    """Such a lane starts a worker when a call comes; without a manifest agents see none of a module's tools."""
    module = {"module_services": {"larks": "http://127.0.0.1:1"}, "slow_modules": ["larks"]}
    settings = settings_at(server, **module, scale_from_zero_lanes=["slow"])
    (finding,) = found_by(check_manifests, settings)

    assert [one for one in found_by(check_queues, settings) if "larks" in one.what] == []
    assert "larks" in finding.what


@pytest.mark.parametrize(
    ("fields", "severity", "said"),
    [
        ({"half_at": -1, "let_in_at": -1, "tokens": 4, "failures": 20}, Severity.NOTE, "is recovering: it answers"),
        ({"open_until": 60_000, "failures": 0, "why": "refused"}, Severity.ERROR, "is left alone: Connection refused."),
        ({"open_until": 60_000, "failures": 0, "why": "silent"}, Severity.ERROR, "it does not accept connections."),
        ({"open_until": 60_000, "failures": 20}, Severity.ERROR, "is left alone: 20 calls in a row without an answer."),
        ({"failures": 1}, Severity.WARNING, "is failing: 1 call in a row without an answer."),
    ],
)
def test_a_module_that_calls_have_met_is_told_as_it_is(
    server: Redis, fields: dict[str, Any], severity: Severity, said: str
) -> None:
    """One that is recovering is no error, nor a warning."""
    now, breaker = int(server.time()[0]) * 1000, KEYS.breaker("owls")
    times = {"open_until": -1, **fields} if "half_at" in fields else fields
    shown = {
        name: now + value if name in {"open_until", "half_at", "let_in_at"} else value for name, value in times.items()
    }
    shown["pause"] = 60_000
    server.hset(breaker, mapping=dict[Any, Any](shown))
    settings = settings_at(server, module_services={"owls": "http://127.0.0.1:1"})
    (finding,) = asyncio.run(check_manifests(Patient(settings, environ={}))).findings

    assert finding.severity is severity
    assert finding.weighs is (severity is not Severity.NOTE)
    assert said in finding.what


def test_a_worker_whose_clock_is_wrong_is_found(server: Redis) -> None:
    """By what it says of itself; far off, it takes no calls."""
    server.zadd(KEYS.clock_notes, {"vm:1 0": 1, "vm:2 -40": 2, "vm:3 900": 3})
    found = {one.what.split()[4]: one.severity for one in found_by(check_clocks, settings_at(server))}

    assert found == {"vm:2": Severity.WARNING, "vm:3": Severity.ERROR}


def test_a_misspelt_variable_and_an_option_without_effect_are_found() -> None:
    """With the name that was probably meant, or what is not set; an option only if somebody has set it."""
    settings, url = Settings(redis_url="redis://127.0.0.1:1", local_threads=5), "redis://127.0.0.1:1"
    assert found_by(check_settings, settings) == []
    environ = {"TOOLFLEET_REDIS_ULR": url, "TOOLFLEET_REDIS_URL": url, "OTHER": "1"}
    (misspelt,) = found_by(check_settings, settings, environ=environ)
    (without,) = found_by(check_settings, settings, environ={"TOOLFLEET_LOCAL_THREADS": "5"})

    assert misspelt.what.startswith("TOOLFLEET_REDIS_ULR")
    assert "TOOLFLEET_REDIS_URL" in misspelt.fix
    (gone,) = found_by(check_settings, settings, environ={"TOOLFLEET_GATEWAY_STREAMS": "5"})
    assert "half of TOOLFLEET_GATEWAY_CONNECTIONS" in gone.what
    assert "TOOLFLEET_LOCAL_TOOLS is not set" in without.what


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"gateway_key": "hush"}, "short (4 characters)"),
        ({"redis_url": "redis://:changeme@127.0.0.1:1"}, "well-known default"),
        ({"redis_url": "redis://redis.example:6379"}, "no password"),
        ({"gateway_key": "a" * 40}, "few different"),
        ({"signing_key": _LONG, "gateway_key": _LONG}, "same"),
    ],
)
def test_a_weak_secret_is_found(more: dict[str, Any], word: str) -> None:
    (finding,) = found_by(check_secrets, Settings.model_validate({"redis_url": "redis://127.0.0.1:1", **more}))

    assert word in finding.what
    for secret in ("hush", "changeme", "a" * 40, "a long secret"):
        assert secret not in f"{finding.what} {finding.why} {finding.fix}"
