"""Makes, lists and revokes API keys, for admins."""

import asyncio
import contextlib

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.roles import needing
from toolfleet_registry.access.api_key import ApiKey, KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.access.entries import KeyRecord
from toolfleet_registry.access.grants import refusal_of
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.key_changes import KeyChanges

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
    """Return the routes of admins for keys."""
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
        records = await asyncio.to_thread(self._records)
        shown = [ShownKey(key=each.key, last_used_at=each.last_used_at) for each in records]
        return json_answer(KeyList(keys=shown, count=len(shown)))

    async def created(self, request: RouteRequest[KeyDraft, None]) -> Response:
        maker = request.who.key_maker()
        async with KeyChanges.of(self._settings, actor_of(request.who)) as changes:
            try:
                made = await changes.create(request.body, maker)
            except OperationRefused as exc:
                is_beyond = refusal_of(request.body, maker) is not None
                raise Problem(
                    *((403, "beyond_own_rights") if is_beyond else (409, "operation_refused")), str(exc)
                ) from exc
        return json_answer(NewKey(key=made.key, text=made.text), 201)

    async def revoked(self, request: RouteRequest[None, None]) -> Response:
        async with KeyChanges.of(self._settings, actor_of(request.who)) as changes:
            revoked = await changes.revoke([request.path["key_id"]])
        if not revoked:
            raise not_found("There is no such key, or not any more.")
        return nothing()

    def _records(self) -> list[KeyRecord]:
        """Read the records in a thread: the store is synchronous, and limits the time of each answer itself."""
        with contextlib.closing(ApiKeys.of(self._settings)) as keys:
            return keys.records()
