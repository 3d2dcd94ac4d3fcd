"""The manifest cache, on a real Redis."""

import json
import socket
from typing import Any

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import manifest_of
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests import manifest_cache
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import async_client

KEY = Keys().module_manifest("git")


def manifest(module: str = "git", *methods: str, **more: Any) -> ModuleManifest:
    return ModuleManifest.model_validate(manifest_of(module, *(methods or ("push",)), **more))


@pytest.fixture
def cache(redis: Redis) -> ManifestCache:
    return ManifestCache(redis, ttl_seconds=100)


async def test_a_saved_manifest_is_loaded_with_its_age(cache: ManifestCache) -> None:
    """Saving says when the look was, and loading brings it back."""
    saved = await cache.save(manifest())
    loaded = await cache.load(["git", "mail"])
    assert loaded == {"git": saved}
    assert saved.manifest == manifest()
    assert saved.age_seconds is not None
    assert 0 <= saved.age_seconds < 60


async def test_many_modules_are_loaded_in_one_round_trip(cache: ManifestCache, redis: Redis) -> None:
    """However many there are, Redis gets one command."""
    names = [f"m{n}" for n in range(20)]
    for name in names:
        await cache.save(manifest(name))
    await redis.config_resetstat()
    assert list(await cache.load(names)) == names
    commands = await redis.info("commandstats")
    assert commands["cmdstat_mget"]["calls"] == 1
    assert "cmdstat_get" not in commands


async def test_the_value_is_a_manifest_that_older_readers_understand(cache: ManifestCache, redis: Redis) -> None:
    """They parse the JSON into their own model, which ignores our one field more."""

    class OldTool(BaseModel):
        name: str
        description: str
        parameters: list[dict[str, Any]]
        required_permission: str = "guest"

    class OldManifest(BaseModel):
        module_name: str
        description: str
        tools: list[OldTool]

    await cache.save(manifest("git", "push", "pull"))
    document = json.loads(await redis.get(KEY) or "")
    old = OldManifest(**document)
    assert [tool.name for tool in old.tools] == ["git.push", "git.pull"]
    assert set(document) == {"module_name", "description", "tools", "discovered_at"}
    assert 98 <= await redis.ttl(KEY) <= 100  # a module that nobody looks at any more is forgotten
    assert ModuleManifest(**document) == manifest("git", "push", "pull")


async def test_renewing_changes_the_ttl_only(cache: ManifestCache, redis: Redis) -> None:
    """The manifest keeps its text, and with it its age."""
    assert not await cache.renew("git")  # there is no last good one yet
    await cache.save(manifest())
    before = await redis.get(KEY)
    await redis.expire(KEY, 5)
    assert await cache.renew("git")
    assert await redis.ttl(KEY) > 90
    assert await redis.get(KEY) == before


async def test_a_change_is_announced_and_a_repetition_is_not(cache: ManifestCache, redis: Redis) -> None:
    """The channel carries the module's name, once for each new content."""
    heard = list[str]()
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(Keys().manifests_changed)
        for found in (manifest(), manifest(), manifest("mail"), manifest("git", "push", "pull"), manifest()):
            await cache.save(found)
        await cache.renew("git")
        await redis.publish(Keys().manifests_changed, "end")
        while "end" not in heard:
            heard.append((await anext(each async for each in pubsub.listen() if each["type"] == "message"))["data"])
    assert heard == ["git", "mail", "git", "git", "end"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no json",
        b"[]",
        b"\xff\xfe\x00 not even text",
        b'{"module_name": "git"}',
        json.dumps(manifest_of("mail", "send")).encode(),  # under the wrong key
        json.dumps({**manifest_of("mail", "send"), "module_name": "git"}).encode(),  # another's tool
    ],
)
@pytest.mark.parametrize("decodes", [True, False])
async def test_an_unreadable_entry_is_skipped_with_a_warning(redis_url: str, value: bytes, *, decodes: bool) -> None:
    """It costs its own module only, whether the client decodes answers or not; the next good look replaces it."""
    async with Redis.from_url(redis_url, decode_responses=decodes) as redis:
        cache = ManifestCache(redis, ttl_seconds=100)
        await redis.set(KEY, value, ex=100)
        await cache.save(manifest("mail"))
        with capture_logs() as logs:
            assert list(await cache.load(["git", "mail"])) == ["mail"]
        assert [(entry["event"], entry["module"]) for entry in logs] == [("manifest_cache_unreadable", "git")]
        await cache.save(manifest())
        assert list(await cache.load(["git"])) == ["git"]


@pytest.mark.parametrize(
    ("at", "age"),
    [
        ({}, None),
        *(({"discovered_at": odd}, None) for odd in ("yesterday", None, True, dict[str, int](), [1])),
        ({"discovered_at": 9e9}, 0),
    ],
)
async def test_an_age_is_known_or_not(cache: ManifestCache, redis: Redis, at: Any, age: float | None) -> None:
    """Not of an older writer's manifest, which counts all the same; one of a clock that is ahead of ours has just come."""
    await redis.set(KEY, json.dumps({**manifest_of("git", "push"), **at}), ex=100)
    loaded = (await cache.load(["git"]))["git"]
    assert (loaded.manifest, loaded.age_seconds) == (manifest(), age)


async def test_a_redis_that_is_not_there_is_named_without_its_password() -> None:
    """`FleetUnavailable` says where it was looked for, whatever was to be done."""
    async with Redis.from_url("redis://me:s3cret@127.0.0.1:1/0") as redis:
        cache = ManifestCache(redis, ttl_seconds=100)
        for work in (cache.save(manifest()), cache.renew("git"), cache.load(["git"])):
            with pytest.raises(FleetUnavailable, match=r"Redis at 127\.0\.0\.1:1 does not answer: ") as caught:
                await work
            assert "s3cret" not in str(caught.value)


async def test_sentinels_that_are_not_there_are_named_without_a_password() -> None:
    """With the master that they were asked for."""
    async with async_client("sentinel://me:s3cret@127.0.0.1:1,127.0.0.1:2", master="owl") as redis:
        with pytest.raises(FleetUnavailable, match=r"Redis at owl of 127\.0\.0\.1:1, 127\.0\.0\.1:2 ") as caught:
            await ManifestCache(redis, ttl_seconds=100).renew("git")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key_prefix", ["acme:"])
async def test_fleets_with_different_prefixes_do_not_meet(redis: Redis, key_prefix: str) -> None:
    """Neither finds the other's manifests, nor hears its news."""
    ours, theirs = (ManifestCache(redis, ttl_seconds=100, keys=Keys(prefix)) for prefix in (key_prefix, "else:"))
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(Keys(key_prefix).manifests_changed)
        await theirs.save(manifest())
        assert await ours.load(["git"]) == {}
        await ours.save(manifest("git", "push"))
        heard = await anext(each async for each in pubsub.listen() if each["type"] == "message")
    assert heard["channel"] == "acme:toolfleet:manifests-changed"
    assert {str(key)[:5] for key in await redis.keys()} == {"acme:", "else:"}
    await redis.delete(*await redis.keys("else:*"))  # the fixture would find them at fault


async def test_a_missing_socket_file_is_named() -> None:
    """A Redis behind a unix socket has a path for an address."""
    async with Redis.from_url("unix:///nowhere/redis.sock") as redis:
        with pytest.raises(FleetUnavailable, match=r"Redis at unix:/nowhere/redis\.sock "):
            await ManifestCache(redis, ttl_seconds=100).renew("git")


async def test_a_frozen_redis_does_not_hold_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and never answers; even a client without any timeout comes back."""
    monkeypatch.setattr(manifest_cache, "_PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        async with Redis(port=port, socket_timeout=None, socket_connect_timeout=None) as redis:
            with pytest.raises(FleetUnavailable, match=r"no answer within 0\.2 s"):
                await ManifestCache(redis, ttl_seconds=100).load(["git"])


async def test_a_redis_that_refuses_a_command_is_reported(cache: ManifestCache, redis: Redis) -> None:
    """A key of another type is not ours to repair."""
    await redis.lpush(KEY, "x")
    await redis.expire(KEY, 100)
    assert await cache.load(["git"]) == {}
    with pytest.raises(FleetUnavailable, match="WRONGTYPE"):
        await cache.save(manifest())
