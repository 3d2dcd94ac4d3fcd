"""Keeps large results as objects in a folder or a bucket, under names that are never written twice.

It knows neither users nor types nor lifetimes: these are in Redis. Every wait for a store is bounded, and a store that has not answered
counts as away for some seconds: calls do not wait for it one after the other.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway, SettingsError
from toolfleet_registry.system import machine_clock

if TYPE_CHECKING:
    from obstore.store import ObjectStore

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 4
"""The most requests of a process: each holds a copy of an artifact, so this bounds its memory."""

PATIENCE_SECONDS: Final = 10.0
"""The longest wait for a store, the wait for other requests included."""

_LEAST_SECONDS = 0.5  # with less time left, no request is begun
_AWAY_SECONDS = 30.0  # after a request in vain, which has had all its time but this least part
_MOST_HANGING = 16  # threads: a folder on a server that is gone can hold them for ever
_OURS = "toolfleet-artifacts"  # all else in the store is never touched
_LISTED = 1_000  # names at a time: a page of a bucket
_STAGED = "#"  # of a folder: between a name and a number, while the file is written
_SCHEMES = ("file", "s3", "gs", "az")


class ArtifactStore:
    """The objects of a `fleet` in the store at a URL, apart from all others there. Connects to nothing yet.

    Raises `SettingsError` without obstore. Every method raises `ArtifactStoreAway` if the store does not answer, or refuses.
    """

    def __init__(self, url: str, fleet: str) -> None:
        try:
            import obstore  # an extra: a fleet without a store does without
            from obstore.exceptions import BaseError
        except ImportError as exc:
            raise SettingsError("TOOLFLEET_ARTIFACT_STORE needs obstore: pip install 'toolfleet[artifacts]'.") from exc
        self._obstore, self._errors = obstore, (BaseError, OSError, ValueError)
        self._url, self._folder = url, f"{_OURS}/{fleet}"
        self._place = _folder_of(url)  # None of a bucket
        self._opened: ObjectStore | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._away_until = 0.0

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """Give what the block waits for these seconds at most, and never more than `PATIENCE_SECONDS`."""
        if machine_clock.monotonic() < self._away_until:
            raise ArtifactStoreAway("it has not answered lately")
        if seconds < _LEAST_SECONDS:
            raise ArtifactStoreAway("there is no time left to ask it")
        try:
            async with asyncio.timeout(min(seconds, PATIENCE_SECONDS)):
                yield
        except TimeoutError:
            raise ArtifactStoreAway("timeout") from None

    async def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all. It is refused if there is one of this name."""
        path = self._path(name)
        await self._run(lambda store: self._obstore.put(store, path, data, mode="create", use_multipart=False))

    async def get(self, name: str, start: int, end: int, *, size: int | None = None) -> bytes:
        """Read a part of an object, from byte `start` to before `end`. Raises `ArtifactMissing`, also if it has another `size`."""
        if start >= end:
            return b""

        def read(store: "ObjectStore") -> bytes | None:
            try:
                found = self._obstore.get(store, self._path(name), options={"range": (start, end)})
            except FileNotFoundError:
                return None
            return bytes(found.bytes()) if size in {None, found.meta["size"]} else None

        if (data := await self._run(read)) is None:
            raise ArtifactMissing(name)
        return data

    async def delete(self, names: Sequence[str]) -> bool:
        """Remove objects, and what a writer that was killed has left of them; none of them needs to be there.

        Returns whether none of them is there now: a store may refuse to remove some.
        """
        paths = [self._path(name) for name in names]

        def remove(store: "ObjectStore") -> bool:
            try:
                if self._place is None:  # one by itself: not each store takes many in a request
                    self._obstore.delete(store, paths[0] if len(paths) == 1 else paths)
                else:
                    for path in paths:
                        _remove(self._place / path)
            except FileNotFoundError:  # in a bucket, one of them
                return len(paths) == 1
            except self._errors:
                return False
            return True

        return await self._run(remove)

    async def older_than(self, seconds: float) -> AsyncGenerator[list[str]]:
        """Yield the names of this fleet's objects that were written longer ago, also of those that were not finished.

        The store's clock may be another one. Each page of a list is a request, with its own bound.
        """
        until = machine_clock.utc_now() - timedelta(seconds=seconds)
        pages: Iterator[list[str]] | None = None

        def page(store: "ObjectStore") -> list[str] | None:
            nonlocal pages
            pages = self._pages(store, until) if pages is None else pages
            return next(pages, None)

        while (found := await self._run(page)) is not None:
            yield found

    def _pages(self, store: "ObjectStore", until: datetime) -> Iterator[list[str]]:
        for chunk in self._obstore.list(store, prefix=self._folder, chunk_size=_LISTED):
            old = [each["path"] for each in chunk if each["last_modified"] < until]
            yield [path.removeprefix(f"{self._folder}/") for path in old]
        if self._place is not None and (folder := self._place / self._folder).is_dir():
            staged = (each for each in folder.iterdir() if _STAGED in each.name)
            yield [each.name.partition(_STAGED)[0] for each in staged if each.stat().st_mtime < until.timestamp()]

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def _run(self, work: "Callable[[ObjectStore], T]") -> T:
        def run() -> T:
            if self._opened is None:
                self._opened = _open(self._url)
            return work(self._opened)

        async with self.within(PATIENCE_SECONDS), self._slots:
            if _THREADS.count() >= _MOST_HANGING:
                raise ArtifactStoreAway("its requests hang")
            began = machine_clock.monotonic()
            try:
                return await asyncio.get_running_loop().run_in_executor(_THREADS, run)
            except asyncio.CancelledError:
                if (now := machine_clock.monotonic()) - began >= PATIENCE_SECONDS - _LEAST_SECONDS:
                    self._away_until = now + _AWAY_SECONDS
                raise
            except self._errors as exc:  # without its text, which may hold credentials
                raise ArtifactStoreAway(type(exc).__name__) from exc


class _Threads(Executor):
    """Runs each request in a thread of its own, at whose end no process waits: a request can hang for ever."""

    def __init__(self) -> None:
        self._running = list[Thread]()

    def count(self) -> int:
        """Return how many run now, also without a waiter."""
        self._running = [thread for thread in self._running if thread.is_alive()]
        return len(self._running)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Implements `Executor.submit`."""
        future = Future[T]()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as exc:  # noqa: BLE001 - it is raised where the future is awaited
                future.set_exception(exc)

        thread = Thread(target=run, name="toolfleet-artifacts", daemon=True)
        self._running.append(thread)
        thread.start()
        return future


_THREADS = _Threads()


def check_store(place: str) -> str:
    """Return the URL of a store; a path is that of a folder. Raises `ValueError` for anything that might be read in two ways."""
    parts = urlsplit(place)
    if not parts.scheme and Path(place).is_absolute():
        return Path(place).as_uri()
    if parts.scheme not in _SCHEMES:
        raise ValueError(
            f"must be an absolute path of a folder, or begin with one of {', '.join(f'{each}://' for each in _SCHEMES)}"
        )
    is_folder = parts.scheme == "file"
    if parts.query or parts.fragment or "@" in parts.netloc or place != place.strip():
        raise ValueError("may have no user, query or fragment: credentials are in variables, '#' is %23 and '?' is %3F")
    if bool(parts.netloc) is is_folder or (is_folder and not parts.path.startswith("/")):
        raise ValueError("needs file:/// and an absolute path, or the name of a bucket")
    return place


def _folder_of(url: str) -> Path | None:
    """Return the folder of a store; `None` of a bucket."""
    there = urlsplit(url)
    return Path(unquote(there.path)) if there.scheme == "file" else None


def _remove(path: Path) -> None:
    """Remove a file, and what obstore has written before it gave the file its name: obstore neither lists nor deletes that."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        for number in count(1):  # until the first that is not there
            path.with_name(f"{path.name}{_STAGED}{number}").unlink()


def _open(url: str) -> "ObjectStore":
    from obstore.store import LocalStore, from_url

    if (folder := _folder_of(url)) is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder)
    tries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=PATIENCE_SECONDS)}
    return from_url(url, retry_config=tries)  # options of the client would replace those of its variables
