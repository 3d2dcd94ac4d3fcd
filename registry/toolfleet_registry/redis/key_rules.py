"""Says which Redis keys expire, and of those that last, why: what a key that was found there is held against."""

import re
from dataclasses import dataclass

OURS = "toolfleet:"
"""What our own keys begin with, behind the fleet's prefix."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The pattern of one kind of keys, without the prefix.

    `lasting` says why such a key has no TTL; `None`: it must have one.

    `since`: the wire version that introduced it. A kind whose values an older version could misread gets another name.
    """

    pattern: re.Pattern[str]
    lasting: str | None = None
    since: int = 1


RULES = (
    KeyRule(re.compile(r"module_manifest:[^:]+")),
    KeyRule(re.compile(rf"{OURS}refresh:\d+")),
    KeyRule(re.compile(rf"{OURS}manifests-revision"), lasting="a counter"),
    KeyRule(re.compile(rf"{OURS}tool-changes"), lasting="four counters"),
    KeyRule(
        re.compile(rf"{OURS}modules"),
        lasting="which modules there are; nobody else knows those that were added",
        since=2,
    ),
    KeyRule(re.compile(rf"{OURS}modules-revision"), lasting="a counter", since=2),
    KeyRule(re.compile(rf"{OURS}module-feeds"), since=2),
    KeyRule(re.compile(rf"{OURS}module-(hosts|heartbeats)"), since=2),
    KeyRule(re.compile(rf"{OURS}look:asked"), lasting="a counter", since=2),
    KeyRule(re.compile(rf"{OURS}(look:\d+|look-failures)"), since=2),
    KeyRule(re.compile(rf"{OURS}modes")),
    KeyRule(re.compile(rf"{OURS}data-id"), lasting="says that nothing was lost as long as it is there", since=2),
    KeyRule(re.compile(rf"{OURS}clock(-notes)?"), since=2),
    KeyRule(re.compile(rf"{OURS}canary:[0-9a-f]{{32}}"), since=3),
    KeyRule(
        re.compile(rf"{OURS}bell:(tools\..+|toolfleet\.control)"),
        lasting="at most one token a queue; it goes when the queue is read",
    ),
    KeyRule(
        re.compile(rf"{OURS}queue-states"),
        lasting="which queues operators have paused; nobody else knows it, and the last one that is resumed removes it",
        since=3,
    ),
    KeyRule(re.compile(rf"{OURS}quarantine"), lasting="kept for an operator; at most 1,000 items"),
    KeyRule(re.compile(rf"{OURS}quarantined"), lasting="a counter"),
    KeyRule(re.compile(rf"{OURS}(call|running|breaker):.+")),
    KeyRule(re.compile(rf"{OURS}begun-call:.+"), since=2),
    KeyRule(re.compile(rf"{OURS}left:.+"), since=2),
    KeyRule(re.compile(rf"{OURS}share:(fast|slow):[0-9a-f]{{16}}")),
    KeyRule(re.compile(rf"{OURS}stored:[0-9a-f]{{16}}(:bytes)?"), since=2),
    KeyRule(re.compile(rf"{OURS}call-contents:.+"), since=4),
    KeyRule(re.compile(rf"{OURS}readers:.+"), since=2),
    KeyRule(re.compile(rf"{OURS}slots:(fast|slow)")),
    KeyRule(re.compile(rf"{OURS}(consumers|consumed:[0-9a-f]{{16}})"), since=2),
    KeyRule(re.compile(rf"{OURS}replica-counts"), since=2),
    KeyRule(re.compile(rf"{OURS}worker-loads"), since=3),
    KeyRule(re.compile(rf"{OURS}intent:[0-9a-f]{{32}}")),
    KeyRule(re.compile(rf"{OURS}limit:[0-9a-f]{{32}}(:unbegun)?")),
    KeyRule(re.compile(rf"{OURS}held:.+")),
    KeyRule(re.compile(rf"{OURS}dead(-order)?"), lasting="kept for an operator; at most `dead_letters_kept`"),
    KeyRule(re.compile(rf"{OURS}audit"), lasting="kept for an operator; about `audit_kept` lines"),
    KeyRule(re.compile(rf"{OURS}job:.+"), lasting="waits, for days perhaps; its end gives it a TTL"),
    KeyRule(re.compile(rf"{OURS}jobs-due"), lasting="what waits; a job leaves it with its end"),
    KeyRule(re.compile(rf"{OURS}jobs-of:[0-9a-f]{{16}}"), lasting="of a user with a job that has not ended"),
    KeyRule(re.compile(rf"{OURS}jobs-(of:[0-9a-f]{{16}}:)?ended")),
    KeyRule(
        re.compile(rf"{OURS}(wake:.+|wakes-due(:calls)?)"),
        lasting="not accepted yet; after `wake_give_up_seconds` they are dead",
    ),
    KeyRule(
        re.compile(rf"{OURS}wakes-due:webhooks:[0-9a-f]{{16}}"),
        lasting="not accepted yet, at most 1,000; after `wake_give_up_seconds` they are dead",
        since=2,
    ),
    KeyRule(
        re.compile(rf"{OURS}webhook-positions"),
        lasting="up to where each receiver was told; without it events are lost",
        since=2,
    ),
    KeyRule(
        re.compile(rf"{OURS}dead-wakes(-order|-bytes)?"), lasting="kept for an operator; at most `dead_letters_kept`"
    ),
    KeyRule(
        re.compile(rf"{OURS}dead-webhooks(-order|-bytes)?"),
        lasting="kept for an operator; at most `dead_letters_kept`",
        since=2,
    ),
    KeyRule(re.compile(rf"{OURS}approval:.+"), since=3),
    KeyRule(re.compile(rf"{OURS}approval-asked:[0-9a-f]{{32}}"), since=3),
    KeyRule(
        re.compile(rf"{OURS}approvals-waiting"), lasting="what waits for people; it leaves with their decision", since=3
    ),
    KeyRule(re.compile(rf"{OURS}approvals-(settled|events)"), since=3),
    KeyRule(re.compile(rf"{OURS}(completions|seen|progress):.+")),
    KeyRule(re.compile(rf"{OURS}completion-(users|lost):.+"), since=3),
    KeyRule(re.compile(rf"{OURS}module-reply:.+")),
    KeyRule(re.compile(rf"{OURS}module-replies"), lasting="two values"),
    KeyRule(re.compile(rf"{OURS}gateway-(requests|streams):[0-9a-f]{{32}}"), since=2),
    KeyRule(re.compile(rf"{OURS}console-signed-out:[0-9a-f]{{32}}"), since=3),
    KeyRule(re.compile(rf"{OURS}mcp-state-key"), lasting="one key", since=2),
    KeyRule(re.compile(rf"{OURS}mcp-answers:[0-9a-f-]{{36}}:[0-9]+"), since=2),
    KeyRule(re.compile(rf"{OURS}mcp-followers:[0-9a-f-]{{36}}"), since=2),
    KeyRule(re.compile(rf"{OURS}mcp-(window|session|request|question):[0-9a-f]{{32}}"), since=2),
    KeyRule(re.compile(rf"{OURS}mcp-sessions:[0-9a-f]{{32}}"), since=4),
    KeyRule(re.compile(rf"{OURS}mcp-session-(watches|stream):[0-9a-f]{{32}}"), since=2),
    KeyRule(re.compile(rf"{OURS}mcp-watched:[^:]+"), since=2),
    KeyRule(re.compile(rf"{OURS}mcp-changes"), lasting="about 5,000 entries, for whoever follows them", since=2),
    KeyRule(
        re.compile(rf"{OURS}accepted-tools"), lasting="what operators have accepted; nobody else knows it", since=4
    ),
    KeyRule(re.compile(rf"{OURS}registry:(tools|pins)"), lasting="what operators decide; nobody else knows it"),
    KeyRule(
        re.compile(rf"{OURS}registry:versions"), lasting="what an operator can roll back to; 19 a tool at most", since=2
    ),
    KeyRule(
        re.compile(rf"{OURS}registry:manifests"), lasting="who may use what, also while no module says so", since=2
    ),
    KeyRule(re.compile(rf"{OURS}manifest-fetch:[^:]+"), since=2),
    KeyRule(re.compile(rf"{OURS}registry:events"), lasting="at most 10,000, for whoever follows the registry"),
    KeyRule(re.compile(rf"{OURS}registry:revision"), lasting="counters, and the registry's name for itself"),
    KeyRule(
        re.compile(rf"{OURS}registry:api-keys"),
        lasting="who may come in; nobody else knows it; 10,000 at most",
        since=2,
    ),
    KeyRule(re.compile(rf"{OURS}registry:api-keys-used"), lasting="goes with the keys that it tells of", since=2),
    KeyRule(re.compile(rf"{OURS}registry:api-keys-revision"), lasting="a name for the last change", since=2),
    KeyRule(
        re.compile(rf"{OURS}registry:agents"),
        lasting="what agents may do; where the registry is this Redis nobody else knows it; 1,000 at most",
        since=2,
    ),
    KeyRule(
        re.compile(rf"{OURS}registry:agent-histories"),
        lasting="what an operator can roll back to; 20 versions of an agent at most",
        since=2,
    ),
    KeyRule(re.compile(rf"{OURS}registry:agents-revision"), lasting="a name for the last change", since=2),
    KeyRule(re.compile(rf"{OURS}registry:agent-faults"), since=2),
    KeyRule(re.compile(rf"{OURS}registry:reloads"), lasting="a counter", since=2),
    KeyRule(re.compile(rf"{OURS}registry:reload:\d+"), since=2),
    KeyRule(re.compile(rf"{OURS}registry-identity"), lasting="without it a process with another registry would rule"),
    KeyRule(re.compile(r"_?celery-(task|taskset)-meta-.+")),  # also how far a chord's header is
    KeyRule(re.compile(r"(tools\..+|toolfleet\.control)"), lasting="a queue: the broker removes it when it is empty"),
    KeyRule(re.compile(r"unacked(_index|_mutex)?"), lasting="the broker's own: messages that a worker holds"),
    KeyRule(
        re.compile(r"_kombu\.binding(\..+|_deadlines|_permanent\..+)"),
        lasting="the broker's own: which queue is bound to which exchange",
    ),
    KeyRule(re.compile(r".*\.reply\.celery\.pidbox"), lasting="the broker's own: answers to inspect commands"),
)


def rule_for(name: str) -> KeyRule | None:
    """The rule for a key's name without the prefix, if there is one."""
    return next((rule for rule in RULES if rule.pattern.fullmatch(name)), None)
