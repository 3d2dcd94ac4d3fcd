"""Makes, lists and revokes API keys, for admins."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.access.api_key import ApiKey, KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.grants import refusal_of
from toolfleet_registry.settings import Settings

T = TypeVar("T")

_LIST, _ONE = "/operations/keys", "/operations/keys/{key_id}"


class ShownKey(BaseModel):
    """A key as it is listed: its text is nowhere but with its holder."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    key: ApiKey
    """The key."""
    last_used_at: float | None = None
    """When it was used last, in seconds since the epoch, to a minute."""


class KeyList(BaseModel):
    """All keys, also those that have expired."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    keys: list[ShownKey]
    """The oldest first."""
    count: int
    """How many there are."""


class NewKey(BaseModel):
    """A key that was made."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    key: ApiKey
    """The key."""
    text: str
    """What its holder sends. It is told this once."""


def key_routes(settings: Settings) -> list[AnyRoute]:
    """What admins do about keys."""
    about = _AboutKeys(settings)
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listKeys",
            summary="All API keys; for admins",
            handle=needing("admin", about.listed),
            answers={200: Answer("The oldest first.", KeyList)},
            tag="operations",
        ),
        Route(
            method="POST",
            path=_LIST,
            name="createKey",
            summary="Make an API key, which has no more than whoever makes it; for admins",
            handle=needing("admin", about.created),
            body=KeyDraft,
            answers={201: Answer("The key, and its text.", NewKey)},
            problems=(409,),
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_ONE,
            name="revokeKey",
            summary="Let a key count for nothing; for admins",
            handle=needing("admin", about.revoked),
            answers={204: Answer("Within two seconds no gateway takes it.")},
            problems=(404,),
            tag="operations",
        ),
    ]


class _AboutKeys:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def listed(self, request: RouteRequest[None, None]) -> Response:
        del request
        records = await self._asked(lambda keys: keys.records())
        shown = [ShownKey(key=each.key, last_used_at=each.last_used_at) for each in records]
        return json_answer(KeyList(keys=shown, count=len(shown)))

    async def created(self, request: RouteRequest[KeyDraft, None]) -> Response:
        maker = request.who.key_maker()
        if (refusal := refusal_of(request.body, maker)) is not None:
            raise Problem(403, "beyond_own_rights", refusal)
        with refusals():
            made = await self._asked(lambda keys: keys.create(request.body, maker))
        return json_answer(NewKey(key=made.key, text=made.text), 201)

    async def revoked(self, request: RouteRequest[None, None]) -> Response:
        if not await self._asked(lambda keys: keys.revoke([request.path["key_id"]])):
            raise not_found("There is no such key, or not any more.")
        return nothing()

    async def _asked(self, ask: Callable[[ApiKeys], T]) -> T:
        """In a thread: the store is synchronous, and bounds each answer itself."""

        def work() -> T:
            with contextlib.closing(ApiKeys.of(self._settings)) as keys:
                return ask(keys)

        return await asyncio.to_thread(work)
