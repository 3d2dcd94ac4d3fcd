"""Tells of a soak who holds how much, and who goes on growing."""

from collections.abc import Mapping, Sequence
from statistics import median

from soak.run import Ran, Sample

_MEGABYTE = 2**20
_MOST_GROWTH = 0.05  # of a process's memory, from the run's third quarter to its last
_MOST_MEGABYTES = 4.0
_MOST_DESCRIPTORS = 5
_MOST_KEYS = 0.05  # more in the last quarter than in the third, of a rate that is the same
_FEW_KEYS = 100


def grown(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """A sentence for each process that still grows in the last half of a run: a cache is full by then."""
    found = list[str]()
    for name, seen in samples.items():
        third, last = _quarter(seen, 2), _quarter(seen, 3)
        before, after = (median(one.memory for one in part) / _MEGABYTE for part in (third, last))
        if after - before > max(_MOST_MEGABYTES, _MOST_GROWTH * before):
            found.append(f"{name} goes on growing: {before:.1f} MB in the third quarter, {after:.1f} MB in the last")
        opened = median(one.descriptors for one in last) - median(one.descriptors for one in third)
        if opened > _MOST_DESCRIPTORS:
            found.append(f"{name} keeps {opened:.0f} descriptors more in the last quarter than in the third")
    return found


def grown_keys(redis: Sequence[tuple[float, int, int]]) -> list[str]:
    """A sentence if Redis' keys still grow in the last half of a run: what is kept for a while is gone by then."""
    third, last = (
        median(keys for *_, keys in redis[len(redis) * part // 4 : len(redis) * (part + 1) // 4]) for part in (2, 3)
    )
    if last - third <= max(_FEW_KEYS, _MOST_KEYS * third):
        return []
    return [f"Redis goes on growing: {third:.0f} keys in the third quarter, {last:.0f} in the last"]


def table(ran: Ran) -> str:
    """The run, as Markdown: medians of its quarters."""
    calls = sum(ran.ends.values())
    lines = [
        f"{calls} calls in {ran.plan.minutes:g} minutes, {ran.plan.rate:g} a second of an agent, {ran.plan.rest_rate:g} and {ran.plan.mcp_rate:g} of gateways' clients over REST and MCP, connections cut {len(ran.redis)} times",
        "",
        "| process | MB in quarter 1 | 2 | 3 | 4 | descriptors in 1 | 4 | threads in 1 | 4 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, seen in ran.samples.items():
        quarters = [_quarter(seen, number) for number in range(4)]
        memory = [f"{median(one.memory for one in part) / _MEGABYTE:.1f}" for part in quarters]
        rest = [median(one.descriptors for one in quarters[at]) for at in (0, 3)]
        rest += [median(one.threads for one in quarters[at]) for at in (0, 3)]
        lines.append(f"| {name} | {' | '.join(memory)} | {' | '.join(f'{one:.0f}' for one in rest)} |")
    kept = [ran.redis[len(ran.redis) * part // 4 : len(ran.redis) * (part + 1) // 4] for part in range(4)]
    memory = [f"{median(bytes_ for _, bytes_, _ in part) / _MEGABYTE:.1f}" for part in kept]
    keys = [f"{median(keys for *_, keys in part):.0f}" for part in kept]
    lines += [f"| Redis | {' | '.join(memory)} | | | | |", "", f"Keys in Redis: {', '.join(keys)}", ""]
    lines += [f"- {kind}: {end} {count}" for (kind, end), count in sorted(ran.ends.items())]
    return "\n".join([*lines, *ran.trouble])


def _quarter(seen: Sequence[Sample], number: int) -> Sequence[Sample]:
    return seen[len(seen) * number // 4 : len(seen) * (number + 1) // 4]
