"""The results as panels of bars, drawn in the environment that has what draws."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import HERE, is_ready, python_of
from benchmarks.reporting.results import Results
from benchmarks.systems import SYSTEMS

_SECONDS = 60


@dataclass(frozen=True)
class Panel:
    """One figure of all systems."""

    title: str
    workload: str
    key: str
    is_log: bool = False

    def filled(self, results: Results) -> dict[str, Any]:
        """As the drawing program takes it."""
        bars = []
        for system in SYSTEMS:
            spread = results.spread(system.name, self.workload, self.key)
            if spread is not None and spread.median > 0:
                label = system.title.replace("*", "")
                facts = {"value": spread.median, "low": spread.low, "high": spread.high}
                bars.append({"label": label, "kind": system.kind, **facts})
        return {"title": self.title, "is_log": self.is_log, "bars": bars}


_PANELS = (
    Panel("W1: calls/s (module 0 ms, 200 in flight)", "W1", "rate"),
    Panel("W2: calls/s (module 50 ms, 500 in flight)", "W2", "rate"),
    Panel("W3: median latency of one call, ms (log)", "W3", "p50_ms", is_log=True),
    Panel("W1: worker CPU seconds per 1,000 calls", "W1", "cpu.worker"),
    Panel("W1 with Redis 2.8 ms away: calls/s", "far", "rate"),
    Panel("Cold start: seconds to a queued call's result", "cold", "cold_seconds"),
)


def draw(results: Results, out: Path) -> bool:
    """Write a PNG; whether there was anything to draw, and to draw it with. Raises `CalledProcessError`."""
    panels = [panel for panel in (panel.filled(results) for panel in _PANELS) if panel["bars"]]
    if not panels or not is_ready("plot"):
        return False
    command = [python_of("plot"), HERE / "plot" / "draw.py", out]
    subprocess.run(command, input=json.dumps(panels).encode(), check=True, timeout=_SECONDS)
    return True
