"""Finds the key of a text in a store, as a gateway does that has just started."""

import asyncio

from toolfleet_registry.access import ApiKey
from toolfleet_registry.api_keys import LiveKeys, key_seal
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.store.documents import DocumentStore

UNSEALED = key_seal(SigningSettings())


def key_of(text: str, store: DocumentStore, seal: TextSeal = UNSEALED) -> ApiKey | None:
    """The key that counts with this text. That it was used is noted before this returns."""

    async def found() -> ApiKey | None:
        live = LiveKeys(store, seal)
        key = await live.find(text)
        if live._noting is not None:
            await live._noting
        return key

    return asyncio.run(found())
