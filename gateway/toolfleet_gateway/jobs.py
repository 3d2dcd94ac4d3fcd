"""Lists the routes that start jobs, and those of conversations, which are told how their jobs ended."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeAlias
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.calls import IDEMPOTENCY_KEY_PATTERN, idempotency_key_of, problem_for
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    HeaderParameter,
    RouteRequest,
    declared_routes,
    json_answer,
    json_text,
    nothing,
    route,
)
from toolfleet_gateway.http.streams import MEDIA_TYPE, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.access import AgentNames, UserName
from toolfleet_registry.contracts import Conversation, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import (
    Completion,
    HookSpec,
    Job,
    JobRefused,
    Poll,
    Schedule,
    WakeUp,
    WakeupRequest,
    WorkflowId,
)
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.jobs import OfUserQuery
from toolfleet_tasks.resources.operation import BodyModel
from toolfleet_tasks.wakeups.service import CompletionInbox, is_entry_id

_KEY = HeaderParameter(
    "Idempotency-Key",
    "Names the job: asked for again under its key it is the same one.",
    pattern=IDEMPOTENCY_KEY_PATTERN,
)

_LAST_ID = HeaderParameter(
    "Last-Event-ID",
    "The id of the last completion that came: it and those before are confirmed.",
    pattern="^((0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18}))?$",
)


class JobCall(BodyModel):
    """A call that a job makes."""

    tool_name: str = Field(max_length=256)
    """`module.method`."""
    arguments: dict[str, Any] = Field(default={})
    """By names of the tool's arguments."""
    tool_version: str | None = None
    """The version of the tool that is meant, letter for letter."""

    def call(self) -> ToolCall:
        """Return the call in the fleet's form."""
        return ToolCall(tool_name=self.tool_name, arguments=self.arguments, tool_version=self.tool_version)


class JobRequest(BodyModel):
    """A job as its client wants it: `start` is done at once or at its schedule, then `poll` or `hook` until it is over; else it is a reminder."""

    start: JobCall | None = None
    """Its first call."""
    poll: Poll | None = None
    """The call that finds out whether the work is over."""
    schedule: Schedule | None = None
    """When it begins, and whether it does so again."""
    on_complete: list[WakeupRequest | JobCall] = Field(default=["resume_conversation"], max_length=10)
    """What happens at its end."""
    conversation: Conversation = Conversation()
    """The conversation that its end wakes."""
    deadline_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """All of it ends by then."""
    name: str = Field(default="", max_length=200)
    """What its client calls it."""
    message: str | None = Field(default=None, max_length=10_000)
    """What the agent is told at its end."""
    on_failure_message: str | None = Field(default=None, max_length=10_000)
    """The same if it did not complete."""
    hook: HookSpec | None = None
    """In the place of `poll`: the work is over when `POST /hooks/{job_id}` says so, signed with one of its secrets."""
    workflow_id: WorkflowId | None = None
    """The group of jobs that are cancelled when one of them fails."""
    user_id: UserName | None = None
    """In whose name, for keys that act for others."""
    agent: AgentNames | None = None
    """The agent whose profile takes from what the key may do; a key of an agent takes no other one."""

    def ends(self) -> list[Completion]:
        """Return the actions at its end, in the fleet's form."""
        return [one.call() if isinstance(one, JobCall) else one for one in self.on_complete]


_OfUser: TypeAlias = RouteRequest[None, OfUserQuery]


class LostCompletions(BaseModel):
    """Completions that were dropped before they were read: of each user and conversation about the last 1,000 are kept."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    count: int
    """How many there were."""


_EVENTS: dict[str, type[BaseModel] | None] = {"completion": WakeUp, "events_lost": LostCompletions}


def job_routes(fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> list[AnyRoute]:
    """Return the route that starts jobs, and those of conversations, only for the user who owns the jobs."""
    return declared_routes(_AboutJobs(fleet, settings, streams), tag="jobs")


class _AboutJobs:
    def __init__(self, fleet: ToolFleet, settings: Settings, streams: OpenStreams) -> None:
        self._fleet, self._streams = fleet, streams
        self._root = settings.gateway_root_path

    @route(
        "POST",
        "/jobs",
        "Have long work done once, and polled, even if processes end meanwhile",
        {201: Answer("The job, or the one that its key stands for.", Job, headers={"Location": "Where it is."})},
        headers=(_KEY,),
        problems=(404, 409, 422),
    )
    async def start_job(self, request: RouteRequest[JobRequest, None]) -> Response:
        body, key = request.body, idempotency_key_of(request.raw.headers)
        try:
            job = await self._fleet.jobs.start(
                None if body.start is None else body.start.call(),
                body.poll,
                body.ends(),
                body.conversation,
                body.deadline_seconds,
                caller=request.who.caller_for(body.user_id, body.agent),
                name=body.name,
                message=body.message,
                on_failure_message=body.on_failure_message,
                schedule=body.schedule,
                idempotency_key=key,
                workflow_id=body.workflow_id,
                hook=body.hook,
            )
        except JobRefused as exc:
            raise await self._refused(request.who, exc.result) from exc
        return json_answer(job, 201, {"location": f"{self._root}/jobs/{quote(job.job_id, safe='')}"})

    async def _refused(self, who: Identity, result: ToolResult) -> Problem:
        """Return the problem of a refused job: that of its call, or 422 for the job itself."""
        problem = await problem_for(self._fleet, who, result)
        return problem or Problem(
            422, result.error_code or "internal", result.error or "The job is refused.", hint=result.hint
        )

    @route(
        "GET",
        "/conversations/{conversation_id}/completions",
        "How the caller's jobs of a conversation have ended: a stream that goes on",
        {200: Answer("An end each.", media=MEDIA_TYPE, events=_EVENTS)},
        headers=(_LAST_ID,),
        problems=(409,),
    )
    async def stream_completions(self, request: _OfUser) -> Response:
        inbox, last = await self._inbox(request), request.raw.headers.get("last-event-id")
        if last:
            if not is_entry_id(last):
                raise invalid_request("The Last-Event-ID is none of this stream.")
            await inbox.confirm_up_to(last)
        return EventStream(request.who, _events(inbox), self._streams)

    @route(
        "POST",
        "/conversations/{conversation_id}/completions/{completion_id}/ack",
        "Confirm a completion: it does not come again",
        {204: Answer("It is confirmed.")},
        problems=(404, 409),
    )
    async def confirm_completion(self, request: _OfUser) -> Response:
        completion_id = request.path["completion_id"]
        inbox = await self._inbox(request)
        if not is_entry_id(completion_id) or not await inbox.confirm(completion_id):
            raise not_found("There is no such completion, or not any more: perhaps it was confirmed.")
        return nothing()

    async def _inbox(self, request: _OfUser) -> CompletionInbox:
        caller = request.who.caller_for(request.query.user_id)
        try:
            return await self._fleet.wakeups.inbox(request.path["conversation_id"], caller)
        except SettingsError as exc:
            raise Problem(
                409, "completions_go_to_core", "This fleet wakes an agent's core: nothing comes here."
            ) from exc


async def _events(inbox: CompletionInbox) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(inbox.follow()) as entries:
        async for entry_id, entry in entries:
            if isinstance(entry, WakeUp):
                yield ServerSentEvent("completion", json_text(entry), entry_id)
            else:
                yield ServerSentEvent("events_lost", json_text(LostCompletions(count=entry)), entry_id)
