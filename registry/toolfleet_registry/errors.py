"""Defines the errors that the fleet raises.

Programming and set-up errors raise; what happens to a call never does, it is a `ToolResult`::

    FleetError
    ├── SettingsError        a setting is wrong: the process must not start
    ├── InvalidToolName      a name that is not 'module.tool_name'
    ├── ManifestRefused      a module's manifest breaks a rule
    ├── BodyTooLarge         an HTTP body passed its limit
    ├── BodyUnreadable       an HTTP body cannot be decoded
    ├── NoRedis              no Redis server is available on this machine
    ├── FleetUnavailable     the fleet's Redis does not answer
    │   ├── RegistryAway     the registry's store does not answer, or is another fleet's
    │   ├── StoreAway        a store of idempotency records does not answer
    │   └── BrokerAway       RabbitMQ does not tell how many messages wait in its queues
    ├── ArtifactStoreAway    the store of large results does not answer, or refuses
    ├── ArtifactMissing      the store has no such object, or another one than its record says
    ├── RegistryEventsLost   events of the registry are gone that a follower has not read
    ├── OperationRefused     an operator's request cannot be done
    │   ├── NoSuchEntry      it is about something that is not there
    │   ├── InvalidQuestion  it makes no sense as it is
    │   ├── BeyondOwnRights  an API key would have more rights than its maker
    │   ├── RoleNeeded       the operator's role is too low for it
    │   ├── InvalidArguments the tool does not take the arguments that a call is to have
    │   ├── ApprovalNotTaken a decision about a call that waits no more, or by a user who may not decide
    │   ├── SeveralLetters   dead letters of different kinds have this id
    │   ├── NotReplayable    a dead event cannot be sent again
    │   ├── NoSuchQueue      no module or lane of this name has a queue
    │   ├── NoSuchProfile    the registry has no profile, or no such version of it
    │   └── ProfileChanged   an agent's profile was changed by another operator meanwhile
    ├── NotPublished         a call is surely not in its queue
    │   └── BrokerUnavailable  because the broker is away, or takes nothing now
    ├── PublishUnconfirmed   a call may or may not be in its queue
    │   └── BegunBefore      a call that is published again was started before, or has ended
    ├── ToolNotKnown         a worker does not know yet who may use a tool
    ├── UnknownAgent         a caller names an agent that has no profile here
    ├── MessageRefused       a message in a queue is not what a holder of the signing key sent
    │   └── MessageTooLarge  it is larger than an agent publishes it
    ├── NoSuchDeadLetter     no dead letter has this call id
    ├── InputNotTaken        an answer to a question that the call does not ask, or that has another answer
    ├── CallRefused          a call cannot be made a signature: its `result` says why
    ├── LinkFailed           a call of a chain or a chord has not succeeded; in Celery's results only
    ├── JobRefused           a job cannot be made as requested: its `result` says why
    ├── WebhookRefused       a webhook does not come from the fleet
    │   └── WakeRefused      nor does a wake-up
    ├── WakeBusy             a wake-up is being processed
    ├── WakeLost             a wake-up has become another delivery's
    ├── PersonalDataBlocked  a text with personal data must not go on: says where, and of which kind
    ├── AuthRefused          a gateway does not let a request in: says with which status and problem
    ├── ToolRateLimited      a tag's tool is at its limit: raised by `TagRegistry.execute` only
    ├── ToolNotFound         a tag's tool is not registered: the same
    ├── ChildFailed          a process of a local fleet does not start, or does not stay alive
    └── FolderInUse          a local fleet runs in this folder already
"""

import math
from pathlib import Path
from typing import Literal


class FleetError(Exception):
    """The base of all errors of the fleet and of its use."""


class SettingsError(FleetError):
    """A setting is wrong; the message names it and says what it must be."""


class InvalidToolName(FleetError, ValueError):
    """A tool's name is not of the form 'module.tool_name'."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Invalid tool name format: {name}. Expected 'module.tool_name'.")


class ManifestRefused(FleetError):
    """A module's manifest breaks a rule; the message says which."""


class BodyTooLarge(FleetError):
    """An HTTP body is larger than `limit` bytes, as sent or after decompression."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"body is larger than {limit} bytes")


class BodyUnreadable(FleetError):
    """An HTTP body's content encoding is unknown, or its data is broken."""


class NoRedis(FleetError):
    """No Redis server: set TOOLFLEET_REDIS_URL, or install redis-server; with Python 3.11 and 3.12 the 'toolfleet[worker]' extra has one."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


class FleetUnavailable(FleetError):
    """The fleet's Redis does not answer; the message names its address."""


class RegistryAway(FleetUnavailable):
    """The registry's own server or database does not answer, or is not this fleet's; the message says which."""


class StoreAway(FleetUnavailable):
    """A store of idempotency records does not answer; the message says why."""


class BrokerAway(FleetUnavailable):
    """RabbitMQ does not say what waits in its queues; the message says why."""


class ArtifactStoreAway(FleetError):
    """The store of large results does not answer, or refuses."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The store of artifacts does not answer ({reason}).")


class ArtifactMissing(FleetError):
    """The store has no such object, or another one than its record says."""


class OperationRefused(FleetError):
    """An operator's request cannot be done; the message says why, and `error_code` says it to programs."""

    error_code: str = "operation_refused"
    hint: str | None = None
    """What to know in addition, which no log gets: it may have arguments of a call."""


class NoSuchEntry(OperationRefused):
    """The operator's request is about something that is not there, or not any more."""

    error_code = "not_found"


class InvalidQuestion(OperationRefused):
    """The operator's request makes no sense as it is; nothing was done."""

    error_code = "invalid_request"


class BeyondOwnRights(OperationRefused):
    """An API key would have more rights than its maker; the message says which."""

    error_code = "beyond_own_rights"


class RoleNeeded(OperationRefused):
    """The operator does not have the role that is needed."""

    error_code = "role_needed"
    hint = "An admin makes keys with a role: `toolfleet keys create --role`."

    def __init__(self, role: str) -> None:
        super().__init__(f"This needs the role {role!r}, which the request's key does not have.")


class InvalidArguments(OperationRefused):
    """The tool does not take the arguments that an operator gives to a call; the message says which, and why."""

    error_code = "invalid_arguments"


class NoSuchQueue(OperationRefused):
    """There is no queue of this name.

    Args:
        name: The name.
        nearest: Similar names, the most similar first.

    """

    error_code = "unknown_queue"

    def __init__(self, name: str, nearest: list[str]) -> None:
        self.nearest = nearest
        hint = f" Perhaps {' or '.join(map(repr, nearest))}?" if nearest else " `toolfleet queues list` shows all."
        super().__init__(f"There is no queue {name[:100]!r}.{hint}")


class NoSuchProfile(OperationRefused):
    """The registry keeps no profile of this agent, or no such version of it."""

    error_code = "not_found"


class ProfileChanged(OperationRefused):
    """An agent's profile has changed since the caller read it.

    Args:
        name: The agent.
        version: The version in force, 0 for none; None if it is unknown.

    """

    error_code = "profile_changed"

    def __init__(self, name: str, version: int | None) -> None:
        self.version = version
        there = "is another one" if version is None else f"has version {version}" if version else "is not there"
        super().__init__(f"The profile of agent {name[:80]!r} {there} by now: look at it again.")


class NotPublished(FleetError):
    """The broker could not be reached, so the call is not in its queue."""


class BrokerUnavailable(NotPublished):
    """The broker is away or takes nothing now; `passes`: within seconds, most often, so that it is worth another try."""

    def __init__(self, message: str, *, passes: bool) -> None:
        self.passes = passes
        super().__init__(message)


class PublishUnconfirmed(FleetError):
    """The broker was sent the call and did not answer: it may be in its queue."""


class BegunBefore(PublishUnconfirmed):
    """The ledger has a record of the call: it was started, or has ended, and is not published again."""


class ToolNotKnown(FleetError):
    """A worker does not know yet who may use a tool: it may in `seconds`, when the call shall come back."""

    def __init__(self, tool_name: str, seconds: float) -> None:
        self.tool_name, self.seconds = tool_name, seconds
        super().__init__(f"Who may use {tool_name!r} is not known yet.")


class UnknownAgent(FleetError):
    """A caller names an agent that has no profile in this process, or one that cannot stand there: it may do nothing."""

    def __init__(self, agent: str, reason: str) -> None:
        self.agent = agent
        super().__init__(f"Agent {agent[:128]!r} may do nothing here: {reason}.")


class MessageRefused(FleetError):
    """A message is not signed, was changed, or belongs to another call; the message says which."""


class MessageTooLarge(MessageRefused):
    """A message has more arguments, or a longer name of its user or intention, than an agent publishes."""


class NoSuchDeadLetter(FleetError):
    """There is no dead letter of this call: it was dropped, or never existed.

    Args:
        call_id: The call.

    """

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        super().__init__(
            f"There is no dead letter {call_id!r}: `toolfleet dead-letters list` shows those that are kept."
        )


class SeveralLetters(OperationRefused):
    """Dead letters of different kinds have this id: the operator has to name the kind."""

    error_code = "several_letters"

    def __init__(self) -> None:
        super().__init__("A call and a wake-up that was to make it have this id: say the `kind`.")


class NotReplayable(OperationRefused):
    """Dead events cannot be tried again: they cannot be read, or are a call whose arguments were not kept; they can be dropped."""

    error_code = "not_replayable"


class WebhookRefused(FleetError):
    """A webhook is not signed as the fleet signs it, is too old, or cannot be read; it must be answered with an error."""


class WakeRefused(WebhookRefused):
    """A wake-up is not signed as the fleet signs it, is too old, or is none; it must be answered with an error."""


class WakeBusy(FleetError):
    """Another delivery of this wake-up is being processed: answer 409, and `Retry-After` with the seconds.

    Args:
        wake_id: The wake-up.
        seconds: When to come back; `retry_after_seconds` is a whole number of at least 1.

    """

    def __init__(self, wake_id: str, seconds: float) -> None:
        self.wake_id = wake_id
        self.retry_after_seconds = max(math.ceil(seconds), 1)
        super().__init__(f"The wake-up {wake_id!r} is being acted on: come back in {self.retry_after_seconds} s.")


class WakeLost(FleetError):
    """Another delivery of this wake-up has taken over, or it was not marked as done: answer 503.

    Args:
        wake_id: The wake-up.

    """

    def __init__(self, wake_id: str) -> None:
        self.wake_id = wake_id
        super().__init__(f"The wake-up {wake_id!r} is not this delivery's any more, or was not marked as done.")


class InputNotTaken(FleetError):
    """An answer to a question of a call is not accepted.

    Args:
        call_id: The call.
        reason: `answered` (with another answer, before), `not_asked` (the call does not ask this question), `ended` or
            `unknown`.

    """

    def __init__(self, call_id: str, reason: Literal["answered", "not_asked", "ended", "unknown"]) -> None:
        self.call_id, self.reason = call_id, reason
        why = {
            "answered": "that question was answered otherwise before",
            "not_asked": "it does not ask that",
            "ended": "it has ended",
            "unknown": "nothing is known of it",
        }
        super().__init__(f"The call {call_id!r} does not take this answer: {why[reason]}.")


class ApprovalNotTaken(OperationRefused):
    """A decision about a call is not accepted.

    Args:
        approval_id: The call.
        reason: `approved`, `rejected`, `expired`, `ended`: the call waits no more. `forbidden`: this user may not decide.
            `raced`: too many users decide at this moment. `changed`: the arguments are not those that were shown. `unseen`:
            the request must say which arguments were shown. `repeated`: this decision was made before. `lost`: Redis has
            lost the call. `unknown`: there is no such call.
        text: The message, if it is not that of the reason.
        more: An addition to the message of the reason.
        hint: What else to know, perhaps with arguments of the call; no log gets it.

    """

    def __init__(
        self, approval_id: str, reason: str, text: str | None = None, *, more: str = "", hint: str | None = None
    ) -> None:
        self.approval_id, self.reason, self.hint = approval_id, reason, hint
        self.error_code = "approval_forbidden" if reason == "forbidden" else "approval_not_taken"
        said = f"The call {approval_id[:80]!r} is not decided so: {_NOT_DECIDED.get(reason, reason)}{more}."
        super().__init__(text or said)


_NOT_DECIDED = {
    "approved": "it was approved before",
    "rejected": "it was rejected before",
    "expired": "its time is over",
    "ended": "it has ended",
    "changed": "its arguments were changed since",
    "unseen": "others decide about it, too, or have edited it; look at it, and send the binding that you are shown as `seen`",
    "repeated": "this very decision was taken before",
    "raced": "too many decide about it at this moment",
    "lost": "Redis has lost it",
    "unknown": "no such call waits for an approval",
}


class RegistryEventsLost(FleetError):
    """Events of the registry are gone: more have come than are kept, or the registry's data was lost.

    Args:
        after: The id of the last event that was read.

    """

    def __init__(self, after: str) -> None:
        self.after = after
        super().__init__(
            f"Events of the registry after {after!r} are gone: read all tools again, and continue from there."
        )


class ToolRateLimited(FleetError):
    """A tool's cooldown, daily limit or budget is used up.

    Args:
        tool_name: The tool.
        message: The message.
        retry_after_seconds: When it is free again, if that is known.

    """

    def __init__(self, tool_name: str, message: str, *, retry_after_seconds: float | None = None) -> None:
        self.tool_name = tool_name
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class ToolNotFound(FleetError):
    """No tool of this name is registered.

    Args:
        tool_name: The name.

    """

    def __init__(self, tool_name: str) -> None:
        self.tool_name = tool_name
        super().__init__(f"There is no tool {tool_name!r}.")


class PersonalDataBlocked(FleetError, ValueError):
    """Personal data must not go on: of this `kind`, at this JSON `pointer`. Neither has, nor shows, the value."""

    def __init__(self, kind: str, pointer: str, *, is_name: bool = False) -> None:
        self.kind, self.pointer, self.is_name = kind, pointer, is_name
        place = f"at {pointer!r}" if pointer else "at the top"
        member = "the name of a member of what is " if is_name else ""
        super().__init__(f"Personal data of the kind {kind!r} is blocked: {member}{place}.")


class ChildFailed(FleetError):
    """A process of the local fleet does not start or does not stay alive; the message ends with its log's last lines."""


class FolderInUse(FleetError):
    """Another fleet has its data in this folder."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        self.pid = pid
        by = "" if pid is None else f" (process {pid})"
        super().__init__(f"A fleet is running in {folder} already{by}: use it, or stop it first.")
