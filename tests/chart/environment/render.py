"""Renders a chart with each of several values, and checks what comes of it against the schemas of the Kubernetes API.

Runs in the environment of requirements.lock. Reads {"chart", "kubernetes", "schemas", "cases": [{"values", "namespace"}]}, and writes
{"lint", "cases": [{"error", "objects", "notes", "faults"}]}, both as JSON.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml

NOTES = "NOTES.txt"


class Loader(yaml.SafeLoader):
    """Reads YAML as Kubernetes does: a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002 - its base class has it so
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{sorted(twice)} stand twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def rendered(chart: helm_python.Chart, case: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The objects of one case, and its notes. Raises what Helm says of wrong values, and YAMLError."""
    chart.validate_schema(case["values"])
    files = chart.render(values=case["values"], name="fleet", namespace=case["namespace"])
    notes = "".join(text for path, text in files.items() if path.endswith(NOTES))
    texts = [text for path, text in files.items() if not path.endswith(NOTES)]
    objects = [found for text in texts for found in yaml.load_all(text, Loader) if found is not None]
    return objects, notes


def faults_of(found: dict[str, Any], kubernetes: str, schemas: Path) -> list[str]:
    """What the API would refuse of an object; one of a CRD is checked by its own schema of `schemas`."""
    own = schemas / f"{found['apiVersion'].replace('/', '_')}_{found['kind']}.json"
    try:
        if own.exists():
            jsonschema.Draft202012Validator(json.loads(own.read_text())).validate(found)
        else:
            kubernetes_validate.validate(found, kubernetes, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as exc:
        where = "/".join(map(str, exc.absolute_path))
        return [f"{found['kind']} {found['metadata']['name']}: {where}: {exc.message[:300]}"]
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as exc:
        return [f"{found['kind']}: {exc}"]
    return []


def outcome(chart: helm_python.Chart, case: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What one case comes to."""
    try:
        objects, notes = rendered(chart, case)
    except (helm_python.HelmError, yaml.YAMLError) as exc:
        return {"error": str(exc), "objects": [], "notes": "", "faults": []}
    schemas = Path(asked["schemas"])
    faults = [fault for found in objects for fault in faults_of(found, asked["kubernetes"], schemas)]
    return {"error": None, "objects": objects, "notes": notes, "faults": faults}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asked = json.load(sys.stdin)
    try:
        chart = helm_python.Chart.load(asked["chart"])
        lint = helm_python.lint(asked["chart"], asked["cases"][0]["values"], kube_version=f"v{asked['kubernetes']}")
        answer = {"lint": lint, "cases": [outcome(chart, case, asked) for case in asked["cases"]]}
    except helm_python.HelmError as exc:
        answer = {"lint": {"messages": [], "errors": [str(exc)]}, "cases": []}
    json.dump(answer, sys.stdout)
