"""Looks up the API key for a text, as the store has it now: from memory, confirmed each second.

All keys are in memory, so that texts which are no keys cost the store nothing, however many there are. One question to
the store, for its revision, confirms all keys. A gateway that cannot reach its store goes on for a moment, and then
lets no one in.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from toolfleet_registry.access.api_key import ApiKey
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.entries import API_KEYS, KeyEntry, key_seal, read_entry
from toolfleet_registry.access.key_text import read_key_text
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.live_copy import EARLY_SECONDS, LiveCopy
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.store.documents import NOTED_SECONDS, Documents, DocumentStore
from toolfleet_registry.store.factory import open_documents
from toolfleet_registry.system import fleet_clock

T = TypeVar("T")

CONFIRMED_SECONDS = 1.0
"""A key is good for so long without a question: a revocation has to be known everywhere within two seconds."""

GOOD_SECONDS = 2.0
"""And for so long if the store does not answer."""

# A user who has just made a key uses it at once, and waits for the next question about all keys; so does one who tries keys that there
# are not gets no more asked than ten a second.
_UNKNOWN_SECONDS = 0.1
_PATIENCE_SECONDS = 1.0  # for an answer without which nothing can be said
_SHORT_PATIENCE_SECONDS = 0.3  # for one without which a key is still good: no request waits long for a slow store


class LiveKeys:
    """The live view of the API keys, for one event loop. It owns the store, and closes it.

    Raises `FleetUnavailable` when nothing can be said about a key. `signs_again`: whether there may be keys that were
    signed with an old key of the fleet.
    """

    def __init__(self, store: DocumentStore, seal: TextSeal, *, signs_again: bool = False) -> None:
        self._store, self._seal, self._signs_again = store, seal, signs_again
        # Threads of its own: other work of a gateway in threads must not delay this question.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="toolfleet-keys")
        self._known = Documents("", {})
        self._entries = dict[str, KeyEntry | None]()  # those that were asked for
        self._copy = LiveCopy(self._read, event="api_keys_not_confirmed")
        self._signing: asyncio.Future[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._used = dict[str, int]()  # yet to be noted
        self._noted = dict[str, int]()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the live keys of the fleet with these settings. Raises `SettingsError`; does not connect yet."""
        return cls(open_documents(settings, API_KEYS), key_seal(settings), signs_again=bool(settings.signing_keys_old))

    async def find(self, text: str) -> ApiKey | None:
        """The key with this text; `None` if there is none, or it was revoked, or has expired."""
        read = read_key_text(text)
        if read is None:
            return None
        entry = await self._entry(read.id)
        if entry is None or not read.has_digest(entry.digest) or entry.key.is_expired(fleet_clock.now()):
            return None
        self._note_use(entry.key.id)
        return entry.key

    async def is_live(self, key_id: str) -> bool:
        """Return whether the key with this id still exists and has not expired: for connections that outlast a request."""
        entry = await self._entry(key_id)
        return entry is not None and not entry.key.is_expired(fleet_clock.now())

    async def has_any(self) -> bool:
        """Return whether there are any keys, expired or not."""
        await self._confirm(CONFIRMED_SECONDS)
        return bool(self._known.entries)

    async def ask(self, work: Callable[[ApiKeys], T]) -> T:
        """Have `work` done with the keys in a thread, such as making one; what it changes is known here at once."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, work, ApiKeys(self._store, self._seal)
            )
        finally:
            self._copy.outdate()

    async def aclose(self) -> None:
        """Let go of the store; what uses it then is not waited for beyond its own patience."""
        await self._copy.aclose()
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait({self._noting})
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    async def _entry(self, key_id: str) -> KeyEntry | None:
        await self._confirm(CONFIRMED_SECONDS)
        if key_id not in self._known.entries:
            if (rest := _UNKNOWN_SECONDS - self._copy.age_seconds) > 0:
                # Any earlier, what is known would still be fresh enough, and from before the key.
                await asyncio.sleep(rest + EARLY_SECONDS)
            await self._confirm(_UNKNOWN_SECONDS, good_seconds=0)
        if key_id not in self._known.entries:
            return None
        if key_id not in self._entries:
            self._entries[key_id] = read_entry(key_id, self._known.entries[key_id], self._seal)
        return self._entries[key_id]

    async def _confirm(self, fresh_seconds: float, *, good_seconds: float = GOOD_SECONDS) -> None:
        """Wait until the known keys are that fresh; without an answer, old ones are good for a moment. Fails closed."""
        if not await self._copy.confirm(
            fresh_seconds,
            good_seconds=good_seconds,
            patience_seconds=_PATIENCE_SECONDS,
            short_seconds=_SHORT_PATIENCE_SECONDS,
        ):
            raise FleetUnavailable("The store of API keys does not answer: nothing can be said about a key.")

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._store.read, self._known.revision)
        if found is None:
            return
        self._known, self._entries = found, {}
        self._noted = {key_id: at for key_id, at in self._noted.items() if key_id in found.entries}
        if self._signs_again and (self._signing is None or self._signing.done()):
            self._signing = loop.run_in_executor(self._threads, self._sign_again)

    def _sign_again(self) -> None:
        with contextlib.suppress(FleetUnavailable):  # the next gateway does, or this one after the next change
            ApiKeys(self._store, self._seal).sign_again()

    def _note_use(self, key_id: str) -> None:
        now = int(fleet_clock.now())
        if abs(now - self._noted.get(key_id, 0)) < NOTED_SECONDS:
            return
        self._noted[key_id] = self._used[key_id] = now
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._write_used(), name="toolfleet-keys-used")

    async def _write_used(self) -> None:
        """Write pending last-use times to the store.

        A write that fails is dropped: the next use is noted again in a minute.
        """
        while self._used:
            used, self._used = self._used, {}
            with contextlib.suppress(FleetUnavailable):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._store.note_used, used)

    def _close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._store.close()
