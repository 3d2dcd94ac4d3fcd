"""Renders the chart with Helm's own library, in the environment of `tests/chart/environment`."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.documents import ROOT

CHART = ROOT / "ops" / "chart"
KUBERNETES = "1.37.0"
NAMESPACE = "agents"
_RENDER = ROOT / "tests" / "chart" / "environment" / "render.py"
_SCHEMAS = ROOT / "tests" / "chart" / "schemas"
_SECONDS = 100

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """What one case of values comes to. `error`: what Helm says of it, then there is nothing else."""

    error: str | None
    objects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    notes: str = ""
    faults: list[str] = field(default_factory=list[str])
    """What the Kubernetes API would refuse."""


@dataclass(frozen=True)
class Answer:
    """`lint`: what Helm's linter complains of."""

    lint: list[str]
    cases: list[Rendered]


def render(python: Path, cases: Sequence[Mapping[str, Any]], chart: Path = CHART) -> Answer:
    """Render the chart with each of these values, as the release `fleet`, with the interpreter that has Helm's library."""
    asked = {
        "chart": str(chart),
        "kubernetes": KUBERNETES,
        "schemas": str(_SCHEMAS),
        "cases": [{"values": values, "namespace": NAMESPACE} for values in cases],
    }
    done = subprocess.run(
        [str(python), str(_RENDER)],
        input=json.dumps(asked),
        env={"PATH": os.environ["PATH"], "HOME": str(_RENDER.parent)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = answer["lint"]
    said = [message["error"] for message in found["messages"] if message["severity"] > 1]
    return Answer([*said, *found["errors"]], [Rendered(**case) for case in answer["cases"]])
