"""Builds a module's ASGI app: the contract's routes."""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_modules.calls.authentication import CallerCheck
from toolfleet_modules.calls.idempotency import AcceptedCalls, IdempotentRuns, NotFollowed
from toolfleet_modules.calls.request import (
    ReconcileRequest,
    StatusRequest,
    read_body,
    traced_requests,
)
from toolfleet_modules.sdk.execute import REFUSALS, Execute, refusal
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import StoreAway
from toolfleet_registry.once.port import PatientStore

STORE_SECONDS = 3.0  # for one answer of the store's; the fleet waits 5 s for a reconciliation
_QUESTION_BYTES = 512 * 2**10  # answers of 128 KiB and a state of 64 KiB may be among it

Asked = TypeVar("Asked", ReconcileRequest, StatusRequest)

REPLICA_HEADER = "Toolfleet-Replica"

_FIELD = REPLICA_HEADER.lower().encode()


def app_of(module: ServedModule) -> Starlette:
    """Return the app. Raises `RuntimeError` if the module has a key, and nothing to check tokens with."""
    routes = _Routes(module)
    known = [
        Route("/manifest", routes.manifest),
        Route("/health", routes.health),
        Route("/execute", routes.execute, methods=["POST"]),
        Route("/reconcile", routes.reconcile, methods=["POST"]),
    ]
    if routes.accepted is not None:
        known.append(Route("/status", routes.status, methods=["POST"]))
    return _ModuleApp(module, routes.execute, routes=known, lifespan=lambda _: routes.lifespan())


class _ModuleApp(Starlette):
    """Answers calls past Starlette's own layers, which would take as long as all else of HTTP; middleware that others add is not passed by."""

    def __init__(self, module: ServedModule, execute: ASGIApp, **parts: Any) -> None:
        super().__init__(**parts)
        self._module, self._execute = module, execute

    def build_middleware_stack(self) -> ASGIApp:
        others = super().build_middleware_stack()

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            is_call = scope["type"] == "http" and scope["path"] == "/execute" and scope["method"] == "POST"
            await (self._execute if is_call and not scope.get("root_path") else others)(scope, receive, send)

        checked = AddresseeCheck(others if self.user_middleware else serve, own=lambda: self._module.replica_id)
        return traced_requests(checked, service=self._module.name)  # where nothing is traced it is `checked`


class _Routes:
    def __init__(self, module: ServedModule) -> None:
        self._module = module
        self._callers = CallerCheck(module.name, module.key)
        self._manifest = _ManifestText(module)
        self._store = PatientStore(module.replies, seconds=STORE_SECONDS)
        self._runs = IdempotentRuns(self._store)
        self.accepted = None if module.follower is None else AcceptedCalls(self._store, module.follower)
        limits = replace(module.limits, accepts=self.accepted is not None)
        self.execute = _OfThisLoop(lambda: Execute(lambda: module.tools, self._runs, self._callers, limits))

    async def manifest(self, _: Request) -> Response:
        return Response(self._manifest.now(), media_type="application/json")

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "module": self._module.name, **asdict(self.execute.now.counts)})

    async def reconcile(self, request: Request) -> Response:
        return await self._answer(request, ReconcileRequest, self._became)

    async def status(self, request: Request) -> Response:
        return await self._answer(request, StatusRequest, self._where)

    async def _became(self, question: ReconcileRequest) -> dict[str, Any]:
        answer = await self._runs.answer(question.key, young_seconds=self._module.longest_call_seconds)
        answer["call_id"] = question.call_id
        if self.accepted is None or "handle" not in answer:
            return answer
        with contextlib.suppress(NotFollowed):  # then it is known as accepted, and no more
            return await self.accepted.became(question.call_id, answer["handle"])
        return answer

    async def _where(self, question: StatusRequest) -> dict[str, Any]:
        if self.accepted is None:
            return {"call_id": question.call_id, "state": "unknown"}
        return await self.accepted.status(
            question.call_id,
            question.handle,
            cancel=question.cancel,
            takes_input=question.takes_input,
            inputs=question.inputs,
        )

    async def _answer(
        self, request: Request, form: type[Asked], answer: Callable[[Asked], Awaitable[dict[str, Any]]]
    ) -> Response:
        """Return the response to a question about one call, which is read in its `form`."""
        try:
            caller = self._callers.verify(request.headers)
            question = form.model_validate_json(await read_body(request, _QUESTION_BYTES))
            self._callers.permission(caller, jti=question.call_id)
            return JSONResponse(await answer(question))
        except (NotFollowed, *REFUSALS) as exc:
            return refusal(exc, _QUESTION_BYTES)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._module.replies.aclose)
            for hook in reversed(self._module.shutdown):
                stack.push_async_callback(_called, hook)
            for manager in self._module.lifespans:
                await stack.enter_async_context(manager())
            for hook in self._module.startup:
                await _called(hook)
            with contextlib.suppress(StoreAway):  # its memory counts from the first time that it is asked
                await self._store.complete_since()
            stack.push_async_callback(self.execute.now.aclose)
            yield


class _ManifestText:
    """The manifest as JSON: written again when the module has another mapping of tools."""

    def __init__(self, module: ServedModule) -> None:
        self._module = module
        self._tools, self._text = module.tools, _text_of(module.manifest)

    def now(self) -> str:
        if self._tools is not (tools := self._module.tools):
            self._tools, self._text = tools, _text_of(self._module.manifest)
        return self._text


class _OfThisLoop:
    """The app of one route in the loop that runs: tests give an app several, one after the other."""

    def __init__(self, make: Callable[[], Execute]) -> None:
        self._make = make
        self._made: tuple[asyncio.AbstractEventLoop, Execute] | None = None

    @property
    def now(self) -> Execute:
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = loop, self._make()
        return self._made[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.now(scope, receive, send)


def _text_of(manifest: ModuleManifest) -> str:
    """Return it as JSON, without missing fields; but the schemas as they are, where `null` means something."""
    document = manifest.model_dump(mode="json", exclude_none=True)
    for shown, tool in zip(document["tools"], manifest.tools, strict=True):
        shown.update({name: getattr(tool, name) for name in ("input_schema", "output_schema") if name in shown})
    return json.dumps(document, ensure_ascii=False)


async def _called(hook: Callable[[], Any]) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result


class AddresseeCheck:
    """ASGI middleware. `own` says by which id this process is known to the fleet; "" if by none, and all is for it."""

    def __init__(self, app: ASGIApp, own: Callable[[], str]) -> None:
        self._app, self._own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 409 and the id of this process: nothing was done."""
        if scope["type"] == "http" and (own := self._own()):
            meant = next((value for name, value in scope["headers"] if name == _FIELD), None)
            if meant is not None and meant != own.encode():
                refusal = JSONResponse({"detail": "Another process serves here by now."}, 409, {REPLICA_HEADER: own})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
