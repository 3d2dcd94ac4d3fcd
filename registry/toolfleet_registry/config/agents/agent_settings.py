"""Declares the settings of agents: their profiles, and the one of callers that name none; a part of `Settings`."""

import re
from typing import Annotated, Any

from pydantic import field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.agents.agent_profile import AGENT_NAME, MOST_PROFILES, AgentProfile, check_agent_name
from toolfleet_registry.config.setting_values import read_json


class AgentSettings(BaseSettings, defer_build=True):
    """Settings of agents' profiles in this process; profiles in the registry apply as well."""

    agents: Annotated[dict[str, AgentProfile], NoDecode] = {}
    """Agent's name -> its profile: `[agents.production]` with `tools`, `allowed_modules`, `permission_at_most` and `middleware`. Agents and workers have to know it: by the same file, or by `toolfleet agents put`."""
    default_agent: str | None = None
    """The profile of callers that name none, as older programs do. None: such callers have what they have."""

    trusted_middleware_namespaces: Annotated[frozenset[str], NoDecode] = frozenset()
    """Where classes may be that profiles name as middleware, such as `acme.middleware`: comma-separated or JSON. Nothing else is imported."""

    @field_validator("trusted_middleware_namespaces", mode="before")
    @classmethod
    def _read_namespaces(cls, value: Any) -> Any:
        if not isinstance(value, str) or value.lstrip().startswith("["):
            return read_json(value) if isinstance(value, str) else value
        return [name.strip() for name in value.split(",") if name.strip()]

    @field_validator("agents", mode="before")
    @classmethod
    def _read_agents(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @field_validator("agents")
    @classmethod
    def _check_agents(cls, agents: dict[str, AgentProfile]) -> dict[str, AgentProfile]:
        for name, profile in agents.items():
            check_agent_name(name)
            try:
                profile.check_selectors()
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from exc
        if len(agents) > MOST_PROFILES:
            raise ValueError(f"there can be at most {MOST_PROFILES} agents")
        return agents

    @field_validator("default_agent")
    @classmethod
    def _check_default(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(rf"{AGENT_NAME}(/{AGENT_NAME})*", name):
            raise ValueError("must be the name of an agent")
        return name
