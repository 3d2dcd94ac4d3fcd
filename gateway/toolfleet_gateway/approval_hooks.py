"""Lists the route by which an outside system decides about a call: with a name and rights of the settings, and signed."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.responses import Response

from toolfleet_gateway.hook_signature import SIGNED_HEADERS, signed_delivery
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest, json_answer, read_json_body
from toolfleet_gateway.operations import problem_of
from toolfleet_registry.config.secret_values import channel_secret
from toolfleet_registry.errors import ApprovalNotTaken, OperationRefused, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.approvals.records import StoredApproval
from toolfleet_tasks.approvals.shown import may_see
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.resources.approvals import ApprovalDecision, take_decision

_MOST_BYTES = 64 * 1024  # of a body, which is verified with each secret


class SignedDecision(ApprovalDecision):
    """What an outside system decides about a call."""

    approval_id: Annotated[str, Field(max_length=200)]
    """The approval, as in the path: of a signed request only the body is signed."""


class DecisionTaken(BaseModel):
    """What a request has come to; the same for each repeat of it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    approval_id: str
    """Which approval."""
    taken: Literal["approved", "rejected"]
    """What was noted: others may have to approve, too. `rejected` as well where the call is not any more what it was."""


_BODY = TypeAdapter(SignedDecision)


def approval_hook_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes for approvers without a key.

    Raises `SettingsError` for a missing secret, or one of two approvers.
    """
    return [
        Route(
            method="POST",
            path="/hooks/approvals/{approval_id}",
            name="decideApprovalByHook",
            summary="Approve or reject a call, signed as Standard Webhooks has it; a repeat changes nothing",
            handle=_ApprovalHooks(fleet, _approvers_of(settings)).decide,
            body=SignedDecision,
            headers=SIGNED_HEADERS,
            answers={200: Answer("It is noted so.", DecisionTaken)},
            problems=(403, 404, 409, 422, 503),
            tag="approvals",
            is_public=True,
            takes_bytes=True,
        )
    ]


def _approvers_of(settings: Settings) -> dict[str, Approver]:
    """Secret -> who signs with it."""
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

    async def decide(self, request: RouteRequest[bytes, None]) -> Response:
        """Decide about a call. The body is parsed only after it is verified."""
        data, approval_id = request.body, request.path["approval_id"]
        if len(data) > _MOST_BYTES:
            raise Problem(413, "body_too_large", f"The body of a hook's request is larger than {_MOST_BYTES} bytes.")
        delivery, secret = signed_delivery(list(self._approvers), request.raw.headers, data)
        if secret is None:
            raise _absent()
        known = self._approvers[secret]
        approver = Approver(known.by, known.user_id, known.permission, delivery=f"{known.by} {delivery}")
        said = read_json_body(request.raw.scope, data, _BODY)
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
        assert answer is not None  # noqa: S101 - it was taken
        return answer

    async def _seen(self, approval_id: str, approver: Approver) -> StoredApproval:
        """Return an approval. Raises `Problem`, 404, also for one that the caller may not see."""
        try:
            found = await self._approvals.show(approval_id)
        except ApprovalNotTaken as exc:
            raise _absent() from exc
        if not may_see(found, approver):
            raise _absent()
        return found


def _taken_of(found: StoredApproval, approver: Approver) -> DecisionTaken | None:
    """Return the outcome of this very request, if it was accepted."""
    lines = [line for line in found.journal if line.delivery == approver.delivery and line.what != "edited"]
    if not lines:
        return None
    return DecisionTaken(
        approval_id=found.approval_id, taken="rejected" if lines[-1].what == "rejected" else "approved"
    )


def _absent() -> Problem:
    """Return the problem of a missing approval, of one of others, or of an unsigned request: they look alike."""
    return not_found("There is no such approval, or the request is not signed by one who may decide about it.")
