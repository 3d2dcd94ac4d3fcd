"""Holds what a call was measured to cost each process. The only place where these figures stand in code."""

from dataclasses import dataclass

MEASURED_BY = "make bench"
"""The command that measures them: W1 in `benchmarks/results/full.md`, on two cores of an Intel Xeon, Redis without persistence."""


@dataclass(frozen=True, slots=True)
class CallCosts:
    """CPU in seconds a call, memory in bytes. `slots`: how many calls a worker process runs at once.

    `core_use`: how much of a core a process should use, so that peaks find room; `redis_use` the same of Redis.
    """

    agent_cpu: float = 0.13e-3
    worker_cpu: float = 0.25e-3
    redis_cpu: float = 0.05e-3
    worker_memory: int = 69_000_000
    running_memory: int = 23_000
    message_bytes: int = 1_500
    message_copies: int = 2
    record_bytes: int = 300
    slots: int = 1_000
    slot_use: float = 0.8
    core_use: float = 0.6
    redis_use: float = 0.7


MEASURED = CallCosts()
