"""Defines under which terms people approve a call: to what an approval is bound, who may give it, how many of them have to."""

from typing import Annotated, Literal

from pydantic import Field

from toolfleet_registry.contracts.message import Message, Since


class ApprovalRule(Message):
    """One rule that asks for an approval; if several do, each has to be satisfied. `digest`: of what it was made from.

    Callers with `permission`, or a higher one, may approve, and so may these `users`, and the holders of these `keys`
    (ids of API keys). `quorum`: the number of approvals needed. `expires_seconds`: after which the call is denied.
    `self_approval`: the caller may be one of the approvers.
    """

    digest: str
    permission: Literal["guest", "user", "admin", "owner"] | None = None
    users: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    quorum: Annotated[int, Field(ge=1)] = 1
    expires_seconds: Annotated[float, Field(gt=0)] = 3600.0
    self_approval: bool = False


class ApprovalTerms(Message):
    """The approval terms that travel with a call.

    `binding` is the digest of all that people see: another call needs another approval. `tool_digest`: of the tool's
    definition. `rules`: digests of the rules that ask for it. `expires_seconds`: the time to decide. `seconds`: the
    call's time from its approval on. `by_tool`: the tool itself asks for it, or settings do, which workers of earlier
    versions do not know. `asked`: for a call whose arguments were edited, the digest under which its idempotency key
    stands for it.
    """

    binding: str
    tool_digest: str
    rules: tuple[str, ...]
    expires_seconds: float = Field(gt=0)
    seconds: float = Field(gt=0)
    asked: str | None = None
    by_tool: Annotated[bool, Since(4)] = False


class ApprovedCall(Message):
    """The ledger's record of an approved call, sealed, for the worker that starts it."""

    call_id: str
    binding: str
    by: tuple[str, ...]
    at: float
