"""Defines an API key: the user it stands for, the tools it may call and how often, and its operator role."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from toolfleet_registry.access.roles import Role
from toolfleet_registry.config.agent_profile import AGENT_NAME
from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.contracts.message import Message
from toolfleet_registry.contracts.names import is_module_name
from toolfleet_registry.policy.call_faults import LONGEST

MOST_MODULES = 1000
"""Names in a key: whoever reaches more reaches all."""

MOST_LIMIT = 1_000_000
LEAST_RATE = 0.001  # one in a quarter of an hour
_LONGEST_DESCRIPTION = 200


class KeyDraft(Message):
    """What a key is to be, as whoever makes it says it."""

    user_id: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    """The user in whose name it calls."""
    permission: Level = "guest"
    """The tools that it may call: those that ask for this level, or a lower one."""
    allowed_modules: frozenset[str] | Literal["*"] | None = None
    """The modules that it reaches, as `Caller.allowed_modules` has it."""
    agent: Annotated[str, Field(pattern=f"^{AGENT_NAME}(/{AGENT_NAME})*$", max_length=LONGEST)] | None = None
    """The agent whose profile takes from that, as `Caller.agent` has it; `None`: whichever a request names, or none."""
    role: Role = "none"
    """What it may do as an operator."""
    expires_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """When it ends, in seconds since the epoch; `None`: when it is revoked."""
    acts_for_others: bool = False
    """Whether it may call in the name of other users."""
    requests_per_second: Annotated[float, Field(ge=LEAST_RATE, le=MOST_LIMIT, allow_inf_nan=False)] | None = None
    """How many requests it may send in a second, over all gateways; `None`: as many as these take."""
    streams: Annotated[int, Field(ge=0, le=MOST_LIMIT)] | None = None
    """How many event streams it may have open at once, over all gateways; `None`: half of what each of these takes."""
    description: Annotated[str, Field(max_length=_LONGEST_DESCRIPTION)] = ""
    """What it is for, in words."""

    @field_validator("user_id", "description")
    @classmethod
    def _check_printable(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError("must have printable characters only")
        return text

    @field_validator("allowed_modules")
    @classmethod
    def _check_modules(cls, modules: frozenset[str] | Literal["*"] | None) -> frozenset[str] | Literal["*"] | None:
        if isinstance(modules, frozenset):
            if "*" in modules:
                return "*"
            if len(modules) > MOST_MODULES:
                raise ValueError(f"must be at most {MOST_MODULES} modules, or *")
            if wrong := sorted(name for name in modules if not is_module_name(name)):
                raise ValueError(f"{wrong[0][:80]!r} is no name of a module")
        return modules


class ApiKey(KeyDraft):
    """A key that was made. Its text is nowhere but with its holder."""

    id: str
    """What it is called; part of its text, and no secret."""
    created_at: float
    """When it was made, in seconds since the epoch."""
    created_by: str
    """Who has made it: `key <id>`, `token <subject>`, or `command line`."""

    @property
    def caller(self) -> Caller:
        """The caller that this key stands for."""
        return Caller(
            user_id=self.user_id,
            permission=self.permission,
            allowed_modules=self.allowed_modules,
            agent=self.agent,
        )

    def is_expired(self, now: float) -> bool:
        """Return whether the key has expired at `now` (the fleet's time)."""
        return self.expires_at is not None and now >= self.expires_at
