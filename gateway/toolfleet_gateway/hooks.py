"""Lists the routes by which outside systems end jobs and decide about calls: they have no key, and sign as Standard Webhooks has it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.responses import Response

from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    HeaderParameter,
    RouteRequest,
    declared_routes,
    json_answer,
    read_json_body,
    route,
)
from toolfleet_gateway.operations import problem_of
from toolfleet_registry.config.setting_sources import channel_secret
from toolfleet_registry.contracts.jobs import JobState
from toolfleet_registry.errors import ApprovalNotTaken, OperationRefused, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.views import may_see
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.approvals import ApprovalDecision, take_decision
from toolfleet_tasks.resources.operation import AnswerModel

_SIGNED_HEADERS = (
    HeaderParameter("webhook-id", "The request's id, the same in each repeat.", is_required=True),
    HeaderParameter(
        "webhook-timestamp", "When it was signed: seconds since the epoch.", pattern="^[0-9]{1,12}$", is_required=True
    ),
    HeaderParameter("webhook-signature", "`v1,` and base64; several with spaces between.", 2_000, is_required=True),
)
"""What such a request has."""

_NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")
_LONGEST_ID = 256  # characters
_LONGEST_SIGNATURE = 2_000
_MOST_SIGNATURES = 10
# Signs nothing: a request for a job that there is not takes as long as one with a wrong signature.
_NOBODYS = "whsec_" + "A" * 32

_MOST_BYTES = 256 * 1024  # of a body: four times what is kept of a result
_LONGEST_JOB_ID = 200  # characters

_NO_WORDS = "it was not done."

_MOST_DECISION_BYTES = 64 * 1024  # of a body, which is verified with each secret


def signed_delivery(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, *, most: int = _MOST_BYTES
) -> tuple[str, str | None]:
    """Return the id of a request, and the secret that it is signed with, if any.

    Raises `Problem` for a malformed request, and for a body of more than `most` bytes.
    """
    if len(body) > most:
        raise Problem(413, "body_too_large", f"The body of a hook's request is larger than {most} bytes.")
    said = {name: headers.get(name, "") for name in _NAMES}
    if not all(said.values()):
        raise invalid_request(f"A hook's request has the headers {', '.join(_NAMES)}.")
    if len(said["webhook-id"]) > _LONGEST_ID or len(said["webhook-signature"]) > _LONGEST_SIGNATURE:
        raise invalid_request(
            f"A webhook-id has {_LONGEST_ID} characters at most, and signatures {_LONGEST_SIGNATURE}."
        )
    found = next((secret for secret in secrets or [_NOBODYS] if _is_signed(secret, said, body)), None)
    return said["webhook-id"], found if secrets else None


def _no_job() -> Problem:
    """Return the problem of a missing job, of one without a hook, or with another secret: they look alike."""
    return not_found("There is no such job with a hook, or the request is not signed with its secret.")


def _is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    webhook = Webhook(secret)
    # One that is malformed must not hide those behind it.
    for signature in headers["webhook-signature"].split()[:_MOST_SIGNATURES]:
        try:
            webhook.verify(body, {**headers, "webhook-signature": signature}, json_parse=False)
        except WebhookVerificationError as exc:
            if "timestamp" in str(exc) or "Headers" in str(exc):
                raise invalid_request(
                    "The webhook-timestamp is not within five minutes of the gateway's clock: sign the request again."
                ) from None
        except ValueError:  # no base64, no comma, no UTF-8
            continue
        else:
            return True
    return False


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


class HookAnswer(AnswerModel):
    """A job that has ended as the request says; the same for each repeat of it."""

    job_id: str
    """Which one."""
    state: JobState
    """How it has ended."""


_BODY = TypeAdapter(HookBody)


def hook_routes(fleet: ToolFleet) -> list[AnyRoute]:
    """Return the routes for outside systems, which have no key: they sign."""
    return declared_routes(_Hooks(fleet), tag="jobs")


class _Hooks:
    def __init__(self, fleet: ToolFleet) -> None:
        self._hooks = fleet.hooks

    @route(
        "POST",
        "/hooks/{job_id}",
        "End a job that waits for it, signed as Standard Webhooks has it; a repeat changes nothing",
        {200: Answer("The job has ended so.", HookAnswer)},
        body=HookBody,
        headers=_SIGNED_HEADERS,
        problems=(404, 410, 503),
        is_public=True,
        takes_bytes=True,
    )
    async def end_job_by_hook(self, request: RouteRequest[bytes, None]) -> Response:
        """End a job. The body is parsed only after it is verified."""
        data, job_id = request.body, request.path["job_id"]
        hook = await self._hooks.of_job(job_id) if len(job_id) <= _LONGEST_JOB_ID else None
        delivery, secret = signed_delivery(() if hook is None else hook.secrets, request.raw.headers, data)
        if secret is None:  # a sender cannot find out which jobs there are
            raise _no_job()
        said = read_json_body(request.raw.scope, data, _BODY)
        if said.job_id is not None and said.job_id != job_id:  # signed for another job, and sent to this one's path
            raise _no_job()
        if said.job_id is None and hook is not None and hook.requires_job_id:
            raise invalid_request("The body has no job_id: this job's hook takes requests that name it.")
        if said.success:
            ended = await self._hooks.complete(job_id, delivery, said.result)
        else:
            ended = await self._hooks.fail(job_id, delivery, said.error or _NO_WORDS)
        if ended is None:  # gone meanwhile
            raise _no_job()
        if not ended.is_its_end:
            raise Problem(
                410, "job_has_ended", f"The job has ended otherwise, as {ended.job.state}: no request changes that."
            )
        return json_answer(HookAnswer(job_id=job_id, state=ended.job.state))


class SignedDecision(ApprovalDecision):
    """A decision of an outside system about a call."""

    approval_id: Annotated[str, Field(max_length=200)]
    """The approval, as in the path: of a signed request only the body is signed."""


class DecisionTaken(AnswerModel):
    """The outcome of a request; the same for each repeat of it."""

    approval_id: str
    """Which approval."""
    taken: Literal["approved", "rejected"]
    """What was noted: others may have to approve, too. `rejected` as well where the call is not any more what it was."""


_DECISION = TypeAdapter(SignedDecision)


def approval_hook_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes for approvers without a key.

    Raises `SettingsError` for a missing secret, or one of two approvers.
    """
    return declared_routes(_ApprovalHooks(fleet, _approvers_of(settings)), tag="approvals")


def _approvers_of(settings: Settings) -> dict[str, Approver]:
    """Return the approvers by the secrets that they sign with."""
    found = dict[str, Approver]()
    for name, spec in settings.approvals.approvers.items():
        for secret in (channel_secret(each, settings.secrets) for each in spec.secrets):
            if secret in found:
                raise SettingsError(
                    f"TOOLFLEET_APPROVALS: the approver {name} signs with a secret that stands there twice."
                )
            found[secret] = Approver(f"webhook {name}", spec.user_id, spec.permission)
    return found


class _ApprovalHooks:
    def __init__(self, fleet: ToolFleet, approvers: dict[str, Approver]) -> None:
        self._approvals, self._approvers = fleet.approvals, approvers

    @route(
        "POST",
        "/hooks/approvals/{approval_id}",
        "Approve or reject a call, signed as Standard Webhooks has it; a repeat changes nothing",
        {200: Answer("It is noted so.", DecisionTaken)},
        body=SignedDecision,
        headers=_SIGNED_HEADERS,
        problems=(403, 404, 409, 422, 503),
        is_public=True,
        takes_bytes=True,
    )
    async def decide_approval_by_hook(self, request: RouteRequest[bytes, None]) -> Response:
        """Decide about a call. The body is parsed only after it is verified."""
        data, approval_id = request.body, request.path["approval_id"]
        delivery, secret = signed_delivery(list(self._approvers), request.raw.headers, data, most=_MOST_DECISION_BYTES)
        if secret is None:
            raise _no_approval()
        known = self._approvers[secret]
        approver = Approver(known.by, known.user_id, known.permission, delivery=f"{known.by} {delivery}")
        said = read_json_body(request.raw.scope, data, _DECISION)
        if said.approval_id != approval_id:  # otherwise one intercepted request could be sent to another call's path
            raise invalid_request("The body's approval_id is not that of the path.")
        found = await self._seen(approval_id, approver)
        if (answer := _taken_of(found, approver)) is None:
            answer = await self._taken(said, approver)
        return json_answer(answer)

    async def _taken(self, said: SignedDecision, approver: Approver) -> DecisionTaken:
        approval_id = said.approval_id
        try:
            found = await take_decision(self._approvals, approval_id, approver, said)
        except OperationRefused as exc:
            # The same request came twice at one moment, and the other one was first.
            if (answer := _taken_of(await self._seen(approval_id, approver), approver)) is not None:
                return answer
            raise problem_of(exc) from exc
        answer = _taken_of(found, approver)
        assert answer is not None
        return answer

    async def _seen(self, approval_id: str, approver: Approver) -> StoredApproval:
        """Return an approval. Raises `Problem`, 404, also for one that the caller may not see."""
        try:
            found = await self._approvals.show(approval_id)
        except ApprovalNotTaken as exc:
            raise _no_approval() from exc
        if not may_see(found, approver):
            raise _no_approval()
        return found


def _taken_of(found: StoredApproval, approver: Approver) -> DecisionTaken | None:
    """Return the outcome of this very request, if it was accepted."""
    lines = [line for line in found.journal if line.delivery == approver.delivery and line.what != "edited"]
    if not lines:
        return None
    return DecisionTaken(
        approval_id=found.approval_id, taken="rejected" if lines[-1].what == "rejected" else "approved"
    )


def _no_approval() -> Problem:
    """Return the problem of a missing approval, of one of others, or of an unsigned request: they look alike."""
    return not_found("There is no such approval, or the request is not signed by one who may decide about it.")
