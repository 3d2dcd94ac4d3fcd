"""Calls a module in this process, through its real app and without sockets: for tests."""

import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import uuid4

import httpx

from toolfleet_modules.calls.authentication import keys_in
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_registry.admission_rules import admit
from toolfleet_registry.contracts import EffectState, Level, ModuleManifest, ResultFile
from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, ToolContext
from toolfleet_registry.contracts.inputs import CallInputs


@dataclass(frozen=True, slots=True)
class ModuleResult:
    """A module's answer."""

    tool_name: str
    """The tool that was called."""
    success: bool
    """Whether it did what it was asked for."""
    result: Any = None
    """The result, as JSON."""
    error: str | None = None
    """The error; for another status than 200 the answer's detail."""
    effect_state: EffectState | None = None
    """Whether its effect has happened, where the module says so."""
    status: int = 200
    """The HTTP status."""
    retry_after_seconds: float | None = None
    """When to come back, if the module says so."""
    call_id: str = ""
    """The id that the call had."""
    progress: tuple[tuple[float | None, str], ...] = field(default=())
    """The reports of progress, in order: a fraction from 0 to 1, or `None`, and a message."""
    log: tuple[LogMessage, ...] = ()
    """The log messages for the caller, in order."""
    retryable: bool = False
    """Whether the module says that a repeat may help and does no harm."""
    files: tuple[ResultFile, ...] = ()
    """The images and other files that it returned."""
    handle: str = ""
    """The handle under which the module continues, if it has accepted the call, which has neither succeeded nor failed yet."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """The module's questions by keys, if it asks before it continues; the call has neither succeeded nor failed yet."""
    state: str = ""
    """The module's state, which comes back to it with the answers."""


class ModuleClient:
    """A client that calls a module in this process, for tests. Enter it before use: that starts the module.

    Args:
        module: The module.
        user_id: The user of calls that name none.
        permission: The permission of calls that name none.
    """

    def __init__(self, module: ServedModule, *, user_id: str | None = None, permission: Level = "user") -> None:
        self._module = module
        self._user_id, self._permission = user_id, permission
        self._stack = AsyncExitStack()
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(module.app), base_url="http://module.test", timeout=60
        )
        """An HTTP client for other requests to the module."""

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        app = self._module.app
        await self._stack.enter_async_context(app.router.lifespan_context(app))
        await self._stack.enter_async_context(self.http)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def manifest(self) -> ModuleManifest:
        """Return the module's manifest, if a fleet would admit it.

        Raises:
            ManifestRefused: A fleet would not admit it; the message says why.
        """
        return admit(self._module.name, (await self.http.get("/manifest")).raise_for_status().json())

    async def call(self, method: str, /, **arguments: Any) -> ModuleResult:
        """Call a tool.

        Args:
            method: The tool's name, with or without its module's.
            **arguments: The arguments; `user_id` is the call's user, as a fleet sends it.

        Returns:
            The module's answer, also of a call that failed or was refused.
        """
        user_id = arguments.pop("user_id", self._user_id)
        return await self.send(method, arguments, user_id=user_id)

    async def send(
        self,
        method: str,
        arguments: dict[str, Any],
        *,
        user_id: str | None = None,
        call_id: str | None = None,
        seconds: float = 30,
        permission: str | None = None,
        context: ToolContext | None = None,
        takes_input: bool = False,
        inputs: CallInputs | None = None,
        log_level: LogLevel | None = None,
    ) -> ModuleResult:
        """Call a tool with everything that a fleet sends.

        Args:
            method: The tool's name, with or without its module's.
            arguments: The arguments.
            user_id: The call's user.
            call_id: The call's id, which a repeat of the call shares; the default is a new one.
            seconds: The time that is left for the call.
            permission: The caller's permission, if the module has a key.
            context: The agent's context of the conversation, for tools that take it.
            takes_input: Whether the module may ask the caller.
            inputs: The latest answers to the module's questions.
            log_level: The least level of log messages to send; `None` for none.

        Returns:
            The module's answer, also of a call that failed or was refused.
        """
        tool_name = method if method.startswith(f"{self._module.name}.") else f"{self._module.name}.{method}"
        call_id = call_id or uuid4().hex
        body: dict[str, Any] = {"tool_name": tool_name, "arguments": arguments}
        if takes_input:
            body["takes_input"] = True
        if inputs is not None:
            body["inputs"] = inputs.model_dump(exclude={"so_far"})
        if log_level is not None:
            body["log_level"] = log_level
        if user_id is not None:
            body["user_id"] = user_id
        if context is not None:
            body["context"] = context.model_dump(mode="json", exclude_defaults=True)
        headers = {
            "Accept": "application/x-ndjson, application/json",
            "Idempotency-Key": call_id,
            "Toolfleet-Time-Left-Ms": str(int(seconds * 1000)),
        }
        if self._module.key:
            headers["Toolfleet-Caller"] = self._token(tool_name, user_id, call_id, permission, seconds)
        response = await self.http.post("/execute", json=body, headers=headers)
        return _result(response, tool_name, call_id)

    async def reconcile(self, call_id: str, *, number: int = 0) -> dict[str, Any]:
        """Ask for the outcome of a call, as a fleet does that has not seen its end.

        Args:
            call_id: The call's id.
            number: Of a call that was answered: the number of the question, for the part after its answer.

        Returns:
            The module's answer: `call_id`, `state`, and of a call that is `done` the fields of its reply.
        """
        return await self._ask("/reconcile", {"call_id": call_id} | ({"round": number} if number else {}))

    async def status(
        self,
        call_id: str,
        handle: str,
        *,
        cancel: bool = False,
        takes_input: bool = False,
        inputs: CallInputs | None = None,
    ) -> dict[str, Any]:
        """Ask for the state of a call that the module has accepted.

        Args:
            call_id: The call's id.
            handle: The handle under which the module has accepted it.
            cancel: Whether the call is cancelled.
            takes_input: Whether the module may ask the caller.
            inputs: The latest answers to the module's questions.

        Returns:
            The module's answer: `call_id`, `state`, and what belongs to the state.
        """
        question: dict[str, Any] = {"call_id": call_id, "handle": handle}
        if cancel:
            question["cancel"] = True
        if takes_input:
            question["takes_input"] = True
        if inputs is not None:
            question["inputs"] = inputs.model_dump(exclude={"so_far"})
        return await self._ask("/status", question)

    async def _ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        token = self._token("", None, question["call_id"], None, 60) if self._module.key else ""
        headers = {"Toolfleet-Caller": token} if token else {}
        response = await self.http.post(path, json=question, headers=headers)
        answer: dict[str, Any] = response.raise_for_status().json()
        return answer

    def _token(self, tool: str, user_id: str | None, call_id: str, permission: str | None, seconds: float) -> str:
        import jwt  # a module without a key need not have it

        now = int(time.time())
        claims = {
            "iss": "toolfleet",
            "aud": self._module.name,
            "sub": user_id or "",
            "permission": permission or self._permission,
            "tool": tool,
            "jti": call_id,
            "iat": now,
            "exp": now + int(seconds) + 1,
        }
        return jwt.encode(claims, keys_in(self._module.key)[0], algorithm="HS256")


def _result(response: httpx.Response, tool_name: str, call_id: str) -> ModuleResult:
    # Not `splitlines`: JSON may hold what else that takes for an end of line.
    *before, last = [json.loads(line) for line in response.content.split(b"\n") if line] or [{}]
    progress = tuple((line["progress"], line["message"]) for line in before if "progress" in line)
    log = tuple(LogMessage.model_validate(line["log"]) for line in before if "log" in line)
    if not response.is_success:
        return _refused(response, last, tool_name, call_id)
    return replace(_ended(last, tool_name, call_id), progress=progress, log=log)


def _ended(last: Mapping[str, Any], tool_name: str, call_id: str) -> ModuleResult:
    if (asked := last.get("input_required")) is not None:
        return ModuleResult(
            tool_name,
            success=False,
            effect_state=last.get("effect_state"),
            call_id=call_id,
            requests=asked["requests"],
            state=asked["state"],
        )
    if last.get("accepted") is True:
        wait = last.get("poll_after_seconds")
        return ModuleResult(
            tool_name,
            success=False,
            call_id=call_id,
            handle=last["handle"],
            retry_after_seconds=wait,
        )
    return ModuleResult(
        tool_name,
        success=last["success"],
        result=last["result"],
        error=last["error"],
        effect_state=last.get("effect_state"),
        call_id=call_id,
        retryable=last.get("retryable", False),
        files=tuple(ResultFile.model_validate(each) for each in last.get("files", ())),
    )


def _refused(response: httpx.Response, said: Mapping[str, Any], tool_name: str, call_id: str) -> ModuleResult:
    wait = response.headers.get("Retry-After")
    return ModuleResult(
        tool_name,
        success=False,
        error=str(said.get("detail")),
        effect_state="none",
        status=response.status_code,
        retry_after_seconds=float(wait) if wait else None,
        call_id=call_id,
    )
