"""What it costs to look for personal data: `python -m benchmarks.features.personal_data`. Fails above 0.1 ms a kB of JSON without any."""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import wait_for_quiet
from toolfleet_registry.personal_data.personal_data import PersonalData

_QUIET_SECONDS = 60  # at most, for other programs to be done
_ROUNDS = 15
_MOST_MS = 0.1  # for each kB of ordinary JSON
_WORDS = "the invoice of a customer was late because stock is low and owls move to another warehouse next week".split()


@dataclass(frozen=True)
class Figure:
    """One line of the report: what, how many kB, and the milliseconds of this process for each; `most` if it must not be more."""

    what: str
    kilobytes: float
    ms: float
    most: float | None = None

    def line(self) -> str:
        """As a row of a table."""
        return f"| {self.what} | {self.kilobytes:,.1f} | {self.ms:.3f} | {'' if self.most is None else f'< {self.most:g}'} |"


def main() -> None:
    """Measure, print, write, and fail if a figure is too large."""
    wait_for_quiet(_QUIET_SECONDS)
    figures = _figures()
    text = "\n".join(
        [
            "What `make bench BENCH=pii` (`python -m benchmarks.features.personal_data`) measures: processor time for each kB of JSON,",
            f"the median of {_ROUNDS} rounds, with all types and the phone numbers of nine regions.\n",
            "| | kB | ms/kB | goal |",
            "|---|---:|---:|---:|",
            *(figure.line() for figure in figures),
        ]
    )
    print(text)
    (Path(__file__).parents[1] / "results" / "personal_data.md").write_text(text + "\n")
    sys.exit(any(figure.most is not None and figure.ms > figure.most for figure in figures))


def _figures() -> list[Figure]:
    dice = random.Random(1)
    data = PersonalData()
    own = PersonalData(patterns={"employee": r"\bE-\d{6}\b", "case": r"\bCASE/\d{4}/\d{2,6}\b"})
    page, record = [_record(dice) for _ in range(1_000)], _record(dice)
    with_phones = [_record(dice) | {"phone": "none", "to": "somebody"} for _ in range(1_000)]
    dense = [{"to": f"owl{n}@example.com", "tel": f"+49 30 {n:07}", "host": f"10.0.{n % 256}.7"} for n in range(1_000)]
    return [
        _figure("a result of 1,000 records without any", page, data.hide, most=_MOST_MS),
        _figure("the same as a text", json.dumps(page), data.find, most=_MOST_MS),
        _figure("the same, and two own patterns", page, own.hide),
        _figure("records with members named `phone`", with_phones, data.hide),
        _figure("one record: the arguments of a call", record, data.hide),
        _figure("prose", " ".join(dice.choices(_WORDS, k=20_000)), data.find),
        _figure("nothing but personal data, hidden", dense, data.hide),
        *(
            _figure(f"100 kB of `{piece}`", piece * (100_000 // len(piece)), data.find)
            for piece in ("1", "@", "1 ", ":", "a@", "1.", "4111 ", "DE12 ")
        ),
    ]


def _figure(what: str, value: Any, work: Callable[[Any], object], *, most: float | None = None) -> Figure:
    kilobytes = len(json.dumps(value)) / 1024
    repeats = max(int(50 / kilobytes), 1)
    times = list[float]()
    for _ in range(_ROUNDS):
        began_at = time.process_time()
        for _ in range(repeats):
            work(value)
        times.append((time.process_time() - began_at) * 1000 / repeats / kilobytes)
    return Figure(what, kilobytes, statistics.median(times), most)


def _record(dice: random.Random) -> dict[str, Any]:
    """What a service answers about an order: ids, hashes, moments, prices, words, and four numbers of seven digits or more."""
    return {
        "id": dice.randrange(10**9),
        "uuid": f"{dice.getrandbits(32):08x}-{dice.getrandbits(16):04x}-4{dice.getrandbits(12):03x}-a{dice.getrandbits(12):03x}-{dice.getrandbits(48):012x}",
        "name": " ".join(dice.choices(_WORDS, k=3)),
        "created_at": f"2026-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}T{dice.randrange(24):02}:{dice.randrange(60):02}:07Z",
        "price": round(dice.random() * 1000, 2),
        "north": dice.uniform(-90, 90),
        "tags": dice.sample(_WORDS, 3),
        "active": True,
        "parent": None,
        "order": f"ORD-2026-{dice.randrange(10**6):06}",
        "number": str(dice.randrange(10**10)),
        "description": " ".join(dice.choices(_WORDS, k=25)),
        "sha": f"{dice.getrandbits(160):040x}",
        "version": f"1.{dice.randrange(9)}.{dice.randrange(30)}",
        "bytes": dice.randrange(10**8),
        "at_ms": 1_700_000_000_000 + dice.randrange(10**10),
    }


if __name__ == "__main__":
    main()
