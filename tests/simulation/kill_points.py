"""Kills a member of a small fleet at each of its writes, one after the other: `python -m simulation.kill_points [ROW ...]`.

A row is one thing that is asked of a fleet, and who dies of it: at its 1st, 2nd, 3rd write and so on, before the write leaves
it, in its middle and after it, until the write never comes. After each death `kill_scenes` checks what must hold. Prints the
points of each row and ends with 1 if anything did not hold.
"""

import argparse
import asyncio
import atexit
import hashlib
import io
import itertools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bed.fleet import Bed
    from bed.redis import VirtualRedis

Effect = Literal["once", "idempotent", "read", "undeclared"]
Fate = Literal["dies", "pauses"]
SceneName = Literal[
    "call", "crowd", "line", "queued", "late", "approved", "rejected", "expired", "job", "program", "core", "stream"
]
Victim = Literal["worker", "agent", "approver", "beat", "core", "nobody"]
EFFECTS: tuple[Effect, ...] = ("once", "idempotent", "read", "undeclared")
_ROOT = Path(__file__).parents[2]
_SOUND = _ROOT / ".cache" / "simulation" / "sound"
PARTS = (0.0, 0.5, 1.0)
"""How much of the write still leaves the member. A member that pauses has written all of it."""
_NEVER = sys.maxsize, PARTS[-1]


@dataclass(frozen=True)
class Row:
    """One thing that is asked, and who dies meanwhile.

    Attributes:
        scene: Which of `kill_scenes.SCENES`.
        victim: Which role. `nobody`: several do something at once, and no member dies.
        tool: Of a call: its effect, and behind an underscore what the module does.
        workers: How many there are. Each may be the one that dies.
        is_bounded: Whether the module may run so many calls only; claims take another way then.
        fate: A member that pauses goes on when its leases have run out.

    """

    scene: SceneName
    victim: Victim
    tool: str = ""
    workers: int = 1
    is_bounded: bool = False
    fate: Fate = "dies"

    @property
    def parts(self) -> tuple[float, ...]:
        """Return how much of each write leaves the member, one after the other."""
        return PARTS if self.fate == "dies" else PARTS[-1:]

    @property
    def name(self) -> str:
        """Return what it is called on the command line."""
        count = f"{self.workers}-workers" if self.workers > 1 else ""
        victim = self.victim if self.fate == "dies" else f"{self.victim}-pauses"
        words = (self.scene, self.tool.replace("_", "-"), "bounded" if self.is_bounded else "", victim, count)
        return ".".join(filter(None, words))


ROWS: tuple[Row, ...] = (
    *(Row("call", "worker", f"{each}_{how}", n) for n in (1, 2) for how in ("works", "retries") for each in EFFECTS),
    *(Row("call", "worker", f"{each}_lasts", 2) for each in ("once", "read")),
    *(Row("call", "worker", f"{each}_works", is_bounded=True) for each in ("once", "read")),
    *(Row("call", "worker", f"{each}_works", 2, fate="pauses") for each in EFFECTS),
    *(Row("call", "worker", f"{each}_lasts", 2, fate="pauses") for each in ("once", "read")),
    *(Row("call", "worker", each, 2, fate="pauses") for each in ("read_fails", "idempotent_declines")),
    Row("call", "worker", "idempotent_repels"),
    Row("crowd", "nobody", "read_lasts", is_bounded=True),
    *(Row("crowd", "worker", f"{each}_works", n) for n in (1, 2) for each in ("once", "read")),
    *(Row("line", "worker", each, 2) for each in ("once_works", "once_retries", "read_works", "read_lasts")),
    *(Row("line", "worker", each, 2, fate="pauses") for each in ("once_lasts", "read_works")),
    *(Row("queued", "worker", f"{each}_{how}", 2) for how in ("works", "lasts") for each in ("once", "read")),
    *(Row("late", "worker", f"{each}_lasts") for each in ("once", "read")),
    *(Row("call", "agent", f"{each}_works") for each in EFFECTS),
    *(Row("approved", victim) for victim in ("worker", "agent", "approver")),
    *(Row("rejected", victim) for victim in ("nobody", "approver")),
    *(Row("expired", victim) for victim in ("worker", "beat")),
    *(Row("job", victim) for victim in ("worker", "beat", "agent")),
    Row("job", "worker", workers=2, fate="pauses"),
    *(Row("program", victim) for victim in ("worker", "beat", "agent")),
    Row("program", "worker", workers=2),
    Row("program", "worker", workers=2, fate="pauses"),
    *(Row("core", victim) for victim in ("worker", "beat", "core")),
    Row("core", "worker", workers=2),
    Row("stream", "agent"),
)


@dataclass
class Findings:
    """What became of a row: how many points it has had, at how many of them the member died, and what did not hold."""

    row: Row
    points: int = 0
    deaths: int = 0
    most_writes: int = 0
    violations: list[str] = field(default_factory=list)


async def walk(
    row: Row,
    bed: "Bed",
    *,
    every: int = 1,
    most: int = 0,
    first: int = 0,
    is_enough: Callable[[Findings], bool] = lambda _: False,
) -> Findings:
    """Go through a row's points until they are over or it is enough: at first nobody dies.

    Args:
        row: What is asked, and who dies.
        bed: Where, with nothing in it.
        every: Each so many points.
        most: More or less so many, spread over all that there seem to be; 0 for any number.
        first: With which one to begin.
        is_enough: Is asked after each point.

    """
    from simulation.kill_scenes import SCENES  # it needs virtual time

    found = Findings(row)
    scene = SCENES[row.scene](row, bed)
    await scene.open()
    survived = -1

    def points() -> Iterator[tuple[int, float]]:
        yield _NEVER
        step = max(every, scene.written * len(row.parts) // most if most else 1)
        whole = ((write, part) for write in itertools.count(1) for part in row.parts)
        yield from itertools.islice(whole, first % step, None, step)

    for write, part in points():
        violations = await scene.play(write, part)
        found.points += 1
        place = f"write {write} part {part}" if (write, part) != _NEVER else "nobody dies"
        found.violations += [f"{row.name} {place}: {each}" for each in violations]
        if scene.has_died:
            survived, found.deaths, found.most_writes = 0, found.deaths + 1, write
        else:
            survived += 1
        if is_enough(found) or survived == len(PARTS):  # all of one write's, or of three: it never came
            break
    found.violations += [f"{row.name} at the end: {each}" for each in await scene.close()]
    return found


def is_sound(row_name: str) -> bool:
    """Return whether all points of a row were gone through with the present product, and everything held."""
    return (_SOUND / row_name).is_file() and (_SOUND / row_name).read_text() == _state()


def keep_as_sound(row: Row) -> None:
    """Keep that everything held at all points of a row."""
    _SOUND.mkdir(parents=True, exist_ok=True)
    (_SOUND / row.name).write_text(_state())


@cache
def _state() -> str:
    rooms = ("registry", "modules", "tasks", "workers", "gateway", "cli")
    files = [path for room in rooms for path in (_ROOT / room).rglob("*") if path.suffix in {".py", ".lua"}]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(files))).hexdigest()


@cache
def _own_redis() -> "VirtualRedis":
    """Start this process's Redis, and keep what workers say off its output."""
    from bed.redis import VirtualRedis  # it needs virtual time

    logging.disable(logging.CRITICAL)
    sys.__stdout__ = None  # type: ignore[misc] # where workers say that they are ready
    sys.stdout = io.StringIO()
    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    redis = VirtualRedis(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(redis.close)
    return redis


def walk_here(
    row: Row, seed: int, every: int = 1, most: int = 0, is_enough: Callable[[Findings], bool] = lambda _: False
) -> Findings:
    """Go through a row in this process, which runs in virtual time from then on."""
    import bed.replaced  # it puts virtual time into the process, before all that knows the time
    from bed.fleet import open_bed
    from bed.loop import VirtualLoop

    redis = _own_redis()
    bed.replaced.seed(seed)
    loop = VirtualLoop(Random(f"order {seed}"))

    async def run() -> Findings:
        async with open_bed(redis) as opened:
            return await walk(row, opened, every=every, most=most, first=seed, is_enough=is_enough)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


def main() -> None:
    options = _options()
    rows = [row for row in ROWS if not options.rows or any(row.name.startswith(word) for word in options.rows)]
    began_at, total = time.monotonic(), Findings(ROWS[0])
    # A process a row: what is dead stays in memory.
    with ProcessPoolExecutor(options.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = [pool.submit(walk_here, row, options.seed, options.every) for row in rows]
        for each in as_completed(waiting):
            found = each.result()
            if options.every == 1 and bool(found.deaths) is (found.row.victim == "nobody"):
                found.violations.append(f"{found.row.name}: {found.deaths} deaths")
            _show(found)
            if options.every == 1 and not found.violations:
                keep_as_sound(found.row)
            total.points += found.points
            total.deaths += found.deaths
            total.violations += found.violations
    _say(
        f"{len(rows)} rows, {total.points} points, {total.deaths} deaths, {len(total.violations)} violations with the seed"
        f" {options.seed} in {time.monotonic() - began_at:.0f} s"
    )
    sys.exit(bool(total.violations))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.kill_points", description=__doc__)
    parser.add_argument("rows", nargs="*", help="the rows whose names begin so; by default all")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) % 1_000_000, help="by default another one each time"
    )
    parser.add_argument("--every", type=int, default=1, help="only each so many points")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if unknown := [word for word in options.rows if not any(row.name.startswith(word) for row in ROWS)]:
        parser.error(f"no row begins with {unknown}; there are {[row.name for row in ROWS]}")
    return options


def _show(found: Findings) -> None:
    _say(
        f"{found.row.name}: {found.points} points, {found.deaths} deaths, up to write {found.most_writes},"
        f" {len(found.violations)} violations"
    )
    for violation in found.violations[:5]:
        _say(f"  {violation}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
