"""Defines samples of what gateways read in the registry: API keys, agents' profiles, specifications of tools."""

from toolfleet_registry.access import ApiKey
from toolfleet_registry.agents.stored_profiles import (
    ProfileEntry,
    ProfileHistory,
    ProfileVersion,
    agent_seal,
    read_history,
    read_profile,
    written,
)
from toolfleet_registry.api_keys import KeyEntry, key_seal, read_entry
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.specs import ToolSpec
from toolfleet_registry.store import rules
from wire.stored.samples.forms import StoredForm, needed
from wire.stored.samples.job_forms import AT

_UNSIGNED = TextSeal(None, purpose="")
KEY = ApiKey(id="k1", user_id="ada", created_at=AT, created_by="command line")
FILLED_KEY = ApiKey(
    id="k1",
    user_id="ada",
    permission="owner",
    allowed_modules=frozenset({"owls"}),
    agent="production",
    role="operator",
    expires_at=AT + 86_400,
    acts_for_others=True,
    requests_per_second=5.0,
    streams=2,
    description="for the night shift",
    created_at=AT,
    created_by="key k0",
)
_READING = ["tag:reading"]
_MIDDLEWARE = [
    {
        "name": "tool_retry",
        "tools": _READING,
        "max_retries": 2,
        "backoff_factor": 3.0,
        "initial_delay_seconds": 0.5,
        "max_delay_seconds": 9.0,
        "jitter": False,
        "retry_on": ["busy"],
    },
    {"name": "tool_call_limit", "tools": _READING, "run_limit": 3, "thread_limit": 9, "exit_behavior": "end"},
    {"name": "limits", "tools": _READING, "daily_limit": 5, "cooldown_seconds": 1, "cost": "cheap"},
    {"name": "gate", "tools": _READING, "fails": "open"},
    {
        "name": "pii",
        "tools": _READING,
        "pii_types": ["email"],
        "patterns": {"owl": "owl-[0-9]+"},
        "strategy": "hash",
        "apply_to": ["result"],
        "regions": ["DE"],
    },
    {
        "name": "human_in_the_loop",
        "tools": _READING,
        "approve_tools": ["git.push"],
        "approvers": {"permission": "owner", "users": ["bob"], "keys": ["k1"]},
        "quorum": 2,
        "expires_seconds": 600,
        "self_approval": True,
    },
    {"name": "owls.middleware:Hush", "tools": _READING, "runs_in": "agent", "loudness": 0.5},
]
PROFILE = AgentProfile.model_validate(
    {
        "description": "finds things out",
        "mode": "all",
        "tools": ["git.*", "!git.push"],
        "allowed_modules": ["git"],
        "permission_at_most": "user",
        "middleware": _MIDDLEWARE,
    }
)
_FIRST = ProfileVersion(version=1, at=AT, by="command line", profile=AgentProfile())
_LAST = ProfileVersion(version=3, at=AT + 9, by="key k1", profile=PROFILE, rolled_back_from=2)
_REPEATING = ProfileVersion(
    version=4,
    at=AT + 10,
    by="key k1",
    profile=AgentProfile.model_validate({"middleware": [{"name": "tool_retry", "undeclared": True}]}),
)
_GONE = ProfileVersion(version=2, at=AT + 5, by="key k1")
_SPEC = ToolSpec(
    tool_name="owls.echo",
    version="1.2",
    description="Says it again.",
    input_schema={"type": "object"},
    output_schema={},
    tags=["reading"],
    deprecated=True,
    successor="owls.repeat",
    details={"required_permission": "user"},
)


def _key_seal(key: str | None) -> TextSeal:
    return key_seal(SigningSettings(signing_key=key))


def _agent_seal(key: str | None) -> TextSeal:
    return agent_seal(SigningSettings(signing_key=key))


GATEWAY_FORMS: tuple[StoredForm, ...] = (
    StoredForm(
        "api key",
        {"plain": KeyEntry(digest="9" * 64, key=KEY), "filled": KeyEntry(digest="9" * 64, key=FILLED_KEY)},
        lambda entry: entry.model_dump_json(exclude_defaults=True),
        lambda text: needed(read_entry("k1", text, _UNSIGNED)),
        "refused",
        _key_seal,
    ),
    StoredForm(
        "agent profile",
        {
            "plain": ProfileEntry(name="research", version=_FIRST),
            "filled": ProfileEntry(name="research", version=_LAST),
            "repeating": ProfileEntry(name="research", version=_REPEATING),
        },
        written,
        lambda text: ProfileEntry(name="research", version=needed(read_profile("research", text, _UNSIGNED))),
        "refused",
        _agent_seal,
    ),
    StoredForm(
        "agent history",
        {"plain": ProfileHistory(name="research", versions=(_FIRST, _GONE, _LAST))},
        written,
        lambda text: needed(read_history("research", text, _UNSIGNED)),
        "refused",
        _agent_seal,
    ),
    StoredForm(
        "tool specification",
        {"plain": _SPEC},
        rules.text_of,
        rules.read_spec,
        "ignored",
    ),
)
