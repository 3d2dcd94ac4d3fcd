"""The core as a web service: `POST /message`, `/continue` and `/notify`, `GET /conversations/{id}` and `/health`."""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, TypeVar, cast

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import ValidationError

from agent_core.bodies import ConversationOut, MessageIn, Reply
from agent_core.calls import FleetAway
from agent_core.conversations import ConversationMoved
from agent_core.core import Core, UnknownConversation
from agent_core.models.model import ModelAway
from agent_core.occupied import Occupied
from agent_core.opening import opened_core
from agent_core.people import UnknownPersona
from agent_core.settings import AgentSettings
from modules.files import FileRefused, FilesUnavailable
from toolfleet import FleetUnavailable, Settings
from toolfleet.webhooks import WakeBusy, WakeLost, WakeRefused

_SOON_SECONDS = 2.0
_MAX_WAKE_BYTES = 2**20  # a wake-up's result has 64 kB at most

T = TypeVar("T")


def create_app(settings: AgentSettings, fleet_settings: Settings) -> FastAPI:
    """The app. Its start waits until the fleet's Redis answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            app.state.core = await opened_core(settings, fleet_settings, stack)
            yield

    app = FastAPI(title="An agent's core", lifespan=lifespan)
    app.state.settings = settings
    app.post("/message", dependencies=[Depends(_known_bot)])(_message)
    app.get("/conversations/{conversation_id}", dependencies=[Depends(_known_bot)])(_conversation)
    app.post("/continue", status_code=204)(_continue)
    app.post("/notify", status_code=204)(_notify)
    app.get("/health")(_health)
    return app


async def _message(request: Request) -> Reply:
    settings: AgentSettings = request.app.state.settings
    body = await _body(request, settings.max_upload_bytes)
    try:
        message = MessageIn.model_validate_json(body)
    except ValidationError as exc:
        raise HTTPException(422, exc.errors(include_url=False, include_input=False, include_context=False)) from exc
    return await _answered(_core(request).message(message), settings.turn_seconds)


async def _continue(request: Request) -> Response:
    body = await _body(request, _MAX_WAKE_BYTES)
    seconds = cast("AgentSettings", request.app.state.settings).turn_seconds
    await _answered(_core(request).resume(dict(request.headers), body), seconds)
    return Response(status_code=204)


async def _notify(request: Request) -> Response:
    body = await _body(request, _MAX_WAKE_BYTES)
    seconds = cast("AgentSettings", request.app.state.settings).turn_seconds
    await _answered(_core(request).notify(dict(request.headers), body), seconds)
    return Response(status_code=204)


async def _conversation(conversation_id: str, request: Request) -> ConversationOut:
    shown = await _core(request).shown(conversation_id)
    if shown is None:
        raise HTTPException(404, "There is no such conversation.")
    return shown


async def _health() -> dict[str, str]:
    return {"status": "ok"}


def _known_bot(request: Request, authorization: Annotated[str, Header()] = "") -> None:
    token = cast("AgentSettings", request.app.state.settings).token
    if token is not None:
        expected = f"Bearer {token.get_secret_value()}"
        if not secrets.compare_digest(authorization.encode(), expected.encode()):
            raise HTTPException(401, "Who are you?")


async def _answered(work: Awaitable[T], seconds: float) -> T:
    """The work's result within its time. What it comes to otherwise is a status; what may come again says when."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except WakeRefused as exc:
        raise HTTPException(401, str(exc)) from exc
    except UnknownConversation as exc:
        raise HTTPException(404, "There is no such conversation.") from exc
    except (FileRefused, UnknownPersona) as exc:
        raise HTTPException(422, str(exc)) from exc
    except (Occupied, ConversationMoved) as exc:
        raise _later(409, "A turn is under way in this conversation.") from exc
    except WakeBusy as exc:
        raise _later(409, str(exc), exc.retry_after_seconds) from exc
    except (ModelAway, FleetAway, FilesUnavailable, FleetUnavailable, WakeLost) as exc:
        raise _later(503, str(exc)) from exc
    except TimeoutError as exc:
        raise _later(503, f"The turn took more than {seconds:g} s.") from exc


def _later(status: int, why: str, seconds: float = _SOON_SECONDS) -> HTTPException:
    return HTTPException(status, why, headers={"Retry-After": str(math.ceil(seconds))})


async def _body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"At most {limit} bytes.")
    return bytes(body)


def _core(request: Request) -> Core:
    return cast("Core", request.app.state.core)
