"""Defines the module `scheduler`: jobs as tools that a model can call, and polls of an address of the public internet.

No worker fetches anything: that module decides which addresses may be reached, and how much is read.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolfleet_registry.contracts import Effect, ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import SCHEDULER
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings

if TYPE_CHECKING:
    from toolfleet_registry.contracts.jobs import Poll

CHECK_URL = "research.check_url"
"""The tool that fetches an address and says its status and a field of what was there."""

_LONGEST_URL = 2_000  # characters
_STATUSES = range(200, 600)
_MOST_STATUSES = 20

ADD_JOB = f"{SCHEDULER}.add_job"
_NEWER = frozenset({"delay_seconds", "max_runs", "on_failure_message", "workflow_id", "poll_url"})
MOST_REQUESTS = 10  # of one job's `on_complete`
MOST_LISTED = 100  # jobs

_ADD_JOB = """
    Have something done later, or watch long work until it is over, without holding the conversation: you are told at
    the end, in this conversation, and need not ask in between. Three uses. To watch work that another tool has begun,
    give the tool that says how it is doing as `tool_name`, with its `arguments`: it is called every `interval_seconds`
    until its result fulfils `until`; to watch an address, give `poll_url`. To call a tool at a time, give `at`, `delay_seconds` or `cron` with `tool_name`. For a
    reminder, give one of these with a `message`. The job may only call tools that you could call now for this user.
    Returns the job; its `job_id` is for get_job and cancel_job.
"""
_LIST_JOBS = "List this user's jobs, the newest first: those that have not ended, and with `ended` the others, too."
_GET_JOB = "Look at one of this user's jobs: where it is, when it is due next, and what it came to if it has ended."

_CANCEL_JOB = """
    End one of this user's jobs; nobody is told. A job that has ended stays as it is. What the job's tools have begun
    elsewhere goes on.
"""

_CANCEL_WORKFLOW = """
    End all of this user's jobs with this `workflow_id`; nobody is told. Those that have ended stay as they are. Returns how
    many were ended.
"""

_TOOL_NAME = "The tool to call, as `module.tool`. Left out for a reminder."
_ARGUMENTS = "The arguments of that tool, the same in every call."
_POLL_URL = "A public http or https address to fetch until it answers as expected, in place of `tool_name`."
_EXPECTED_STATUS = (
    "With `poll_url`: the status that ends it, or a list of these; 200 if left out. Redirects are followed."
)
_EXPECTED_FIELD = "With `poll_url`: a field of the JSON that is there, such as `a.b`, which must have `expected_value`."
_EXPECTED_VALUE = "What that field must be, or a list of which it must be one."
_INTERVAL = "Seconds between two calls; 30 if left out."
_BACKOFF = "Each wait is so many times as long as the one before; 1 if left out."
_UNTIL = (
    'When the work is over, by the tool\'s result: {"field": [values]}, where `a.b` is a field within a field, or a JMESPath '
    'expression that must be true. {"status": ["completed", "failed"]} if left out; at a time that is given '
    "the first result is the end."
)
_FAILED_WHEN = 'When it has failed, in the same form; {"status": ["failed", "error", "cancelled"]} if left out.'
_MAX_SECONDS = "After so many seconds the job gives up, and you are told; 86400, a day, if left out."
_ON_COMPLETE = (
    'What happens at the end, once: "resume_conversation" wakes you in this conversation with the result, "notify" only '
    'tells the user, {"tool_name": …, "arguments": …} calls a tool if the job completed; or a list of these. '
    "resume_conversation if left out."
)
_MESSAGE = (
    "What you, or the user, are to be told at the end: write what is to be done then. Without it the fleet words it. "
    "{result} is filled in with the last result, {result.a.b} with a field of it, {job_id} with the job's id."
)
_ON_FAILURE_MESSAGE = "The same, if the job has failed or timed out; `message` if left out."
_AT = "When, as ISO 8601 with an offset: 2027-03-01T09:00:00+01:00. Not together with `delay_seconds` or `cron`."
_DELAY = "When, in seconds from now. Not together with `at` or `cron`."
_MAX_RUNS = "After so many rounds of `cron` the job has completed; without it, it goes on until it is cancelled."
_CRON = (
    "When, again and again: minute, hour, day of the month, month, day of the week; "
    '"30 9 * * mon-fri" is half past nine on working days.'
)
_TIMEZONE = "The IANA name of the time zone of `cron`, such as Europe/Berlin; UTC if left out."
_WORKFLOW = (
    "A name of your own for jobs that belong together: list_jobs shows them by it, cancel_workflow ends them, and if one fails "
    "or times out the others that have not ended are cancelled."
)
_JOB_ID = "As add_job and list_jobs give it."

_ENDS: list[dict[str, Any]] = [
    {"type": "string", "enum": ["resume_conversation", "notify"]},
    {
        "type": "object",
        "properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object", "x-sensitive": True}},
        "required": ["tool_name"],
        "additionalProperties": False,
    },
]
_STATUS: dict[str, Any] = {"type": "integer", "minimum": 200, "maximum": 599}
_WORKFLOW_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
_TIME = {"type": "string", "format": "date-time"}
_JOB: dict[str, Any] = {
    "type": "object",
    "properties": {
        "job_id": {"type": "string"},
        "state": {
            "type": "string",
            "enum": ["starting", "waiting", "polling", "completed", "failed", "timed_out", "cancelled"],
        },
        "name": {"type": "string"},
        "workflow_id": {"type": "string"},
        "tool_name": {"type": "string"},
        "cron": {"type": "string"},
        "timezone": {"type": "string"},
        "created_at": _TIME,
        "due_at": _TIME,
        "deadline_at": _TIME,
        "ended_at": _TIME,
        "calls": {"type": "integer", "description": "How often the tool was called."},
        "runs": {"type": "integer", "description": "How many rounds have ended."},
        "max_runs": {"type": "integer"},
        "result": {"description": "The last call's, of a job that has ended."},
        "error": {"type": "string"},
        "error_code": {"type": "string"},
    },
    "required": ["job_id", "state", "created_at", "deadline_at", "calls"],
}
_JOBS: dict[str, Any] = {
    "type": "object",
    "properties": {"jobs": {"type": "array", "items": _JOB}},
    "required": ["jobs"],
}
_CANCELLED: dict[str, Any] = {
    "type": "object",
    "properties": {"cancelled": {"type": "integer", "description": "How many jobs were ended."}},
    "required": ["cancelled"],
}


def url_poll(
    url: str, *, status: int | list[int] = 200, field: str | None = None, value: Any = None, **poll: Any
) -> "Poll":
    """Make a poll that is over when a URL answers with a status and, if it is given, with a value in its JSON.

    Args:
        url: The address, in the public internet.
        status: The status, or several of which it must have one.
        field: A path in the answer's JSON, such as `a.b.0`.
        value: The value of that field: a text, a number, a truth value, or a list of which it must have one.
        poll: Other fields of `Poll`, such as `interval_seconds`.

    Returns:
        The poll, for a job.

    Raises:
        ValueError: An argument is invalid; the message is one sentence.

    """
    from toolfleet_registry.contracts.jobs import Poll  # of those who make jobs

    if len(url) > _LONGEST_URL or not is_http_url(url):
        raise ValueError(f"`poll_url` must be an http or https address of at most {_LONGEST_URL:,} characters.")
    statuses = status if isinstance(status, list) else [status]
    if not 0 < len(statuses) <= _MOST_STATUSES or any(one not in _STATUSES for one in statuses):
        raise ValueError("The expected status is a number from 200 to 599, or a list of 1 to 20 of these.")
    if (field is None) != (value is None):
        raise ValueError("The expected field and the expected value go together.")
    arguments, until = {"url": url}, dict[str, Any](status=statuses)
    if field is not None:
        arguments, until = {**arguments, "field": field}, {**until, "value": value}
    return Poll(tool_name=CHECK_URL, arguments=arguments, until=until, failed_when=None, **poll)


def probe_scheduler(settings: Settings) -> dict[str, ModuleManifest]:
    """Return the scheduler's manifest, in addition to the results of `discover`; empty without the setting."""
    return {SCHEDULER: scheduler_manifest(settings.scheduler_permission)} if settings.scheduler else {}


def is_newer_job(tool_name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call asks for a job that workers of version 1 would misread: they know fewer arguments."""
    return tool_name == ADD_JOB and not _NEWER.isdisjoint(arguments)


def scheduler_manifest(permission: str) -> ModuleManifest:
    """Return the scheduler's tools, for callers with `permission`."""
    tools = [
        _tool(permission, "add_job", _ADD_JOB, _add_job_schema(), _JOB, "once"),
        _tool(permission, "cancel_job", _CANCEL_JOB, _job_id_schema(), _JOB, "idempotent"),
        _tool(permission, "cancel_workflow", _CANCEL_WORKFLOW, _workflow_schema(), _CANCELLED, "idempotent"),
        _tool(permission, "get_job", _GET_JOB, _job_id_schema(), _JOB, "read"),
        _tool(permission, "list_jobs", _LIST_JOBS, _list_schema(), _JOBS, "read"),
    ]
    return ModuleManifest(module_name=SCHEDULER, description="Long work, reminders and recurring work.", tools=tools)


def _tool(
    permission: str, method: str, description: str, arguments: dict[str, Any], result: dict[str, Any], effect: Effect
) -> ToolDefinition:
    return ToolDefinition(
        name=f"{SCHEDULER}.{method}",
        description=" ".join(description.split()),
        required_permission=permission,
        input_schema=arguments,
        output_schema=result,
        effect=effect,
        tags=["jobs"],
    )


def _add_job_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 200, "description": "A short name, for people."},
            "tool_name": {"type": "string", "description": _TOOL_NAME},
            "arguments": {"type": "object", "x-sensitive": True, "description": _ARGUMENTS},
            "poll_url": {"type": "string", "maxLength": 2_000, "description": _POLL_URL},
            "expected_status": {
                "anyOf": [_STATUS, {"type": "array", "items": _STATUS, "minItems": 1, "maxItems": 20}],
                "description": _EXPECTED_STATUS,
            },
            "expected_field": {"type": "string", "minLength": 1, "maxLength": 200, "description": _EXPECTED_FIELD},
            "expected_value": {"type": ["string", "number", "boolean", "array"], "description": _EXPECTED_VALUE},
            "interval_seconds": {"type": "number", "exclusiveMinimum": 0, "description": _INTERVAL},
            "backoff": {"type": "number", "minimum": 1, "maximum": 10, "description": _BACKOFF},
            "until": {"anyOf": [{"type": "object"}, {"type": "string"}], "description": _UNTIL},
            "failed_when": {"anyOf": [{"type": "object"}, {"type": "string"}], "description": _FAILED_WHEN},
            "max_seconds": {"type": "number", "exclusiveMinimum": 0, "description": _MAX_SECONDS},
            "on_complete": {
                "anyOf": [
                    *_ENDS,
                    {"type": "array", "items": {"anyOf": _ENDS}, "minItems": 1, "maxItems": MOST_REQUESTS},
                ],
                "description": _ON_COMPLETE,
            },
            "message": {"type": "string", "maxLength": 10_000, "description": _MESSAGE},
            "on_failure_message": {"type": "string", "maxLength": 10_000, "description": _ON_FAILURE_MESSAGE},
            "at": {"type": "string", "description": _AT},
            "delay_seconds": {"type": "number", "exclusiveMinimum": 0, "description": _DELAY},
            "cron": {"type": "string", "maxLength": 200, "description": _CRON},
            "max_runs": {"type": "integer", "minimum": 1, "description": _MAX_RUNS},
            "timezone": {"type": "string", "maxLength": 100, "description": _TIMEZONE},
            "workflow_id": {**_WORKFLOW_ID, "description": _WORKFLOW},
        },
        "additionalProperties": False,
    }


def _job_id_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"job_id": {"type": "string", "minLength": 1, "maxLength": 200, "description": _JOB_ID}},
        "required": ["job_id"],
        "additionalProperties": False,
    }


def _workflow_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"workflow_id": {**_WORKFLOW_ID, "description": "As add_job was given it."}},
        "required": ["workflow_id"],
        "additionalProperties": False,
    }


def _list_schema() -> dict[str, Any]:
    limit = {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_LISTED,
        "description": "How many at most; 20 if left out.",
    }
    return {
        "type": "object",
        "properties": {
            "ended": {"type": "boolean", "description": "Whether to list those that have ended, too."},
            "limit": limit,
            "workflow_id": {**_WORKFLOW_ID, "description": "Only the jobs of this workflow."},
        },
        "additionalProperties": False,
    }
