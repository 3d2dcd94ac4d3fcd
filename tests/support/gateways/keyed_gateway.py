"""A real gateway, and people with a key each."""

import contextlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from support.fleet import TestBed
from support.gateways.gateway_process import NO_TLS, Gateway, ServedGateway, gateway_process
from support.waiting import PATIENCE_SECONDS
from toolfleet_gateway.auth.identity import Identity
from toolfleet_registry.access import COMMAND_LINE, ApiKey, KeyDraft
from toolfleet_registry.api_keys import ApiKeys, CreatedKey
from toolfleet_registry.settings import Settings

PEOPLE: Mapping[str, KeyDraft] = {
    "ada": KeyDraft(user_id="ada", permission="owner", allowed_modules="*", role="admin"),
    "olga": KeyDraft(user_id="olga", allowed_modules=frozenset(), role="operator"),
    "vera": KeyDraft(user_id="vera", allowed_modules=frozenset(), role="viewer"),
    "bob": KeyDraft(user_id="bob", permission="user", allowed_modules="*"),
    "eve": KeyDraft(user_id="eve", permission="user", allowed_modules="*"),
    "gus": KeyDraft(user_id="gus", allowed_modules=frozenset()),
}
"""An admin who may call everything, an operator and a viewer who may call nothing, two users, a guest without modules."""


def identity_of(who: str) -> Identity:
    """One of them, as a gateway knows them."""
    fields = {name: getattr(PEOPLE[who], name) for name in KeyDraft.model_fields}
    return Identity.of_key(ApiKey(**fields, id=who, created_at=0, created_by="a test"))


@dataclass(frozen=True)
class KeyedGateway:
    """A gateway, and what those who have a key say of themselves by their names; others have none."""

    gateway: Gateway
    keys: Mapping[str, CreatedKey]

    @property
    def url(self) -> str:
        return self.gateway.url

    def key_id(self, who: str) -> str:
        return self.keys[who].key.id

    def client(self, who: str) -> httpx.AsyncClient:
        """A client of one of `PEOPLE`."""
        headers = {"authorization": f"Bearer {self.keys[who].text}"} if who in self.keys else {}
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=2 * PATIENCE_SECONDS, trust_env=False, verify=NO_TLS
        )

    async def get(self, who: str, path: str, **options: Any) -> httpx.Response:
        async with self.client(who) as client:
            return await client.get(path, **options)

    async def post(self, who: str, path: str, body: Any = None) -> httpx.Response:
        async with self.client(who) as client:
            return await client.post(path, **({} if body is None else {"json": body}))

    async def delete(self, who: str, path: str) -> httpx.Response:
        async with self.client(who) as client:
            return await client.delete(path)


@contextmanager
def people_of(settings: Settings) -> Generator[Mapping[str, CreatedKey]]:
    """The keys of `PEOPLE` in the fleet."""
    with contextlib.closing(ApiKeys.of(settings)) as keys:
        made = {who: keys.create(draft, COMMAND_LINE) for who, draft in PEOPLE.items()}
        try:
            yield made
        finally:
            keys.revoke([each.key.id for each in made.values()])


@contextmanager
def keyed(gateway: ServedGateway, settings: Settings) -> Generator[KeyedGateway]:
    """A gateway of the fleet with these settings, wherever it runs, and keys for `PEOPLE`."""
    with people_of(settings) as keys:
        yield KeyedGateway(gateway, keys)  # type: ignore[arg-type] # who asks for its process has one


@contextmanager
def keyed_gateway(bed: TestBed, **env: str) -> Generator[KeyedGateway]:
    """A gateway of the fleet, with these variables."""
    with people_of(bed.settings) as keys, gateway_process(bed, env=env) as gateway:
        yield KeyedGateway(gateway, keys)
