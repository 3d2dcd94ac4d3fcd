"""Lists the route by which an outside system ends a job."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from starlette.responses import Response

from toolfleet_gateway.hook_signature import SIGNED_HEADERS, absent, verified_delivery
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest, json_answer, read_json_body
from toolfleet_registry.contracts.jobs import JobState
from toolfleet_tasks.client.fleet import ToolFleet

_MOST_BYTES = 256 * 1024  # of a body: four times what is kept of a result
_LONGEST_JOB_ID = 200  # characters

_NO_WORDS = "it was not done."


class HookBody(BaseModel):
    """How the work has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    job_id: str | None = Field(default=None, max_length=200)
    """The job, as in the path: of a request only the body is signed. Required where the job's hook says so."""
    success: bool
    """Whether it was done."""
    result: Any = None
    """What it has brought, if it was done: any JSON."""
    error: str | None = Field(default=None, max_length=10_000)
    """What went wrong, if it was not."""

    @model_validator(mode="after")
    def _check_what_goes_together(self) -> Self:
        if self.success and self.error is not None:
            raise ValueError("work that was done has no `error`")
        if not self.success and self.result is not None:
            raise ValueError("work that was not done has an `error`, and no `result`")
        return self


class HookAnswer(BaseModel):
    """A job that has ended as the request says; the same for each repeat of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    job_id: str
    """Which one."""
    state: JobState
    """How it has ended."""


_BODY = TypeAdapter(HookBody)


def hook_routes(fleet: ToolFleet) -> list[AnyRoute]:
    """Return the routes for outside systems, which have no key: they sign."""
    return [
        Route(
            method="POST",
            path="/hooks/{job_id}",
            name="endJobByHook",
            summary="End a job that waits for it, signed as Standard Webhooks has it; a repeat changes nothing",
            handle=_Hooks(fleet).end,
            body=HookBody,
            headers=SIGNED_HEADERS,
            answers={200: Answer("The job has ended so.", HookAnswer)},
            problems=(404, 410, 503),
            tag="jobs",
            is_public=True,
            takes_bytes=True,
        )
    ]


class _Hooks:
    def __init__(self, fleet: ToolFleet) -> None:
        self._hooks = fleet.hooks

    async def end(self, request: RouteRequest[bytes, None]) -> Response:
        """End a job. The body is parsed only after it is verified."""
        data, job_id = request.body, request.path["job_id"]
        if len(data) > _MOST_BYTES:
            raise Problem(413, "body_too_large", f"The body of a hook's request is larger than {_MOST_BYTES} bytes.")
        hook = await self._hooks.of_job(job_id) if len(job_id) <= _LONGEST_JOB_ID else None
        delivery = verified_delivery(() if hook is None else hook.secrets, request.raw.headers, data)
        said = read_json_body(request.raw.scope, data, _BODY)
        if said.job_id is not None and said.job_id != job_id:  # signed for another job, and sent to this one's path
            raise absent()
        if said.job_id is None and hook is not None and hook.requires_job_id:
            raise invalid_request("The body has no job_id: this job's hook takes requests that name it.")
        if said.success:
            ended = await self._hooks.complete(job_id, delivery, said.result)
        else:
            ended = await self._hooks.fail(job_id, delivery, said.error or _NO_WORDS)
        if ended is None:  # gone meanwhile
            raise absent()
        if not ended.is_its_end:
            raise Problem(
                410, "job_has_ended", f"The job has ended otherwise, as {ended.job.state}: no request changes that."
            )
        return json_answer(HookAnswer(job_id=job_id, state=ended.job.state))
