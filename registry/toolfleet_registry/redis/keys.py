"""Builds every Redis key and channel of ours, and says whether it expires, and if it lasts, why.

Celery's and kombu's own (queues, `unacked*`, `_kombu.binding.*`, `celery-task-meta-<call id>`) are theirs. All begin with a fleet's prefix.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

OURS = "toolfleet:"
"""The beginning of our own keys, behind the fleet's prefix."""

_SEPARATORS = ":_-."  # Celery puts a `_` after a prefix that ends in none of these, before the names of results


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The pattern of one kind of keys, without the prefix; it is compiled where a key's rule is looked for.

    `lasting` says why such a key has no TTL; `None`: it must have one.

    `since`: the wire version that introduced it. A kind whose values an older version could misread gets another name.
    """

    text: str
    lasting: str | None = None
    since: int = 1

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression that such keys match."""
        return _compiled(self.text)


@functools.cache
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _ours(pattern: str, *, lasting: str | None = None, since: int = 1) -> KeyRule:
    """Return the rule for keys that begin with `OURS`."""
    return KeyRule(OURS + pattern, lasting, since)


RULES = (
    KeyRule(r"module_manifest:[^:]+"),
    _ours(r"refresh:\d+"),
    _ours("manifests-revision", lasting="a counter"),
    _ours("tool-changes", lasting="four counters"),
    _ours("modules", lasting="which modules there are; modules that were added are stored only here", since=2),
    _ours("modules-revision", lasting="a counter", since=2),
    _ours("module-feeds", since=2),
    _ours(r"module-(hosts|heartbeats)", since=2),
    _ours("look:asked", lasting="a counter", since=2),
    _ours(r"(look:\d+|look-failures)", since=2),
    _ours("modes"),
    _ours("data-id", lasting="says that nothing was lost as long as it is there", since=2),
    _ours(r"clock(-notes)?", since=2),
    _ours(r"canary:[0-9a-f]{32}", since=3),
    _ours(r"bell:(tools\..+|toolfleet\.control)", lasting="at most one token a queue; it goes when the queue is read"),
    _ours(
        "queue-states",
        lasting="which queues operators have paused; stored only here, until the last one is resumed",
        since=3,
    ),
    _ours("quarantine", lasting="kept for an operator; at most 1,000 items"),
    _ours("quarantined", lasting="a counter"),
    _ours(r"(call|running|breaker):.+"),
    _ours("begun-call:.+", since=2),
    _ours("left:.+", since=2),
    _ours(r"share:(fast|slow):[0-9a-f]{16}"),
    _ours(r"stored:[0-9a-f]{16}(:bytes)?", since=2),
    _ours("call-contents:.+", since=4),
    _ours("artifact:.+", since=6),
    _ours(r"artifacts-of:[0-9a-f]{16}(:bytes)?", since=6),
    _ours("artifacts-due", lasting="which objects are in the store; the sweep removes them", since=6),
    _ours("artifacts-listed", since=6),
    _ours("readers:.+", since=2),
    _ours(r"slots:(fast|slow)"),
    _ours(r"(consumers|consumed:[0-9a-f]{16})", since=2),
    _ours("replica-counts", since=2),
    _ours("worker-loads", since=3),
    _ours(r"intent:[0-9a-f]{32}"),
    _ours(r"limit:[0-9a-f]{32}(:unbegun)?"),
    _ours("held:.+"),
    _ours(r"(turns|line|line-messages|line-load|turn-of):.+", since=6),
    _ours("(lines|line-outbox)", since=6),
    _ours(r"dead(-order)?", lasting="kept for an operator; at most `dead_letters_kept`"),
    _ours("audit", lasting="kept for an operator; about `audit_kept` lines"),
    _ours("job:.+", lasting="waits, for days perhaps; its end gives it a TTL"),
    _ours("jobs-due", lasting="what waits; a job leaves it with its end"),
    _ours(r"jobs-of:[0-9a-f]{16}", lasting="of a user with a job that has not ended"),
    _ours(r"jobs-(of:[0-9a-f]{16}:)?ended"),
    _ours("program:.+", lasting="waits, for days perhaps; its end gives it a TTL", since=6),
    _ours("program-value:.+", since=6),
    _ours("programs-due", lasting="what waits; a program leaves it with its end", since=6),
    _ours(r"programs-of:[0-9a-f]{16}", lasting="of a user with a program that has not ended", since=6),
    _ours(r"programs-(of:[0-9a-f]{16}:)?ended", since=6),
    _ours(r"(wake:.+|wakes-due(:calls)?)", lasting="not accepted yet; after `wake_give_up_seconds` they are dead"),
    _ours(
        r"wakes-due:webhooks:[0-9a-f]{16}",
        lasting="not accepted yet, at most 1,000; after `wake_give_up_seconds` they are dead",
        since=2,
    ),
    _ours("webhook-positions", lasting="up to where each receiver was told; without it events are lost", since=2),
    _ours(r"dead-wakes(-order|-bytes)?", lasting="kept for an operator; at most `dead_letters_kept`"),
    _ours(r"dead-webhooks(-order|-bytes)?", lasting="kept for an operator; at most `dead_letters_kept`", since=2),
    _ours("approval:.+", since=3),
    _ours(r"approval-asked:[0-9a-f]{32}", since=3),
    _ours("approvals-waiting", lasting="what waits for people; it leaves with their decision", since=3),
    _ours(r"approvals-(settled|events)", since=3),
    _ours(r"(completions|seen|progress):.+"),
    _ours(r"completion-(users|lost):.+", since=3),
    _ours("module-reply:.+"),
    _ours("module-replies", lasting="two values"),
    _ours(r"gateway-(requests|streams):[0-9a-f]{32}", since=2),
    _ours(r"console-signed-out:[0-9a-f]{32}", since=3),
    _ours("mcp-state-key", lasting="one key", since=2),
    _ours(r"mcp-answers:[0-9a-f-]{36}:[0-9]+", since=2),
    _ours(r"mcp-followers:[0-9a-f-]{36}", since=2),
    _ours(r"mcp-(window|session|request|question):[0-9a-f]{32}", since=2),
    _ours(r"mcp-sessions:[0-9a-f]{32}", since=4),
    _ours(r"mcp-session-(watches|stream):[0-9a-f]{32}", since=2),
    _ours(r"mcp-watched:[^:]+", since=2),
    _ours("mcp-changes", lasting="about 5,000 entries, for the gateways that follow them", since=2),
    _ours("accepted-tools", lasting="what operators have accepted; stored only here", since=4),
    _ours(r"registry:(tools|pins)", lasting="what operators decide; stored only here"),
    _ours("registry:versions", lasting="what an operator can roll back to; 19 a tool at most", since=2),
    _ours("registry:manifests", lasting="who may use what, also while no module says so", since=2),
    _ours(r"manifest-fetch:[^:]+", since=2),
    _ours("registry:events", lasting="at most 10,000, for those who follow the registry"),
    _ours("registry:revision", lasting="counters, and the registry's name for itself"),
    _ours("registry:api-keys", lasting="who may come in; stored only here; 10,000 at most", since=2),
    _ours("registry:api-keys-used", lasting="goes with the keys that it tells of", since=2),
    _ours("registry:api-keys-revision", lasting="a name for the last change", since=2),
    _ours(
        "registry:agents",
        lasting="what agents may do; if the registry is this Redis, stored only here; 1,000 at most",
        since=2,
    ),
    _ours(
        "registry:agent-histories",
        lasting="what an operator can roll back to; 20 versions of an agent at most",
        since=2,
    ),
    _ours("registry:agents-revision", lasting="a name for the last change", since=2),
    _ours("registry:agent-faults", since=2),
    _ours("registry:reloads", lasting="a counter", since=2),
    _ours(r"registry:reload:\d+", since=2),
    _ours("registry-identity", lasting="without it a process with another registry would rule"),
    KeyRule(r"_?celery-(task|taskset)-meta-.+"),  # also how far a chord's header is
    KeyRule(r"(tools\..+|toolfleet\.control)", lasting="a queue: the broker removes it when it is empty"),
    KeyRule(r"unacked(_index|_mutex)?", lasting="the broker's own: messages that a worker holds"),
    KeyRule(
        r"_kombu\.binding(\..+|_deadlines|_permanent\..+)",
        lasting="the broker's own: which queue is bound to which exchange",
    ),
    KeyRule(r".*\.reply\.celery\.pidbox", lasting="the broker's own: answers to inspect commands"),
)


def rule_for(name: str) -> KeyRule | None:
    """The rule for a key's name without the prefix, if there is one."""
    return next((rule for rule in RULES if rule.pattern.fullmatch(name)), None)


class _Key:
    """The name of one key, in a class of names: read as an attribute, it has the class's `begin` before it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(
        self, names: "RegistryKeys | HostKeys | Keys | ApprovalKeys | GatewayKeys", owner: type | None = None
    ) -> str:
        return names.begin + self._name


@dataclass(frozen=True, slots=True)
class RegistryKeys:
    """The names, with `begin` before each."""

    begin: str

    tools = _Key("tools")
    """A hash: each tool's registration, by its name."""

    versions = _Key("versions")
    """A hash: the specifications that a tool had before, by its name."""

    pins = _Key("pins")
    """A hash: which digests of a module's tools operators have approved."""

    manifests = _Key("manifests")
    """A hash: each module's last good manifest, for when it has expired everywhere else."""

    events = _Key("events")
    """A stream: the last 10,000 changes of the registry."""

    revision = _Key("revision")
    """A hash: how often the registry has changed, and which one it is."""

    api_keys = _Key("api-keys")
    """A hash: the API keys of those who come in over HTTP, by their ids; of each its digest, and what its holder may do."""

    api_keys_used = _Key("api-keys-used")
    """A hash: when each API key was used last, to a minute."""

    api_keys_revision = _Key("api-keys-revision")
    """A text that changes with every change of the API keys: gateways ask for it before they read all."""

    agents = _Key("agents")
    """A hash: the profiles of agents that are in force, by their names; in the fleet's Redis also where the registry is elsewhere."""

    agent_histories = _Key("agent-histories")
    """A hash: the versions of each profile, also of removed ones."""

    agents_revision = _Key("agents-revision")
    """A text that changes with every change of the profiles: agents and workers ask for it before they read all."""

    agent_faults = _Key("agent-faults")
    """A hash: why processes cannot apply some profiles, by name and version. Expires an hour after the last was found."""

    reloads = _Key("reloads")
    """The number of requests to all hosts to read their tool files again."""

    def reload_answers(self, number: int) -> str:
        """A hash: the hosts' answers to one such request. Expires 10 minutes after the last answer."""
        return f"{self.begin}reload:{number}"


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The names, with `begin` before each."""

    begin: str

    announced = _Key("module-hosts")
    """A hash: the last heartbeat of each host, by its module and id. Expires an hour or more (`Settings.manifest_ttl_seconds`) after the last one."""

    heartbeats = _Key("module-heartbeats")
    """The time when each live host was last heard, by Redis's clock (ms). Expires with the hash."""

    counts = _Key("replica-counts")
    """Each worker's findings about the processes of modules that have several.

    Expires some seconds after the last note.
    """


@dataclass(frozen=True, slots=True)
class RecordNames:
    """The names of one kind of records, jobs or programs: each record's, by its id, and those of the sets of ids."""

    record: Callable[[str], str]
    due: str
    of: Callable[[str | None], str]
    ended_of: Callable[[str | None], str]
    ended: str


@dataclass(frozen=True, slots=True)
class Keys:
    """The names, with `prefix` before each, and `begin` before each of our own."""

    prefix: str = ""
    begin: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begin", f"{self.prefix}{OURS}")

    def module_manifest(self, module: str) -> str:
        """A module's last good manifest, as JSON. Expires an hour or more (`Settings.manifest_ttl_seconds`) after the last probe of the module."""
        return f"{self.prefix}module_manifest:{module}"

    def refresh_slot(self, slot: int) -> str:
        """Held by the one refresh of a time slot, so that two beats do the work once. Expires with the slot."""
        return f"{self.begin}refresh:{slot}"

    def manifest_fetch(self, module: str) -> str:
        """The claim to fetch a module's manifest for a call: until when no other process asks.

        Expires after the last.
        """
        return f"{self.begin}manifest-fetch:{module}"

    manifests_changed = _Key("manifests-changed")
    """A pub/sub channel, no key: carries the changed module's name."""

    manifests_revision = _Key("manifests-revision")
    """The number of changes of manifests: workers ask for it before they read all."""

    modules = _Key("modules")
    """A hash, the directory: each module's entry, by its name."""

    modules_revision = _Key("modules-revision")
    """The number of changes of the directory: workers ask for it before they read it."""

    module_feeds = _Key("module-feeds")
    """The directory's entries that live processes have in their settings. Expires when all of them are silent."""

    @property
    def hosts(self) -> HostKeys:
        """The keys of hosts that announce modules."""
        return HostKeys(self.begin)

    def probe(self, which: int | Literal["asked", ""]) -> str:
        """The number of requested probes of all modules; for a single one, whether it is done, which expires.

        0: the one that waits.
        """
        return f"{self.begin}look:{which}"

    probe_failures = _Key("look-failures")
    """A hash: why the last probe of a module has failed. Expires an hour or more (`Settings.manifest_ttl_seconds`) after the last probe."""

    tool_changes = _Key("tool-changes")
    """The number of tools ever found added, changed, removed and drifted."""

    accepted_tools = _Key("accepted-tools")
    """A hash: the digest of the definition that was accepted last, of each tool that has changed since it was first taken in."""

    def queue(self, name: str) -> str:
        """The list in which a queue's messages wait."""
        return f"{self.prefix}{name}"

    def notify_key(self, queue: str) -> str:
        """A list of at most one token: the queue of that name may have messages, and no worker is reading it."""
        return f"{self.begin}bell:{queue}"

    quarantine = _Key("quarantine")
    """A list of at most 1,000 items that lay in a queue and were no calls, the newest first."""

    quarantined = _Key("quarantined")
    """The number of items ever put into quarantine."""

    queue_states = _Key("queue-states")
    """A hash: which queues are paused or draining, by module, and by lane as `lane:<lane>`. Lasts until the last is resumed."""

    worker_loads = _Key("worker-loads")
    """A hash: how many calls of each module a live worker runs, by its name. Expires when all of them are silent."""

    modes = _Key("modes")
    """The transport that each live worker uses."""

    data_id = _Key("data-id")
    """A text that changes when Redis has lost its data; the first process to notice sets it. Lasts."""

    clock = _Key("clock")
    """The offset of the fleet's time from Redis's, and its uncertainty.

    Expires a day after the last worker has asked.
    """

    clock_notes = _Key("clock-notes")
    """The clock offset of each live worker's machine. Expires when all of them are silent."""

    def holder(self, name: str) -> str:
        """The channel of a worker that holds messages: it lives while it listens there. No key."""
        return f"{self.begin}holder:{name}"

    def left(self, name: str) -> str:
        """The mark that a worker was told to end. Expires long after its leases have run out."""
        return f"{self.begin}left:{name}"

    repliers = _Key("repliers")
    """The channel to which a process listens that announces ends on reply channels. No key."""

    def reply(self, name: str) -> str:
        """The channel on which an agent of this name is told of the calls whose ids it has made. No key."""
        return f"{self.begin}reply:{name}"

    def result(self, call_id: str) -> str:
        """Celery's result of a call; also the channel on which it is announced."""
        return f"{self.prefix}{'_' if self.prefix and self.prefix[-1] not in _SEPARATORS else ''}celery-task-meta-{call_id}"

    def call(self, call_id: str) -> str:
        """The ledger's record of a call. Expires with its result, and not before its deadline."""
        return f"{self.begin}call:{call_id}"

    def begun_call(self, call_id: str) -> str:
        """The facts that another process needs to follow a call: its owner, and its deadline.

        Expires with the call's result.
        """
        return f"{self.begin}begun-call:{call_id}"

    def caller_limit(self, lane: str, user_id: str | None) -> str:
        """The published, unfinished calls of one user in a lane. Expires at the last one's deadline."""
        return f"{self.begin}share:{lane}:{_digest(user_id or '')[:16]}"

    def stored(self, user_id: str | None) -> str:
        """A user's larger stored results, records of their calls, and their calls that wait for approvals, by their expiry; with `:bytes` appended, their sum. Expires with the last."""
        return f"{self.begin}stored:{_digest(user_id or '')[:16]}"

    def contents(self, call_id: str) -> str:
        """A call's arguments and result, for operators. Expires after an hour."""
        return f"{self.begin}call-contents:{call_id}"

    def artifact(self, artifact_id: str) -> str:
        """The description of a stored object, with its owner, as JSON. Expires when the object is to be deleted."""
        return f"{self.begin}artifact:{artifact_id}"

    def artifacts_of(self, owner: str) -> str:
        """An owner's artifacts, by their expiry; with `:bytes` appended, their sum. Expires with the last."""
        return f"{self.begin}artifacts-of:{_digest(owner)[:16]}"

    artifacts_due = _Key("artifacts-due")
    """The names of all objects in the store, by when (ms) no record names them any more."""

    artifacts_listed = _Key("artifacts-listed")
    """Held by the one listing of the store in a day, which looks for objects that Redis has forgotten. Expires after a day, or an hour if that has not worked."""

    def readers(self, call_id: str) -> str:
        """The calls that wait for the result of this one, by their ids. Expires with the last one's deadline."""
        return f"{self.begin}readers:{call_id}"

    def running(self, module: str) -> str:
        """The calls that run in a module that may run so many only. Expires with the last one's lease."""
        return f"{self.begin}running:{module}"

    def breaker(self, module: str) -> str:
        """A module's failures in a row, and until when it is left alone. Expires when they are long ago."""
        return f"{self.begin}breaker:{module}"

    def slots(self, lane: str) -> str:
        """The concurrency of each live worker of a lane. Expires when all of them are silent."""
        return f"{self.begin}slots:{lane}"

    consumers = _Key("consumers")
    """The queues that each worker consumes, by the time until which its note counts.

    Expires an hour after the last note.
    """

    def consumed(self, digest: str) -> str:
        """The queues, by their keys, that workers with this digest of them consume. Expires after the notes with it."""
        return f"{self.begin}consumed:{digest}"

    def intent(self, user_id: str | None, idempotency_key: str) -> str:
        """The call that a user's idempotency key stands for. Expires with that call's record."""
        return f"{self.begin}intent:{_digest(json.dumps([user_id, idempotency_key]))[:32]}"

    def limit(self, user_id: str | None, name: str) -> str:
        """A user's calls that count towards a limit: of a tool, a cost class, a run or a thread; with `:unbegun`, those that no worker has started. Expires with the day, the cooldown, a day or 30 after the last."""
        return f"{self.begin}limit:{_digest(json.dumps([user_id or '', name]))[:32]}"

    def held(self, call_id: str) -> str:
        """The limits towards which a call counts.

        Expires with its deadline, and once it was started with its record.
        """
        return f"{self.begin}held:{call_id}"

    def turns(self, line: str) -> str:
        """The calls of a line that have their turn, by until when (ms) they keep it at most. Expires with the last one's deadline, an hour later."""
        return f"{self.begin}turns:{line}"

    def line(self, line: str) -> str:
        """The calls that wait in a line, by the order in which they were let in. Expires with the last one's deadline, an hour later."""
        return f"{self.begin}line:{line}"

    def line_messages(self, line: str) -> str:
        """A hash: the messages of the calls that wait in a line. Expires with it."""
        return f"{self.begin}line-messages:{line}"

    def line_load(self, queue: str) -> str:
        """A hash: how many calls wait in lines for a queue, and the bytes of their messages. Expires with the last one's deadline, an hour later."""
        return f"{self.begin}line-load:{queue}"

    def turn_of(self, call_id: str) -> str:
        """The line of a call, and its place in it. Expires with its deadline, an hour later."""
        return f"{self.begin}turn-of:{call_id}"

    lines = _Key("lines")
    """The lines in which calls wait, by when (ms) each is to be looked at. Expires an hour after the last deadline in them."""

    line_outbox = _Key("line-outbox")
    """The messages of calls whose turn has come, with the names of their queues, of another broker. Expires as the lines."""

    dead = _Key("dead")
    """Calls with an unknown end, by their id, at most `dead_letters_kept`."""

    dead_order = _Key("dead-order")
    """Ids of the dead letters, by the time of death."""

    audit = _Key("audit")
    """A stream with one line a call that has ended, about `audit_kept` of them."""

    def job(self, job_id: str) -> str:
        """A job: what it is to do, and where it is. Expires seven days after its end."""
        return f"{self.begin}job:{job_id}"

    jobs_due = _Key("jobs-due")
    """The ids of all jobs that have not ended, by when (ms) something is to be done about them."""

    def jobs_of(self, user_id: str | None) -> str:
        """The ids of a user's jobs that have not ended, by when they were made."""
        return f"{self.begin}jobs-of:{_digest(user_id or '')[:16]}"

    def jobs_ended_of(self, user_id: str | None) -> str:
        """The same of those that have. Expires with the last one's record."""
        return f"{self.jobs_of(user_id)}:ended"

    jobs_ended = _Key("jobs-ended")
    """The latest of all jobs that have ended, by when. Expires with the last one's record."""

    @property
    def of_jobs(self) -> RecordNames:
        """The names of all that is kept of jobs."""
        return RecordNames(self.job, self.jobs_due, self.jobs_of, self.jobs_ended_of, self.jobs_ended)

    def program(self, program_id: str) -> str:
        """A program: its source, where it is, and its interpreter's snapshot. Expires seven days after its end."""
        return f"{self.begin}program:{program_id}"

    def program_value(self, program_id: str, digest: str) -> str:
        """The value of an ended program, as JSON, if it is large. Expires with a call's results, or soon after its caller's call."""
        return f"{self.begin}program-value:{program_id}:{digest}"

    programs_due = _Key("programs-due")
    """The ids of all programs that have not ended, by when (ms) they are to be looked at."""

    def programs_of(self, user_id: str | None) -> str:
        """The ids of a user's programs that have not ended, by when they were made."""
        return f"{self.begin}programs-of:{_digest(user_id or '')[:16]}"

    def programs_ended_of(self, user_id: str | None) -> str:
        """The same of those that have. Expires with the last one's record."""
        return f"{self.programs_of(user_id)}:ended"

    programs_ended = _Key("programs-ended")
    """The latest of all programs that have ended, by when. Expires with the last one's record."""

    def program_changed(self, program_id: str) -> str:
        """A pub/sub channel, no key: a program has ended."""
        return f"{self.begin}program-changed:{program_id}"

    @property
    def of_programs(self) -> RecordNames:
        """The names of all that is kept of programs."""
        names = self.programs_of, self.programs_ended_of
        return RecordNames(self.program, self.programs_due, *names, self.programs_ended)

    def wake(self, wake_id: str) -> str:
        """A job's wake-up that is not accepted yet, and the number of attempts."""
        return f"{self.begin}wake:{wake_id}"

    wakes_due = _Key("wakes-due")
    """Ids of wake-ups, by when (ms) the next attempt is due."""

    calls_due = _Key("wakes-due:calls")
    """The same of those that are calls: a core that is slow must not hold them up."""

    def webhooks_due(self, receiver: str) -> str:
        """The same of the registry's events for one receiver of webhooks: one that is slow must not hold up others."""
        return f"{self.wakes_due}:webhooks:{receiver}"

    webhook_positions = _Key("webhook-positions")
    """A hash: by receiver of webhooks, the id of the last event of the registry that was put into the outbox for it."""

    dead_wakes = _Key("dead-wakes")
    """Wake-ups that were never accepted, by their id, at most `dead_letters_kept`."""

    dead_wakes_order = _Key("dead-wakes-order")
    """Ids of dead wake-ups, by when they were given up."""

    dead_wakes_bytes = _Key("dead-wakes-bytes")
    """The total size of the dead wake-ups in bytes."""

    def dead_webhooks(self, part: Literal["", "-order", "-bytes"] = "") -> str:
        """The same three of events of the registry that a receiver of webhooks did not accept, at most `dead_letters_kept`."""
        return f"{self.begin}dead-webhooks{part}"

    def completions(self, conversation_id: str) -> str:
        """A stream: the events of a conversation whose agent has no HTTP, of all its users, as older processes write them. Expires as `completions_of`."""
        return f"{self.begin}completions:{_digest(conversation_id)[:32]}"

    def completions_of(self, conversation_id: str, user_id: str | None) -> str:
        """A stream: the events for one user of a conversation. Expires seven days after the last."""
        return f"{self.completions(conversation_id)}:{_digest(user_id or '')[:16]}"

    def completion_users(self, conversation_id: str) -> str:
        """A stream: which users have such a stream, by what their names end with. Expires not before them."""
        return f"{self.begin}completion-users:{_digest(conversation_id)[:32]}"

    def completions_lost(self, conversation_id: str) -> str:
        """The number of a stream's entries that were trimmed before a reader was told, and the first one left; `:` and the user, as in the stream's name, are appended. Expires with the stream."""
        return f"{self.begin}completion-lost:{_digest(conversation_id)[:32]}"

    def seen(self, receiver: str, wake_id: str) -> str:
        """A core's state of a wake-up. Expires when it cannot come again."""
        return f"{self.begin}seen:{receiver}:{wake_id}"

    def progress(self, call_id: str, part: Literal["", "-log"] = "") -> str:
        """The progress of a running call; also the channel on which that is announced.

        Expires with the call's deadline. `-log`: only a channel, of its log messages.
        """
        return f"{self.begin}progress{part}:{call_id}"

    def module_reply(self, call_id: str) -> str:
        """A module's record of a call, if it keeps that in Redis. Expires when it forgets the call."""
        return f"{self.begin}module-reply:{call_id}"

    module_replies = _Key("module-replies")
    """The time since when no such reply can have been lost, and the run of Redis."""

    @property
    def registry(self) -> RegistryKeys:
        """The keys of the registry that is stored here."""
        return RegistryKeys(f"{self.begin}registry:")

    registry_identity = _Key("registry-identity")
    """The id of this fleet's registry: the first one that tools were registered in. It may be in another server."""

    def rule_of(self, key: str) -> KeyRule | None:
        """Return the rule for a key that was found in Redis; `None` if the fleet makes no such keys."""
        return rule_for(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None


def _digest(text: str) -> str:
    """Return a digest: users' names and keys have any length and any characters, and are private."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class ApprovalKeys:
    """The approvals' keys of the fleet with these other keys."""

    keys: Keys

    def approval(self, approval_id: str) -> str:
        """A hash: what people see of a call that waits for them, and what they decide. Expires a week after it is settled, at the latest."""
        return f"{self.begin}:{approval_id}"

    def asked(self, user_id: str | None, idempotency_key: str) -> str:
        """The id of a call that a framework's step has made, and that was deferred, for people or for its time: the step may run again after its end. Expires a week after people's time, or its own."""
        return f"{self.begin}-asked:{_digest(json.dumps([user_id, idempotency_key]))[:32]}"

    waiting = _Key("s-waiting")
    """The calls that wait for people, or whose approval is not settled, by the time of the next necessary step."""

    settled = _Key("s-settled")
    """The last approvals that were settled, by when that was. Expires a week after the last."""

    events = _Key("s-events")
    """A stream: what happens to approvals, the last 10,000 of it. Expires a week after the last."""

    changed = _Key("s-changed")
    """A pub/sub channel, no key: carries the id of an approval to which something has happened."""

    @property
    def begin(self) -> str:
        """The prefix of these keys."""
        return f"{self.keys.begin}approval"


def canary_key(keys: Keys, canary_id: str) -> str:
    """A list: how workers have answered a canary. Expires a minute after the last answer."""
    return f"{keys.begin}canary:{canary_id}"


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """The gateways' keys of the fleet with these other keys."""

    keys: Keys

    def requests(self, holder: str) -> str:
        """The number of requests that the holder of a key may send now.

        Expires when the full rate is available again.
        """
        return f"{self.begin}gateway-requests:{_digest(holder)[:32]}"

    def streams(self, holder: str) -> str:
        """The event streams that the holder of a key has open, by until when its gateway has said so. Expires with the last."""
        return f"{self.begin}gateway-streams:{_digest(holder)[:32]}"

    def console_signed_out(self, csrf: str) -> str:
        """The mark of a signed-out session of the console. Expires after the session's twelve hours."""
        return f"{self.begin}console-signed-out:{_digest(csrf)[:32]}"

    def mcp_followers(self, call_id: str) -> str:
        """The number of MCP clients that follow a call, and whether it was cancelled when none did. Expires."""
        return f"{self.begin}mcp-followers:{call_id}"

    def mcp_window(self, intention: str) -> str:
        """The call that stands for all calls of one user, tool and arguments within a window.

        Expires with the window.
        """
        return f"{self.begin}mcp-window:{_digest(intention)[:32]}"

    def mcp_session(self, session_id: str) -> str:
        """The session of an older MCP client: its owner, and what the client has said of itself, as JSON.

        Expires when it is silent.
        """
        return f"{self.begin}mcp-session:{_digest(session_id)[:32]}"

    def mcp_sessions(self, holder: str) -> str:
        """A set: the keys of the sessions that older MCP clients have opened with one key. Expires days after the last was opened."""
        return f"{self.begin}mcp-sessions:{_digest(holder)[:32]}"

    def mcp_request(self, session_id: str, request_id: str | int) -> str:
        """The call that a request of an older MCP client's session has become. Expires with the session."""
        return f"{self.begin}mcp-request:{_digest(f'{session_id} {request_id!r}')[:32]}"

    def mcp_answers(self, call_id: str, number: int) -> str:
        """A hash: the answers to a task's question so far, by the requests' keys. Expires an hour after the last."""
        return f"{self.begin}mcp-answers:{call_id}:{number}"

    def mcp_question(self, session_id: str, number: str) -> str:
        """A list: an older MCP client's answer to a question, until the asking process takes it.

        Expires a minute later.
        """
        return f"{self.begin}mcp-question:{_digest(f'{session_id} {number}')[:32]}"

    def mcp_watched(self, module: str) -> str:
        """The addresses of a module's resources that clients watch, by until when (ms). Expires when no gateway says so any more."""
        return f"{self.begin}mcp-watched:{module}"

    mcp_changes = _Key("mcp-changes")
    """A stream: what has changed in modules' MCP servers, about 5,000 entries, for gateways to read."""

    def mcp_session_watches(self, session_id: str) -> str:
        """A set: the addresses of resources that an older MCP client's session watches. Expires with the session."""
        return f"{self.begin}mcp-session-watches:{_digest(session_id)[:32]}"

    def mcp_session_stream(self, session_id: str) -> str:
        """The session's current stream of changes: a stream opened before it sends no more.

        Expires with the session.
        """
        return f"{self.begin}mcp-session-stream:{_digest(session_id)[:32]}"

    mcp_state_key = _Key("mcp-state-key")
    """The key that seals the states carried by MCP clients, in a fleet that does not sign."""

    @property
    def begin(self) -> str:
        """The prefix of these keys."""
        return self.keys.begin
