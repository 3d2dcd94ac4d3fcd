"""The Kubernetes chart, as far as it can be judged without Helm; `make test-all` judges the rest."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from support.documents import ROOT
from toolfleet_registry.settings import PREFIX, Settings

CHART = ROOT / "ops" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OF_HOSTS = {"TOOLFLEET_MODULE_KEY", "TOOLFLEET_ANNOUNCE_KEY"}


def merged(values: Any, own: Any) -> Any:
    """Values of one's own over those of the chart, as Helm merges them."""
    if not (isinstance(values, dict) and isinstance(own, dict)):
        return own
    return {name: merged(values.get(name), own.get(name, values.get(name))) for name in (*values, *own)}


def test_its_version_is_the_projects() -> None:
    """It runs the image of that version unless it is told otherwise."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r"toolfleet-sdk==([\w.+]+)", (ROOT / "pyproject.toml").read_text())

    assert version is not None
    assert chart["appVersion"] == chart["version"] == version[1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema(example: Path) -> None:
    values = merged(VALUES, yaml.safe_load(example.read_text()))
    found = jsonschema_rs.validator_for(SCHEMA).iter_errors(values)

    assert [f"{list(error.instance_path)}: {error.message}" for error in found] == []


def test_without_a_redis_it_is_not_installed() -> None:
    """So the chart's values alone do not fit, and that is all that is missing."""
    found = list(jsonschema_rs.validator_for(SCHEMA).iter_errors(VALUES))

    assert [list(error.instance_path) for error in found] == [["redis", "existingSecret"]]


def test_its_variables_are_settings() -> None:
    """Each that a template sets or names is one, and no text of a template has another."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OF_HOSTS
    named = {
        name for path in CHART.rglob("templates/*") for name in re.findall(rf"{PREFIX}[A-Z_]+[A-Z]", path.read_text())
    }

    assert len(named) > 10
    assert named - known == set()
