"""What is measured: the workloads of every system, and what only some are asked."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.lengths import Lengths
from benchmarks.machine import cpu_seconds, memory_mb
from benchmarks.reporting.results import Results
from benchmarks.shipped import shipped_fleet
from benchmarks.stage import Stage
from benchmarks.systems import OURS, System
from benchmarks.trial import Record, TrialFailed, running
from benchmarks.work import INSTANT, WAIT_50_MS

_W1: Record = {"tools": [INSTANT], "in_flight": 200, "warm": 100}
_W2: Record = {"tools": [WAIT_50_MS], "in_flight": 500, "warm": 100}
_W3: Record = {"tools": [INSTANT], "in_flight": 1, "warm": 20}
_W4: Record = {"tools": [INSTANT], "in_flight": 200}
_W5: Record = {"tools": [INSTANT], "warm": 100}
_W5_LOAD = 0.7  # of what the fastest peer can do
_SLOW_SLOTS = 50
_SLOW_IN_FLIGHT = 500
_CROWD_SLOTS = 100  # so that a user may have 200 calls under way
_CROWD = 10_000
_SAMPLE_SECONDS = 0.2
_FOR_EVER = 3600


def workloads(system: System, stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """Cold start; W1 and W2: throughput; W3: latency, one call at a time; W4: publishing, with nobody to consume."""
    with running(system, stage, lengths.trial) as trial:
        producer = trial.start_producer()
        if system.has_flower:
            trial.start_flower()
        first = trial.first_call(producer)
        wanted = {"cold", *system.workloads} & (lengths.workloads or {"cold", *system.workloads})
        if system.worker is not None and "cold" in wanted:
            yield {"workload": "cold", **first}
        if system.is_silent:
            trial.silence()
        for name in ("W1", "W2", "W3"):
            if name in wanted:
                yield {"workload": name, **trial.window(producer, **_order(name, system, lengths))}
        if system.worker is not None and "W4" in wanted:
            trial.stop_workers()
            yield {"workload": "W4", **trial.window(producer, "publish", **_order("W4", system, lengths))}


def shipped(system: System, stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """W1 and W3 of all that `toolfleet up` starts."""
    with (
        shipped_fleet(system, stage, lengths.trial) as fleet,
        running(system, fleet.stage, lengths.trial, empties=False) as trial,
    ):
        trial.others_workers = fleet.worker_pids
        producer = trial.start_producer()
        trial.first_call(producer, workers=False)
        for name in system.workloads:
            yield {"workload": name, **trial.window(producer, **_order(name, system, lengths))}


def _order(name: str, system: System, lengths: Lengths) -> Record:
    order = {"W1": _W1, "W2": _W2, "W3": _W3, "W4": _W4}[name]
    seconds = {"W3": lengths.latency, "W4": lengths.publishing}.get(name, lengths.throughput)
    in_flight = system.most_in_flight.get(name, order["in_flight"])
    return {**order, "seconds": seconds, "in_flight": in_flight}


def open_loop(system: System, stage: Stage, lengths: Lengths, results: Results) -> Iterator[Record]:
    """W5: calls that come by chance, at a share of what the fastest peer could do in this round's W1."""
    capacity = results.capacity("W1")
    if capacity is None:
        raise TrialFailed("no peer's W1 was measured in this round, of which the load is a share")
    order: Record = {**_W5, "rate": _W5_LOAD * capacity, "seconds": lengths.due, "seed": results.round}
    with running(system, stage, lengths.trial) as trial:
        producer = trial.start_producer()
        trial.first_call(producer)
        yield {"workload": "W5", "due": order["rate"], **trial.window(producer, "open", **order)}


def far(system: System, far_stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """W1, with a Redis that is milliseconds away."""
    with running(system, far_stage, lengths.trial) as trial:
        producer = trial.start_producer()
        trial.first_call(producer)
        yield {"workload": "far", **trial.window(producer, seconds=lengths.throughput, **_W1)}


def queues(count: int, stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """W1 with the calls spread over so many queues of one worker."""
    system = replace(OURS, modules=[f"module{number}" for number in range(count)])
    tools = [f"{module}.echo" for module in system.modules]
    with running(system, stage, lengths.trial) as trial:
        producer = trial.start_producer()
        trial.first_call(producer, tools)
        order: Record = {**_W1, "tools": tools}
        yield {"workload": f"queues_{count}", **trial.window(producer, seconds=lengths.throughput, **order)}


def held(stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """Calls of 10 s, thousands at a time, in one worker process: what a call that waits costs."""
    slots = {"TOOLFLEET_WORKER_CONCURRENCY": str(lengths.held_calls)}
    system = replace(OURS, modules=("instant", "wait10000"), settings=slots)
    with running(system, stage, lengths.trial) as trial:
        producer = trial.start_producer()
        trial.first_call(producer)
        stage.most_running()
        order: Record = {"in_flight": lengths.held_calls, "most": lengths.held_calls, "warm": 0, "seconds": _FOR_EVER}
        trial.begin_window(producer, tools=["wait10000.echo"], **order)
        before, cpu = memory_mb(trial.worker_pids), cpu_seconds(trial.worker_pids)
        height = before
        producer.tell(go=True)
        while not producer.has_answered(_SAMPLE_SECONDS):
            height = max(height, memory_mb(trial.worker_pids))
        report = producer.answer()
        worker_cpu = cpu_seconds(trial.worker_pids) - cpu
        facts = {"before_mb": before, "memory_mb": height, "worker_cpu": worker_cpu, "at_once": stage.most_running()}
        yield {"workload": "held", **report, **facts}


def mixed(stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """One call after the other in the fast lane: while nothing else happens, and while the slow lane has too much."""
    settings = {"TOOLFLEET_SLOW_MODULES": "wait2000"}
    system = replace(OURS, modules=("instant", "wait2000"), settings=settings)
    with running(system, stage, lengths.trial) as trial:
        trial.start_workers(TOOLFLEET_LANE="slow", TOOLFLEET_WORKER_CONCURRENCY=str(_SLOW_SLOTS))
        slow, fast = trial.start_producer(), trial.start_producer()
        trial.first_call(slow, ["wait2000.echo"], workers=False)
        trial.start_workers(TOOLFLEET_LANE="fast")
        trial.first_call(fast, workers=False)
        yield {"workload": "mixed_idle", **trial.window(fast, seconds=lengths.latency, **_W3)}
        order: Record = {"tools": ["wait2000.echo"], "in_flight": _SLOW_IN_FLIGHT, "warm": 0, "seconds": _FOR_EVER}
        trial.begin_window(slow, **order)
        slow.tell(go=True)
        yield {"workload": "mixed_busy", **trial.window(fast, seconds=lengths.latency, **_W3)}


def crowd(stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """One call after the other of one user: while nothing else happens, and while another one has thousands waiting."""
    settings = {"TOOLFLEET_CALLS_PER_CALLER": "", "TOOLFLEET_WORKER_CONCURRENCY": str(_CROWD_SLOTS)}
    with running(replace(OURS, settings=settings), stage, lengths.trial) as trial:
        one, many = trial.start_producer(), trial.start_producer()
        trial.first_call(one)
        order: Record = {**_W3, "tools": [WAIT_50_MS], "user": "user-1", "seconds": lengths.crowd}
        yield {"workload": "crowd_none", **trial.window(one, **order)}
        flood: Record = {"tools": [WAIT_50_MS], "in_flight": _CROWD, "warm": 0, "seconds": _FOR_EVER}
        trial.begin_window(many, **flood)
        many.tell(go=True)
        yield {"workload": "crowd_all", **trial.window(one, **order)}


def clients(stage: Stage, lengths: Lengths) -> Iterator[Record]:
    """W1 without a worker that limits it: our client, and Celery's own way to wait in so many threads."""
    with running(OURS, stage, lengths.trial) as trial:
        producer = trial.start_producer()
        trial.first_call(producer)
        trial.stop_workers()
        trial.start_answerer(INSTANT)
        yield {"workload": "client", **trial.window(producer, seconds=lengths.throughput, **_W1)}
        for threads in lengths.threads:
            threaded = trial.start_producer(f"toolfleet:{threads}")
            yield {"workload": f"client_{threads}", **trial.window(threaded, seconds=lengths.throughput, **_W1)}
