"""Defines who has sent a request: the caller that it is, what it may do as an operator, and how much it may send."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_registry.access.api_key import ApiKey
from toolfleet_registry.access.grants import KeyMaker
from toolfleet_registry.access.roles import Role, has_role
from toolfleet_registry.config.agent_profile import AGENT_NAME
from toolfleet_registry.contracts import Caller
from toolfleet_registry.policy.call_faults import LONGEST, sees_calls_of

UserName = Annotated[str, Field(max_length=LONGEST, json_schema_extra={"minLength": 1})]
"""A user's id as requests name it; `caller_for` says what is wrong with an empty one."""

AgentNames = Annotated[str, Field(pattern=f"^{AGENT_NAME}(/{AGENT_NAME})*$", max_length=LONGEST)]
"""An agent as requests name it, behind those that it stands behind: `primary/subagent`."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated sender, by a key or by a token: one of `key_id` and `subject` is there.

    It holds neither the key nor the token.
    """

    caller: Caller
    role: Role = "none"
    key_id: str | None = None
    subject: str | None = None
    conversation_id: str | None = None
    expires_at: float | None = None
    acts_for_others: bool = False
    requests_per_second: float | None = None
    streams: int | None = None

    @classmethod
    def of_key(cls, key: ApiKey) -> "Identity":
        """Return the identity of an API key's holder."""
        return cls(
            caller=key.caller,
            role=key.role,
            key_id=key.id,
            expires_at=key.expires_at,
            acts_for_others=key.acts_for_others,
            requests_per_second=key.requests_per_second,
            streams=key.streams,
        )

    @property
    def name(self) -> str:
        """The name in logs and limits: `key <id>` or `token <subject>`."""
        return f"token {self.subject}" if self.key_id is None else f"key {self.key_id}"

    def has_role(self, needed: Role) -> bool:
        """Return whether it has at least this role."""
        return has_role(self.role, needed)

    def sees_calls_of(self, tool_name: str) -> bool:
        """Return whether it is shown its user's calls of the tool, by any key."""
        return sees_calls_of(self.caller, tool_name)

    def caller_for(self, user_id: str | None, agent: str | None = None) -> Caller:
        """Return the caller in whose name it acts: `user_id` and `agent`, as a request names them, or its own for `None`.

        Raises `AuthRefused`, 403, for another user's unless it acts for others, and for another agent than its own; one
        below its own (`own/other`) is accepted. 400 for an invalid user id.
        """
        if agent is not None and agent != (own := self.caller.agent):
            if own is not None and not agent.startswith(f"{own}/"):
                raise AuthRefused("agent-of-key", "This key is another agent's: leave agent out.")
            return replace(self, caller=self.caller.model_copy(update={"agent": agent})).caller_for(user_id)
        if user_id is None or user_id == self.caller.user_id:
            return self.caller
        if not self.acts_for_others:
            raise AuthRefused("acts-for-others", "This key does not act for other users: leave user_id out.")
        if not 0 < len(user_id) <= LONGEST:
            raise AuthRefused("invalid-user", f"user_id must have 1 to {LONGEST} characters.")
        return self.caller.model_copy(update={"user_id": user_id})

    def for_user(self, user_id: str | None) -> "Identity":
        """The same, acting for that user. Raises as `caller_for`."""
        return replace(self, caller=self.caller_for(user_id))

    def key_maker(self) -> KeyMaker:
        """Return the rights that it may hand on to an API key that it makes."""
        return KeyMaker(
            name=self.name,
            user_id=self.caller.user_id,
            permission=self.caller.permission,
            allowed_modules=self.caller.allowed_modules,
            role=self.role,
            agent=self.caller.agent,
            expires_at=self.expires_at,
            acts_for_others=self.acts_for_others,
            requests_per_second=self.requests_per_second,
            streams=self.streams,
        )
