"""Keeps large results as artifacts: the objects in a store, and in Redis whose they are, what they are, and until when.

An object is written before a record names it, and a record expires before its object is deleted. So a process that dies leaves an
artifact whole or none, and an object that no record names is swept.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.artifact_store import AT_ONCE, PATIENCE_SECONDS, ArtifactStore
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.artifacts import ARTIFACT_ID, ArtifactRecord, owner_for, owner_of
from toolfleet_registry.contracts.calls import ResultArtifact
from toolfleet_registry.contracts.names import ARTIFACTS
from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway, FleetError
from toolfleet_registry.functions.passed_methods import PASSED_METHODS, passing_method
from toolfleet_registry.previews import LargePart, is_large, large_parts
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.scripts import script

log = get_logger(__name__)

_PASSED_TOOLS = frozenset(map(passing_method, PASSED_METHODS))
_PROBE = "probe"  # the name of the object that the doctor writes, and that workers read

_RESERVE, _SAVE, _FORGET, _DUE = (script(f"artifacts/{name}") for name in ("reserve", "save", "forget", "due"))
_GRACE_SECONDS = 600  # for an object to be written
_LATER_NUMBERS = range(0, 4_000, 1_000)  # of a part, one after the other: others have used the first
_KEPT_SECONDS = 86_400.0  # a conversation may go on the next day
_END_SECONDS = 0.5  # of a call's time: for its end to be written once its artifacts are
_PLACE_SECONDS = 2.0
_REDIS_SECONDS = 5.0
_MOST_SWEPT = 100  # at a time
_LISTING_SECONDS = 86_400  # between two listings of the store, for what Redis has forgotten
_AGAIN_SECONDS = 3_600  # after a listing that has not worked, or an object that the store has refused to delete
_PROBE_BYTES = 32
_MARGIN_SECONDS = 3_600  # clocks of stores differ


@dataclass(frozen=True, slots=True)
class OpenedArtifact:
    """An artifact that its reader may read. `filtered`: all of it, as the reader's profile has it; `None`: as it is."""

    record: ArtifactRecord
    artifacts: "Artifacts"
    filtered: bytes | None = None

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.record.size if self.filtered is None else len(self.filtered)

    async def read(self, start: int, end: int) -> bytes:
        """Return bytes of it, from `start` to before `end`. Raises `ArtifactMissing` and `ArtifactStoreAway`."""
        if self.filtered is not None:
            return self.filtered[start:end]
        return await self.artifacts.read(self.record, start, end)


class _NotKept(FleetError):
    """An artifact cannot be kept."""


class Artifacts:
    """The artifacts of a fleet, for one process and one loop. Connects to nothing yet.

    Methods raise `FleetUnavailable` if Redis does not answer, and `ArtifactStoreAway`; those that need the store
    `SettingsError` where it cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._keys = settings, settings.keys
        self._keeping = asyncio.Semaphore(AT_ONCE)

    @cached_property
    def store(self) -> ArtifactStore:
        """The store, which a process that only asks whose an artifact is does without. Raises `SettingsError`."""
        return _store(self._settings, str(self._settings.artifact_store))

    @cached_property
    def _redis(self) -> Redis:
        return self._settings.redis_client(timeout_seconds=_REDIS_SECONDS)

    async def aclose(self) -> None:
        """Close the connections."""
        if "_redis" in self.__dict__:
            await self._redis.aclose()

    def within(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Bound the waits of a block, as `ArtifactStore.within`."""
        return self.store.within(seconds)

    async def keep(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        """Return the result with the handles of its large parts, once they are stored.

        Fails open: what cannot be kept stays in the result only, and the log says why. Not kept are sensitive results, those
        without an owner, and those that no model sees. No call waits for the store beyond its own deadline.
        """
        owner, from_bytes = owner_of(call), self._settings.artifact_from_bytes
        module, _, method = call.tool_name.partition(".")
        if owner is None or call.hides_results or module == ARTIFACTS or method in _PASSED_TOOLS:
            return result
        kept, seconds = list[ResultArtifact](), call.deadline_at - fleet_clock.now() - _END_SECONDS
        try:
            if not is_large(result, from_bytes=from_bytes):
                return result
            async with self.within(seconds), self._place():  # no copies outside of it
                for number, part in enumerate(large_parts(result, from_bytes=from_bytes)):
                    begin = f"{call.call_id}.{result.audit.attempts}"
                    kept.append(await self._keep(call, owner, begin, number, part))
        except Exception as exc:  # noqa: BLE001 - a success is worth more than its handle
            reason = str(exc) if isinstance(exc, FleetError) else type(exc).__name__
            log.warning("artifact_not_kept", call_id=call.call_id, tool=call.tool_name, reason=reason)
        return result.model_copy(update={"artifacts": tuple(kept)}) if kept else result

    async def find(self, artifact_id: str, owner: str | None) -> ArtifactRecord | None:
        """Return the record of an owner's artifact; `None` if there is none of this id, or it is another owner's."""
        if owner is None or not ARTIFACT_ID.fullmatch(artifact_id):
            return None
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            text = await self._redis.get(self._keys.artifact(artifact_id))
        found = None if text is None else _record(text)
        return found if found is not None and found.owner == _digest(owner) else None

    async def list(self, owner: str | None, *, limit: int) -> Sequence[ArtifactRecord]:
        """Return an owner's artifacts, those first that expire last."""
        if owner is None:
            return []
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            members: Any = await self._redis.zrevrange(self._keys.artifacts_of(owner), 0, limit - 1)
            ids = [member.decode().partition(" ")[0] for member in members]
            texts = await self._redis.mget([self._keys.artifact(each) for each in ids]) if ids else []
        return [_record(text) for text in texts if text is not None]

    async def read(self, record: ArtifactRecord, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an artifact, all by default. Raises `ArtifactMissing` if it is gone or was changed: of a part, its size shows that."""
        end = record.size if end is None else min(end, record.size)
        data = await self.store.get(record.id, start, end, size=record.size)
        is_whole = (start, end) == (0, record.size)
        if len(data) != max(end - start, 0) or (is_whole and await _sha256(data) != record.sha256):
            raise ArtifactMissing(record.id)
        return data

    async def forget(self, owner: str, ids: Sequence[str] = ()) -> int:
        """Delete an owner's artifacts of these ids; without any, all. Returns how many there were.

        No one can read them any more. Those of many, or all if the store is away, are left to the sweep.
        """
        names = {"stored": self._keys.artifacts_of(owner), "due": self._keys.artifacts_due}
        gone = await self._run(_FORGET.command(**names, record=self._keys.artifact(""), ids=ids))
        with contextlib.suppress(ArtifactStoreAway):
            async with self.within(PATIENCE_SECONDS):
                await self._delete([each.decode() for each in gone[:_MOST_SWEPT]])
        return len(gone)

    async def sweep(self) -> None:
        """Delete what no record names: what has expired, was deleted, or was never finished; and once a day what Redis has lost."""
        while due := await self._run(_DUE.command(due=self._keys.artifacts_due, most=_MOST_SWEPT)):
            await self._delete([each.decode() for each in due])
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            if not await self._redis.set(self._keys.artifacts_listed, 1, nx=True, ex=_AGAIN_SECONDS):
                return
        async for found in self.store.older_than(_KEPT_SECONDS + _MARGIN_SECONDS):
            old = [name for name in found if ARTIFACT_ID.fullmatch(name)]
            for at in range(0, len(old), _MOST_SWEPT):
                names = old[at : at + _MOST_SWEPT]
                async with answering(self._redis, seconds=_REDIS_SECONDS):
                    known = await self._redis.mget([self._keys.artifact(name) for name in names])
                await self._delete([name for name, text in zip(names, known, strict=True) if text is None])
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            await self._redis.set(self._keys.artifacts_listed, 1, ex=_LISTING_SECONDS)

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        """Wait for a place to keep a result in, not long: a store that is slow must not make all large results late."""
        try:
            async with asyncio.timeout(_PLACE_SECONDS):
                await self._keeping.acquire()
        except TimeoutError:
            raise _NotKept("the store is too slow for all that are to be kept") from None
        try:
            yield
        finally:
            self._keeping.release()

    async def _keep(self, call: PublishedCall, owner: str, begin: str, number: int, part: LargePart) -> ResultArtifact:
        """Store one part. Raises `FleetError`.

        A worker that could not end the call after the same attempt may have stored it, or have used its name in vain.
        """
        size, sha256 = len(part.data), await _sha256(part.data)
        asked: dict[str, Any] = {
            "stored": self._keys.artifacts_of(owner),
            "due": self._keys.artifacts_due,
            "size": size,
            "most": self._settings.artifact_bytes_per_user,
        }
        for later in _LATER_NUMBERS:
            artifact_id = f"{begin}.{number + later}"
            if not ARTIFACT_ID.fullmatch(artifact_id):
                raise _NotKept("its call has an id that cannot be a handle")
            facts = {"id": artifact_id, "media_type": part.media_type, "size": size, "sha256": sha256}
            asked |= {"record": self._keys.artifact(artifact_id), "id": artifact_id}
            reserved = await self._run(_RESERVE.command(**asked, grace_ms=_GRACE_SECONDS * 1000))
            if reserved != 0:
                break
            known = await self.find(artifact_id, owner)
            if known is not None and known.sha256 == sha256:
                return ResultArtifact(**facts, place=part.place)
        _check(reserved)
        await self.store.put(artifact_id, part.data)
        now = fleet_clock.now()
        record = ArtifactRecord(
            **facts,
            owner=_digest(owner),
            tool_name=call.tool_name,
            call_id=call.call_id,
            made_at=now,
            expires_at=now + _KEPT_SECONDS,
        )
        text = json_text.dump(record)
        _check(await self._run(_SAVE.command(**asked, keep_ms=round(_KEPT_SECONDS * 1000), text=text)))
        return ResultArtifact(**facts, place=part.place)

    async def _delete(self, names: Sequence[str]) -> None:
        """Delete objects, and forget their names. One that the store refuses to delete is due again in an hour: the others go."""
        if not names:
            return
        are_gone = await self.store.delete(names)
        if not are_gone and len(names) > 1:
            half = len(names) // 2
            await self._delete(names[:half])
            await self._delete(names[half:])
            return
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            if are_gone:
                await self._redis.zrem(self._keys.artifacts_due, *names)
            else:
                again = round((fleet_clock.now() + _AGAIN_SECONDS) * 1000)
                await self._redis.zadd(self._keys.artifacts_due, {names[0]: again})

    async def _run(self, command: Any) -> Any:
        async with answering(self._redis, seconds=_REDIS_SECONDS):
            return await self._redis.execute_command(*command)


async def sweep_artifacts(settings: Settings) -> None:
    """Sweep once, if there is a store. Raises nothing: the next sweep does it."""
    artifacts = Artifacts(settings)
    try:
        await artifacts.sweep()
    except (FleetError, RedisError) as exc:
        log.warning("artifacts_not_swept", error=str(exc))
    finally:
        await artifacts.aclose()


async def forget_artifacts(
    settings: Settings, user_id: str | None, ids: Sequence[str] = (), *, asked_by: Sequence[str] = ()
) -> int:
    """Delete the artifacts of these ids of a user, or of who asks without one; without any ids, all. Returns how many; 0 without a store."""
    if settings.artifact_store is None:
        return 0
    artifacts = Artifacts(settings)
    try:
        return await artifacts.forget(str(owner_for(user_id, asked_by)), ids)
    finally:
        await artifacts.aclose()


@dataclass(frozen=True, slots=True)
class Probe:
    """The text that was written into the store for other processes to read, or the `fault` that has prevented it."""

    text: str
    fault: str | None = None


@asynccontextmanager
async def written_probe(settings: Settings) -> AsyncGenerator[Probe | None]:
    """Have something in the store for the block, which `read_probe` reads in other processes; `None` without a store."""
    if settings.artifact_store is None:
        yield None
        return
    probe = Probe(randomness.uuid4().hex)
    store = _store(settings, settings.artifact_store)
    try:
        try:
            await store.delete([_PROBE])
            await store.put(_PROBE, probe.text.encode())
        except ArtifactStoreAway as exc:
            probe = Probe(probe.text, str(exc))
        yield probe
    finally:
        with contextlib.suppress(ArtifactStoreAway):
            await store.delete([_PROBE])


async def read_probe(settings: Settings, *, seconds: float) -> str | None:
    """Return what the doctor has written into the store, or why it cannot be read here in `seconds`; `None` without a store."""
    if settings.artifact_store is None:
        return None
    try:
        store = _store(settings, settings.artifact_store)
        async with store.within(seconds):
            return (await store.get(_PROBE, 0, _PROBE_BYTES)).decode(errors="replace")
    except FleetError as exc:
        return f"{type(exc).__name__}: {exc}"


def _check(answer: int) -> None:
    """Raise `_NotKept` unless Redis has taken it."""
    if answer != 1:
        raise _NotKept(
            "its owner has no room for it" if answer < 0 else "there is one of its name, or it took too long"
        )


def _store(settings: Settings, url: str) -> ArtifactStore:
    return ArtifactStore(url, _digest(settings.keys.begin)[:16])


def _record(text: Any) -> ArtifactRecord:
    return json_text.load(ArtifactRecord, text.decode())


def _digest(owner: str) -> str:
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()


async def _sha256(data: bytes) -> str:
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
