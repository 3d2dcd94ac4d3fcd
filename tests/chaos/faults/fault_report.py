"""Tables of the faults of a run: how many of each kind happened after which step, what came of some, and what holds there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from chaos.checks.call_checks import Evidence
from chaos.faults.faults import KINDS, Fault, left_out
from chaos.faults.moments import JOB_MOMENTS, MOMENTS
from chaos.faults.rabbitmq_faults import RABBITMQ_KINDS
from chaos.records.outcomes import SECOND, Way

_FOR_ALL = "exactly one result a call, none too late, nothing done twice, nor said not to be done and done"
_CHECKED = {
    "worker paused beyond its lease": "of two confirmed writes the newer one is the last; nothing begins after the end was told",
    "worker cut off from a module": "no module is left alone for long; the worker ends when it is asked to",
    "Redis full": "who is told that there is no fleet is told the truth about the effect; nothing is left behind",
    "Redis evicting": "no worker starts",
    "Redis's clock set": "as of all: no lease and no deadline goes by the clock that was set",
    "worker's clock set": "as of all; the worker is up, and works afterwards",
    "burst of calls": "as of all: done once, or refused and not executed",
    "hostile schemas": "as of all: nobody's end comes late because of a check",
}
_CHECKED_OF_RABBITMQ = {
    "RabbitMQ killed": "no call that it had confirmed is lost; nothing is left in its queues",
    "RabbitMQ's connections closed": "as of all: what a worker runs while others get its message has one result",
    "RabbitMQ half-open": "as of all; the worker is up, and works afterwards",
    "RabbitMQ unheard": "as of all; the worker is up, and works afterwards",
}


def table(head: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(f'{cell}' for cell in line)} |" for line in lines)


def struck(faults: list[Fault]) -> str:
    """How many of each kind, by the step after which they struck."""
    done = [fault for fault in faults if fault.is_done]
    counts = Counter((fault.kind, fault.moment if fault.was_seen else MOMENTS[0]) for fault in done)
    moments = (*MOMENTS, *JOB_MOMENTS)
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in faults)]
    rows = [(kind, *(counts[kind, moment] for moment in moments), sum(f.kind == kind for f in done)) for kind in kinds]
    missing = [f"Left out, as libfaketime is not installed: {', '.join(left_out())}."] if left_out() else []
    return "\n\n".join([table(("fault", *moments, "all"), rows), *missing])


def came_to(faults: list[Fault], evidence: Evidence, refusals: int, folder: Path) -> str:
    """What was seen of the kinds that leave a trace of their own, and what is checked of them beside what holds of all."""
    counts = Counter(fault.kind for fault in faults if fault.is_done)
    logs = [log.read_text(errors="replace") for log in sorted(folder.glob("*.log"))]
    seen = _seen(evidence, logs) | {"Redis evicting": f"{refusals} workers refused to start"}
    cut_off = folder / "worker-cut-off.log"
    words = cut_off.read_text(errors="replace") if cut_off.exists() else ""
    noted = sum("module_watched " in line and "is_unreached=True" in line for line in words.splitlines())
    seen["worker cut off from a module"] = f"it left the module to others {noted} times"
    on_rabbitmq = any(fault.kind in RABBITMQ_KINDS for fault in faults)
    checked = _CHECKED | (_CHECKED_OF_RABBITMQ if on_rabbitmq else {})
    rows = [(kind, counts[kind], seen[kind], text) for kind, text in checked.items()]
    return table(("fault", "happened", "seen of it", f"checked, beside: {_FOR_ALL}"), rows)


def _seen(evidence: Evidence, logs: list[str]) -> dict[str, str]:
    def said(event: str) -> int:
        return sum(log.count(event) for log in logs)

    confirmed = sum(
        end.way == "paired" and end.ref.endswith(SECOND) and end.result is not None and end.result.success
        for end in evidence.endings
    )
    unavailable = sum(
        end.result is not None and end.result.error_code == "fleet_unavailable" for end in evidence.endings
    )
    return {
        "worker paused beyond its lease": f"{said('lease_over_before_sending')} requests were not sent; {confirmed} confirmed pairs of writes",
        "Redis full": f"{unavailable} calls, of these and other faults of Redis's, ended as fleet_unavailable",
        "RabbitMQ killed": f"{said('worker_waits_for_broker')} times a worker found it away",
        "RabbitMQ's connections closed": f"{said('CONNECTION_FORCED')} times a process was told so",
        "RabbitMQ half-open": f"{said('Too many heartbeats missed')} times a worker missed heartbeats",
        "RabbitMQ unheard": f"{said('publish_not_confirmed')} times a call was published again",
        "Redis's clock set": f"processes said so {said('redis_clock_stepped')} times",
        "worker's clock set": f"processes said so {said('own_clock_off')} times; {said('worker_takes_no_calls')} times it took no calls",
        "burst of calls": _ends(evidence, "burst"),
        "hostile schemas": _ends(evidence, "hostile"),
    }


def _ends(evidence: Evidence, way: Way) -> str:
    own = [end.result for end in evidence.endings if end.way == way and end.result is not None]
    codes = Counter("success" if result.success else str(result.error_code) for result in own)
    return f"{len(own)} calls: {', '.join(f'{count} {code}' for code, count in codes.most_common())}"
