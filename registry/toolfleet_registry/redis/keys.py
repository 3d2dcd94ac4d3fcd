"""Builds every Redis key and channel of ours, and says whether it expires, and if it lasts, why.

Celery's and kombu's own (queues, `unacked*`, `_kombu.binding.*`, `celery-task-meta-<call id>`) are theirs. All begin with a fleet's prefix.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from toolfleet_registry.redis.key_rules import OURS, KeyRule, rule_for

_SEPARATORS = ":_-."  # Celery puts a `_` after a prefix that ends in none of these, before the names of results


@dataclass(frozen=True, slots=True)
class RegistryKeys:
    """The names, with `begin` before each."""

    begin: str

    @property
    def tools(self) -> str:
        """A hash: each tool's registration, by its name."""
        return f"{self.begin}tools"

    @property
    def versions(self) -> str:
        """A hash: the specifications that a tool had before, by its name."""
        return f"{self.begin}versions"

    @property
    def pins(self) -> str:
        """A hash: which digests of a module's tools operators have approved."""
        return f"{self.begin}pins"

    @property
    def manifests(self) -> str:
        """A hash: each module's last good manifest, for when it has expired everywhere else."""
        return f"{self.begin}manifests"

    @property
    def events(self) -> str:
        """A stream: the last 10,000 changes of the registry."""
        return f"{self.begin}events"

    @property
    def revision(self) -> str:
        """A hash: how often the registry has changed, and which one it is."""
        return f"{self.begin}revision"

    @property
    def api_keys(self) -> str:
        """A hash: the API keys of those who come in over HTTP, by their ids; of each its digest, and what its holder may do."""
        return f"{self.begin}api-keys"

    @property
    def api_keys_used(self) -> str:
        """A hash: when each of them was used last, to a minute."""
        return f"{self.begin}api-keys-used"

    @property
    def api_keys_revision(self) -> str:
        """Another text after each change of them: what gateways ask for before they read all."""
        return f"{self.begin}api-keys-revision"

    @property
    def agents(self) -> str:
        """A hash: the profiles of agents that are in force, by their names; in the fleet's Redis also where the registry is elsewhere."""
        return f"{self.begin}agents"

    @property
    def agent_histories(self) -> str:
        """A hash: the versions of each of them, also of removed ones."""
        return f"{self.begin}agent-histories"

    @property
    def agents_revision(self) -> str:
        """Another text after each change of them: what agents and workers ask for before they read all."""
        return f"{self.begin}agents-revision"

    @property
    def agent_faults(self) -> str:
        """A hash: why processes cannot apply some of them, by name and version. Expires an hour after the last was found."""
        return f"{self.begin}agent-faults"

    @property
    def reloads(self) -> str:
        """How often somebody has asked all hosts to read their tool files anew."""
        return f"{self.begin}reloads"

    def reload_answers(self, number: int) -> str:
        """A hash: what hosts have said to one such request. Expires 10 minutes after the last answer."""
        return f"{self.begin}reload:{number}"


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The names, with `begin` before each."""

    begin: str

    @property
    def announced(self) -> str:
        """A hash: the last heartbeat of each host, by its module and id. Expires `manifest_ttl_seconds` after the last one."""
        return f"{self.begin}module-hosts"

    @property
    def heartbeats(self) -> str:
        """When each live host was heard last, by Redis's clock (ms). Expires with the hash."""
        return f"{self.begin}module-heartbeats"

    @property
    def counts(self) -> str:
        """What each worker finds of the processes of modules that have several. Expires some seconds after the last note."""
        return f"{self.begin}replica-counts"


@dataclass(frozen=True, slots=True)
class Keys:
    """The names, with `prefix` before each."""

    prefix: str = ""

    def module_manifest(self, module: str) -> str:
        """A module's last good manifest, as JSON. Expires `manifest_ttl_seconds` after the last look at the module."""
        return f"{self.prefix}module_manifest:{module}"

    def refresh_slot(self, slot: int) -> str:
        """Held by the one refresh of a time slot, so that two beats do the work once. Expires with the slot."""
        return f"{self.prefix}{OURS}refresh:{slot}"

    def manifest_fetch(self, module: str) -> str:
        """Who asks a module for its manifest because a call needs it: until when nobody else does. Expires after the last."""
        return f"{self.prefix}{OURS}manifest-fetch:{module}"

    @property
    def manifests_changed(self) -> str:
        """A pub/sub channel, no key: carries the changed module's name."""
        return f"{self.prefix}{OURS}manifests-changed"

    @property
    def manifests_revision(self) -> str:
        """How often a manifest has changed: what workers ask for before they read all."""
        return f"{self.prefix}{OURS}manifests-revision"

    @property
    def modules(self) -> str:
        """A hash, the directory: each module's entry, by its name."""
        return f"{self.prefix}{OURS}modules"

    @property
    def modules_revision(self) -> str:
        """How often the directory has changed: what workers ask for before they read it."""
        return f"{self.prefix}{OURS}modules-revision"

    @property
    def module_feeds(self) -> str:
        """Which entries of the directory live processes have in their settings. Expires when all of them are silent."""
        return f"{self.prefix}{OURS}module-feeds"

    @property
    def hosts(self) -> HostKeys:
        """Those of hosts that announce modules."""
        return HostKeys(f"{self.prefix}{OURS}")

    def probe(self, which: int | Literal["asked", ""]) -> str:
        """How often agents have asked for a look at all modules; of a single one, whether it is done, which expires. 0: the one that waits."""
        return f"{self.prefix}{OURS}look:{which}"

    @property
    def probe_failures(self) -> str:
        """A hash: why the last look at a module has failed. Expires `manifest_ttl_seconds` after the last look."""
        return f"{self.prefix}{OURS}look-failures"

    @property
    def tool_changes(self) -> str:
        """How many tools were ever found added, changed, removed and drifted."""
        return f"{self.prefix}{OURS}tool-changes"

    @property
    def accepted_tools(self) -> str:
        """A hash: the digest of the definition that was accepted last, of each tool that has changed since it was first taken in."""
        return f"{self.prefix}{OURS}accepted-tools"

    def queue(self, name: str) -> str:
        """The list in which a queue's messages wait."""
        return f"{self.prefix}{name}"

    def notify_key(self, queue: str) -> str:
        """A list of at most one token: the queue of that name may hold something, and nobody is at it."""
        return f"{self.prefix}{OURS}bell:{queue}"

    @property
    def quarantine(self) -> str:
        """A list of at most 1,000 items that lay in a queue and were no calls, the newest first."""
        return f"{self.prefix}{OURS}quarantine"

    @property
    def quarantined(self) -> str:
        """How many items were ever put into quarantine."""
        return f"{self.prefix}{OURS}quarantined"

    @property
    def modes(self) -> str:
        """Which live workers use which transport."""
        return f"{self.prefix}{OURS}modes"

    @property
    def data_id(self) -> str:
        """Another text when Redis has lost all it had, which then is set by whoever looks first. Lasts."""
        return f"{self.prefix}{OURS}data-id"

    @property
    def clock(self) -> str:
        """What the fleet's time has on Redis's, and how late it is. Expires a day after the last worker has looked."""
        return f"{self.prefix}{OURS}clock"

    @property
    def clock_notes(self) -> str:
        """How far the machine of each live worker is off. Expires when all of them are silent."""
        return f"{self.prefix}{OURS}clock-notes"

    def holder(self, name: str) -> str:
        """The channel of a worker that holds messages: it lives while it listens there. No key."""
        return f"{self.prefix}{OURS}holder:{name}"

    def left(self, name: str) -> str:
        """That such a worker was told to end. Expires when its leases have long run out."""
        return f"{self.prefix}{OURS}left:{name}"

    def result(self, call_id: str) -> str:
        """What Celery stored of a call; also the channel on which it is announced."""
        return f"{self.prefix}{'_' if self.prefix and self.prefix[-1] not in _SEPARATORS else ''}celery-task-meta-{call_id}"

    def call(self, call_id: str) -> str:
        """The ledger's record of a call. Expires with its result, and not before its deadline."""
        return f"{self.prefix}{OURS}call:{call_id}"

    def begun_call(self, call_id: str) -> str:
        """What another process must know of a call to follow it: whose it is, and its deadline. Expires with the call's result."""
        return f"{self.prefix}{OURS}begun-call:{call_id}"

    def caller_limit(self, lane: str, user_id: str | None) -> str:
        """The published, unfinished calls of one user in a lane. Expires at the last one's deadline."""
        return f"{self.prefix}{OURS}share:{lane}:{_digest(user_id or '')[:16]}"

    def stored(self, user_id: str | None) -> str:
        """The larger results of a user that are stored, what is kept of their calls, and their calls that wait for approvals, by when they expire; with `:bytes` behind it, their sum. Expires with the last."""
        return f"{self.prefix}{OURS}stored:{_digest(user_id or '')[:16]}"

    def contents(self, call_id: str) -> str:
        """What a call was asked and what it answered, for operators. Expires after an hour."""
        return f"{self.prefix}{OURS}call-contents:{call_id}"

    def readers(self, call_id: str) -> str:
        """The calls that wait for the result of this one, by their ids. Expires with the last one's deadline."""
        return f"{self.prefix}{OURS}readers:{call_id}"

    def running(self, module: str) -> str:
        """The calls that run in a module that may run so many only. Expires with the last one's lease."""
        return f"{self.prefix}{OURS}running:{module}"

    def breaker(self, module: str) -> str:
        """A module's failures in a row, and until when it is left alone. Expires when they are long ago."""
        return f"{self.prefix}{OURS}breaker:{module}"

    def slots(self, lane: str) -> str:
        """How many calls each live worker of a lane runs at once. Expires when all of them are silent."""
        return f"{self.prefix}{OURS}slots:{lane}"

    @property
    def consumers(self) -> str:
        """Which worker consumes which queues, by until when its note counts. Expires an hour after the last note."""
        return f"{self.prefix}{OURS}consumers"

    def consumed(self, digest: str) -> str:
        """The queues, by their keys, that workers with this digest of them consume. Expires after the notes with it."""
        return f"{self.prefix}{OURS}consumed:{digest}"

    def intent(self, user_id: str | None, idempotency_key: str) -> str:
        """The call that a user's idempotency key stands for. Expires with that call's record."""
        return f"{self.prefix}{OURS}intent:{_digest(json.dumps([user_id, idempotency_key]))[:32]}"

    def limit(self, user_id: str | None, name: str) -> str:
        """A user's calls that count in a limit: of a tool, a cost class, a run or a thread; with `:unbegun`, those that no worker has begun. Expires with the day, the cooldown, a day or 30 after the last."""
        return f"{self.prefix}{OURS}limit:{_digest(json.dumps([user_id or '', name]))[:32]}"

    def held(self, call_id: str) -> str:
        """The limits in which a call counts. Expires with its deadline, and once it was begun with its record."""
        return f"{self.prefix}{OURS}held:{call_id}"

    @property
    def dead(self) -> str:
        """Calls with an unknown end, by their id, at most `dead_letters_kept`."""
        return f"{self.prefix}{OURS}dead"

    @property
    def dead_order(self) -> str:
        """Their ids, by when they died."""
        return f"{self.prefix}{OURS}dead-order"

    @property
    def audit(self) -> str:
        """A stream with one line a call that has ended, about `audit_kept` of them."""
        return f"{self.prefix}{OURS}audit"

    def job(self, job_id: str) -> str:
        """A job: what it is to do, and where it is. Expires `job_kept_seconds` after its end."""
        return f"{self.prefix}{OURS}job:{job_id}"

    @property
    def jobs_due(self) -> str:
        """The ids of all jobs that have not ended, by when (ms) something is to be done about them."""
        return f"{self.prefix}{OURS}jobs-due"

    def jobs_of(self, user_id: str | None) -> str:
        """The ids of a user's jobs that have not ended, by when they were made."""
        return f"{self.prefix}{OURS}jobs-of:{_digest(user_id or '')[:16]}"

    def jobs_ended_of(self, user_id: str | None) -> str:
        """The same of those that have. Expires with the last one's record."""
        return f"{self.jobs_of(user_id)}:ended"

    @property
    def jobs_ended(self) -> str:
        """The latest of all jobs that have ended, by when. Expires with the last one's record."""
        return f"{self.prefix}{OURS}jobs-ended"

    def wake(self, wake_id: str) -> str:
        """News of a job's end that have not been accepted yet, and how often that was tried."""
        return f"{self.prefix}{OURS}wake:{wake_id}"

    @property
    def wakes_due(self) -> str:
        """Their ids, by when (ms) the next try is due."""
        return f"{self.prefix}{OURS}wakes-due"

    @property
    def calls_due(self) -> str:
        """The same of those that are calls: a core that is slow must not hold them up."""
        return f"{self.wakes_due}:calls"

    def webhooks_due(self, receiver: str) -> str:
        """The same of the registry's events for one receiver of webhooks: one that is slow must not hold up others."""
        return f"{self.wakes_due}:webhooks:{receiver}"

    @property
    def webhook_positions(self) -> str:
        """A hash: by receiver of webhooks, the id of the last event of the registry that was put into the outbox for it."""
        return f"{self.prefix}{OURS}webhook-positions"

    @property
    def dead_wakes(self) -> str:
        """News that nobody accepted, by their id, at most `dead_wakes_kept`."""
        return f"{self.prefix}{OURS}dead-wakes"

    @property
    def dead_wakes_order(self) -> str:
        """Their ids, by when they were given up."""
        return f"{self.prefix}{OURS}dead-wakes-order"

    @property
    def dead_wakes_bytes(self) -> str:
        """How many bytes they have, together."""
        return f"{self.prefix}{OURS}dead-wakes-bytes"

    def dead_webhooks(self, part: Literal["", "-order", "-bytes"] = "") -> str:
        """The same three of events of the registry that a receiver of webhooks did not accept, at most `dead_webhooks_kept`."""
        return f"{self.prefix}{OURS}dead-webhooks{part}"

    def completions(self, conversation_id: str) -> str:
        """A stream: the news for a conversation whose agent has no HTTP, of all its users, as older processes write them. Expires as `completions_of`."""
        return f"{self.prefix}{OURS}completions:{_digest(conversation_id)[:32]}"

    def completions_of(self, conversation_id: str, user_id: str | None) -> str:
        """A stream: the news for one user of a conversation. Expires `completions_kept_seconds` after the last."""
        return f"{self.completions(conversation_id)}:{_digest(user_id or '')[:16]}"

    def completion_users(self, conversation_id: str) -> str:
        """A stream: which users have such a stream, by what their names end with. Expires not before them."""
        return f"{self.prefix}{OURS}completion-users:{_digest(conversation_id)[:32]}"

    def completions_lost(self, conversation_id: str) -> str:
        """With `:` and a user as in the name of such a stream behind it: how many of its entries were trimmed before a reader was told, and the first one left. Expires with the stream."""
        return f"{self.prefix}{OURS}completion-lost:{_digest(conversation_id)[:32]}"

    def seen(self, receiver: str, wake_id: str) -> str:
        """What a core has done about a wake-up. Expires when it cannot come again."""
        return f"{self.prefix}{OURS}seen:{receiver}:{wake_id}"

    def progress(self, call_id: str, part: Literal["", "-log"] = "") -> str:
        """How far a running call says it is; also the channel on which that is announced. Expires with the call's deadline. `-log`: only a channel, of what it logs."""
        return f"{self.prefix}{OURS}progress{part}:{call_id}"

    def module_reply(self, call_id: str) -> str:
        """What a module remembers of a call, if it keeps that in Redis. Expires when it forgets the call."""
        return f"{self.prefix}{OURS}module-reply:{call_id}"

    @property
    def module_replies(self) -> str:
        """Since when no such reply can have been lost, and in which run of Redis."""
        return f"{self.prefix}{OURS}module-replies"

    @property
    def registry(self) -> RegistryKeys:
        """Those of the registry that is kept here."""
        return RegistryKeys(f"{self.prefix}{OURS}registry:")

    @property
    def registry_identity(self) -> str:
        """Which registry is this fleet's: the first one that anything was taken into. It may be in another server."""
        return f"{self.prefix}{OURS}registry-identity"

    def rule_of(self, key: str) -> KeyRule | None:
        """What holds for a key that was found in Redis; `None` if nobody of the fleet makes such keys."""
        return rule_for(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None


def _digest(text: str) -> str:
    """Names of people and their keys are of any length and any characters, and nobody's business."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
