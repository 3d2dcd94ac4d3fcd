"""The client's namespaces offer what operators can do, with the same parameters; each difference is listed, with its reason."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.contracts import ModuleStatus, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.contracts.jobs import Job
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
from toolfleet_tasks.approvals.views import ShownApproval
from toolfleet_tasks.client.canvas import FleetCanvas
from toolfleet_tasks.client.dead_letters import FleetDeadLetters
from toolfleet_tasks.client.jobs import FleetHooks, FleetJobs, FleetPrograms, FleetWakeups
from toolfleet_tasks.client.namespaces import FleetApprovals, FleetBegunCalls, FleetModules, FleetQueues
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
from toolfleet_tasks.dead_letters.store import DeadEntry
from toolfleet_tasks.operations.queue_overview import QueueOverview
from toolfleet_tasks.resources.modules import ShownModule
from toolfleet_tasks.resources.operation import AnyOperation
from toolfleet_tasks.resources.queues import ShownQueue
from toolfleet_tasks.resources.table import OPERATIONS
from toolfleet_tasks.wakeups.events import WakeupOutcome

NAMESPACES: Mapping[str, type] = {
    "jobs": FleetJobs,
    "programs": FleetPrograms,
    "hooks": FleetHooks,
    "wakeups": FleetWakeups,
    "approvals": FleetApprovals,
    "modules": FleetModules,
    "queues": FleetQueues,
    "begun_calls": FleetBegunCalls,
    "dead_letters": FleetDeadLetters,
    "canvas": FleetCanvas,
}

CALLER = "a client acts for a caller, an operator for all users"
BY = "a program names who makes the change; a request over REST has its user"
CALLS_ONLY = "the namespace has dead calls; those of wake-ups are in `fleet.wakeups`"
PAGES = "a program pages by `offset`, or reads all"
SEARCH = "a program filters what it has read"
STEPS = "the client makes all steps"
OPERATOR = "it is the operator's, who has the command line, REST and the console"
AGENT = "it is the agent's own: an operator has no use for it"
GATEWAY = "a gateway uses it for its clients"


@dataclass(frozen=True)
class Offered:
    """An operation that a client has, by which method. Each difference is named, with its reason."""

    operation: str
    method: str
    names: Mapping[str, str] = field(default_factory=dict)
    """The method's parameter for a field of the operation, where it has another name."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The operation's fields that the method does not take."""
    added: Mapping[str, str] = field(default_factory=dict)
    """The method's parameters that the operation does not have."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The operation's fields with another default."""
    answer: tuple[type, type] | None = None
    """What is in the operation's answer, and what is in the method's; none: a count, or nothing."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """The answer's fields that the method's answer has otherwise, or not."""

    def __str__(self) -> str:
        return f"{self.operation} {self.method}"


SHOWN = {
    "id": "`approval_id`",
    "tool": "`request.tool_name`",
    "arguments": "`request.arguments`: a client has them unhidden",
    "user_id": "`request.user_id`",
    "agent": "`request.caller.agent`",
    "conversation_id": "`request.conversation_id`",
    "requested_at": "`request.requested_at`",
    "expires_at": "`request.expires_at`",
    "binding": "`request.binding`",
    "missing": "it follows from `request` and `votes`",
    "may_decide": "it is of the user who asks over REST",
}
DECISION = {"decision": "each decision is a method of its own"}
LETTER = {
    "id": "`call_id`",
    "kind": CALLS_ONLY,
    "subject": "`tool_name`",
    "error": "`reason`",
    "body": "the letter itself",
    "replayable": "an unreadable letter is an `UnreadableLetter`",
}
AGE = {"min_age_seconds": SEARCH}
WORDS = {"about": SEARCH, "error": SEARCH}
BOTH = {"kind": SEARCH, "conversation_id": "`of_conversation` has it"}
KIND = {"kind": CALLS_ONLY}
OF_USER = {"user_id": "caller"}

OFFERED = [
    Offered(
        "listApprovals",
        "approvals.list",
        added={"viewer": "a request over REST has its user"},
        answer=(ShownApproval, ListedApproval),
        unanswered=SHOWN,
    ),
    Offered("getApproval", "approvals.show", answer=(ShownApproval, StoredApproval), unanswered=SHOWN),
    Offered(
        "decideApproval",
        "approvals.approve",
        left_out=DECISION,
        added={"approver": BY},
        answer=(ShownApproval, StoredApproval),
        unanswered=SHOWN,
    ),
    Offered(
        "decideApproval",
        "approvals.reject",
        left_out={**DECISION, "arguments": "they go with an approval only"},
        added={"approver": BY},
        answer=(ShownApproval, StoredApproval),
        unanswered=SHOWN,
    ),
    Offered(
        "listDeadLetters",
        "dead_letters.list",
        left_out={**KIND, **WORDS, **AGE, "cursor": PAGES},
        answer=(DeadEntry, DeadLetter),
        unanswered=LETTER,
    ),
    Offered(
        "listDeadLetters",
        "wakeups.dead",
        left_out={"kind": "these are those of wake-ups", **WORDS, **AGE, "cursor": PAGES},
        answer=(DeadEntry, KeptWake),
        unanswered={
            "id": "`wake_id`",
            "attempts": "`tries`",
            "subject": "`body` has it",
            "replayable": "`replay` says it of one that is not",
        },
    ),
    Offered(
        "getDeadLetter",
        "dead_letters.show",
        names={"letter_id": "call_id"},
        left_out=KIND,
        answer=(DeadEntry, DeadLetter),
        unanswered=LETTER,
    ),
    Offered(
        "replayDeadLetter",
        "dead_letters.replay",
        names={"letter_id": "call_id", "timeout_seconds": "timeout"},
        left_out=KIND,
        added={"caller": CALLER},
        defaults={"timeout_seconds": "the client's own for calls"},
        answer=(ToolResult, ToolResult),
    ),
    Offered("dropDeadLetter", "dead_letters.drop", names={"letter_id": "call_ids"}, left_out=KIND),
    Offered("dropDeadLetters", "dead_letters.drop_all", left_out=KIND),
    Offered("dropDeadLetters", "wakeups.drop_all", left_out={"kind": "these are those of wake-ups"}),
    Offered(
        "listAllJobs",
        "jobs.list",
        names={"user_id": "caller"},
        left_out={"wakeups": "`wakeups.outcomes` has them"},
        defaults={"ended": "an operator asks for what goes on", "user_id": CALLER},
        answer=(Job, Job),
    ),
    Offered("getAnyJob", "jobs.get", added={"caller": CALLER}, answer=(Job, Job)),
    Offered("cancelAnyJob", "jobs.cancel", added={"caller": CALLER}, answer=(Job, Job)),
    Offered(
        "cancelJobsOfUser",
        "jobs.cancel_workflow",
        names={"user_id": "caller"},
        defaults={"user_id": CALLER, "workflow_id": "one caller's jobs are never all ended by one slip"},
    ),
    Offered("listJobs", "jobs.list", names=OF_USER, defaults={"user_id": CALLER}, answer=(Job, Job)),
    Offered("getJob", "jobs.get", names=OF_USER, defaults={"user_id": CALLER}, answer=(Job, Job)),
    Offered("cancelJob", "jobs.cancel", names=OF_USER, defaults={"user_id": CALLER}, answer=(Job, Job)),
    Offered(
        "getWorkflow",
        "jobs.list",
        names=OF_USER,
        added=dict.fromkeys(("ended", "limit"), "the route has all of them"),
        defaults={"user_id": CALLER, "workflow_id": "without one, all jobs are listed"},
        answer=(Job, Job),
    ),
    Offered(
        "listAllPrograms",
        "programs.list",
        names={"user_id": "caller"},
        defaults={"ended": "an operator asks for what goes on", "user_id": CALLER},
        answer=(ToolProgram, ToolProgram),
    ),
    Offered("getAnyProgram", "programs.get", added={"caller": CALLER}, answer=(ToolProgram, ToolProgram)),
    Offered("cancelAnyProgram", "programs.cancel", added={"caller": CALLER}, answer=(ToolProgram, ToolProgram)),
    *(
        Offered(name, method, names=OF_USER, defaults={"user_id": CALLER}, answer=(ToolProgram, ToolProgram))
        for name, method in (
            ("listPrograms", "programs.list"),
            ("getProgram", "programs.get"),
            ("cancelProgram", "programs.cancel"),
        )
    ),
    Offered("cancelWorkflow", "jobs.cancel_workflow", names=OF_USER, defaults={"user_id": CALLER}),
    Offered(
        "explainTool",
        "modules.explain",
        names={"name": "tool_name", "user_id": "caller", "conversation_id": "conversation"},
        left_out={
            **dict.fromkeys(("agent", "permission", "modules", "key"), "`caller` has them"),
            "run_id": "`conversation` has it",
        },
        defaults={"user_id": CALLER},
        answer=(ToolExplanation, ToolExplanation),
    ),
    Offered("listModules", "modules.statuses", answer=(ShownModule, ModuleStatus)),
    Offered("refreshTools", "modules.refresh", answer=(ShownModule, ModuleStatus)),
    Offered("listWakeupsOfJob", "wakeups.outcomes", answer=(WakeupOutcome, WakeupOutcome)),
    Offered("listQueues", "queues.list", answer=(ShownQueue, QueueOverview)),
    *(
        Offered(
            "changeQueue",
            f"queues.{action}",
            names={"queue": "name"},
            left_out={"action": "each action is a method of its own"},
            added={"by": BY} if action != "drain" else {"by": BY, "wait_seconds": "a program waits for the end of it"},
        )
        for action in ("pause", "drain", "resume")
    ),
    Offered(
        "listWakeups",
        "wakeups.waiting",
        left_out={**BOTH, **WORDS, **AGE, "cursor": PAGES},
        answer=(KeptWake, KeptWake),
    ),
    Offered(
        "listWakeups",
        "wakeups.of_conversation",
        names={"limit": "most"},
        left_out={"kind": SEARCH, **WORDS, **AGE, "cursor": PAGES, "offset": "it goes with no conversation"},
        defaults={"conversation_id": "`waiting` has those of all"},
        answer=(KeptWake, KeptWake),
    ),
    Offered("getWakeup", "wakeups.show", answer=(KeptWake, KeptWake)),
    Offered("replayWakeup", "wakeups.replay"),
    Offered("dropWakeup", "wakeups.drop", names={"wake_id": "wake_ids"}, added={"by": BY}),
    *(
        Offered(
            operation,
            f"wakeups.{method}",
            left_out={**AGE, "cursor": STEPS, "limit": STEPS},
            added={"by": BY},
        )
        for operation, method in (("replayWakeups", "replay_waiting"), ("dropWakeups", "drop_waiting"))
    ),
]

NOT_OFFERED = {
    **dict.fromkeys(
        (
            *("listAgents", "getAgent", "listAgentVersions", "putAgent", "rollBackAgent", "removeAgent"),
            *(
                "listAudit",
                "listCalls",
                "forgetCallContents",
                "deleteArtifacts",
                "completeCallField",
                "countCalls",
                "showCall",
            ),
            *("listKeys", "createKey", "revokeKey", "listPlacedModules", "addModule", "removeModule"),
            *("getFleetStatus", "getToolState", "listToolEvents", "listToolVersions", "disableTool", "enableTool"),
            *("forgetTool", "approveTool", "rollBackTool", "pinModule", "unpinModule"),
        ),
        OPERATOR,
    ),
    **dict.fromkeys(("listTools", "getTool", "listModulesWithTools"), "`ToolFleet.tools` and `search` have them"),
    "listToolErrors": "`modules.statuses` has them",
    "reloadTools": OPERATOR,
    "getQueue": "`queues.list` has all of them in one answer",
    "replayDeadLetters": "it is for events, which `wakeups.replay` tries again",
}
"""The operations that a client does not have."""

NO_OPERATION = {
    **dict.fromkeys(("jobs.start", "wakeups.completions", "wakeups.inbox"), AGENT),
    **dict.fromkeys(("canvas.signature", "canvas.result_of"), AGENT),
    **dict.fromkeys(("approvals.keep_asked", "approvals.asked", "approvals.steps", "approvals.rules"), AGENT),
    **dict.fromkeys(("hooks.of_job", "hooks.complete", "hooks.fail"), GATEWAY),
    **dict.fromkeys((f"begun_calls.{name}" for name in ("begin", "tool", "reaches", "absence", "attach")), GATEWAY),
    **dict.fromkeys((f"begun_calls.{name}" for name in ("keep_deferred", "answer", "hidden_answers")), GATEWAY),
    **dict.fromkeys(("begun_calls.shown_ids", "begun_calls.ping"), GATEWAY),
    "approvals.count": "`listApprovals` has the count",
    "approvals.events": "the gateway has a stream of them",
    "modules.events": "the gateway has a stream of them",
}
"""The methods for which there is no operation."""


def method_of(name: str) -> Callable[..., Any]:
    namespace, _, method = name.partition(".")
    return getattr(NAMESPACES[namespace], method)  # type: ignore[no-any-return]


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(method_of(name)).parameters)
    del found["self"]
    return found


def fields_of(operation: AnyOperation) -> dict[str, Any]:
    """The parts of its path, and the fields of its query and body, with their defaults."""
    found: dict[str, Any] = dict.fromkeys(re.findall(r"{(\w+)}", operation.path), inspect.Parameter.empty)
    for model in filter(None, (operation.query, operation.body)):
        for name, each in model.model_fields.items():
            found[name] = inspect.Parameter.empty if each.is_required() else each.get_default()
    return found


def types_in(annotation: Any) -> Iterator[Any]:
    """The annotation, and all types in it."""
    yield annotation
    for each in get_args(annotation):
        yield from types_in(each)


def types_of_answer(operation: AnyOperation) -> set[Any]:
    model = operation.answer
    annotations = [model] if model is None else [model, *(each.annotation for each in model.model_fields.values())]
    return {each for annotation in annotations for each in types_in(annotation)}


def names_in(model: type) -> set[str]:
    if issubclass(model, BaseModel):
        return {*model.model_fields, *model.model_computed_fields}
    return {each.name for each in fields(model)} if is_dataclass(model) else set()


def attributes_of(model: type) -> set[str]:
    return names_in(model) | {name for name, each in vars(model).items() if isinstance(each, property)}


class TestClientOperations:
    """Holds the client's namespaces to the table of operations."""

    def test_each_operation_is_offered_or_listed(self) -> None:
        """A new operation is given to clients, or is listed as one that they do not have."""
        offered = {each.operation for each in OFFERED}

        assert offered | NOT_OFFERED.keys() == OPERATIONS.keys()
        assert not offered & NOT_OFFERED.keys()

    def test_each_method_has_an_operation_or_is_listed(self) -> None:
        """A new method is an operation too, or is listed as the client's own."""
        methods = {
            f"{namespace}.{name}"
            for namespace, kind in NAMESPACES.items()
            for name, each in vars(kind).items()
            if callable(each) and not name.startswith("_")
        }
        offered = {each.method for each in OFFERED}

        assert offered | NO_OPERATION.keys() == methods
        assert not offered & NO_OPERATION.keys()

    @pytest.mark.parametrize("offered", OFFERED, ids=str)
    def test_a_method_takes_what_its_operation_takes(self, offered: Offered) -> None:
        """Each field of the query, the body and the path is a parameter; each parameter is such a field."""
        asked, parameters = fields_of(OPERATIONS[offered.operation]), parameters_of(offered.method)

        assert asked.keys() >= {*offered.names, *offered.left_out, *offered.defaults}, "the table names what is gone"
        taken = {offered.names.get(name, name) for name in asked.keys() - offered.left_out.keys()}
        assert taken | offered.added.keys() == parameters.keys()
        assert not taken & offered.added.keys()

    @pytest.mark.parametrize("offered", OFFERED, ids=str)
    def test_a_method_has_the_defaults_of_its_operation(self, offered: Offered) -> None:
        """What is left out means the same, but for the listed differences."""
        asked, parameters = fields_of(OPERATIONS[offered.operation]), parameters_of(offered.method)
        differing = {
            name
            for name, default in asked.items()
            if (taken := parameters.get(offered.names.get(name, name))) is not None
            and name not in offered.left_out
            and taken.default != default
        }

        assert differing == offered.defaults.keys()

    @pytest.mark.parametrize("offered", [each for each in OFFERED if each.answer], ids=str)
    def test_a_method_answers_what_its_operation_answers(self, offered: Offered) -> None:
        """Both answers have the same in them: one type, or two of which each field of the operation's has its place."""
        theirs, ours = offered.answer or (object, object)
        assert theirs in types_of_answer(OPERATIONS[offered.operation])
        assert ours in set(types_in(get_type_hints(method_of(offered.method))["return"]))
        assert names_in(theirs) - attributes_of(ours) == offered.unanswered.keys()
