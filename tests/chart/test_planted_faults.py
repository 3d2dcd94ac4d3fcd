"""What is wrong with values or templates is found: each fault here is planted, and some check names it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployment.chart import CHART, Answer, render
from support.deployment.rules import faults

pytestmark = [pytest.mark.chart, pytest.mark.timeout(500)]

WHOLE: dict[str, Any] = yaml.safe_load((CHART / "examples" / "whole.yaml").read_text())
KEDA = {"by": "keda"}

# Values that are refused -> a part of what Helm says.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no Redis": ({"redis": {"existingSecret": ""}}, "existingSecret"),
    "a typo at the top": ({"worker": {}}, "additional properties 'worker' not allowed"),
    "a typo in a lane": ({"workers": {"fast": {"replica": 3}}}, "additional properties 'replica' not allowed"),
    "a typo in a lane's name": ({"workers": {"fats": {}}}, "additional properties 'fats' not allowed"),
    "a typo in a setting": ({"settings": {"TOOLFLEET_RESULT_TTL": 5}}, "invalid propertyName 'TOOLFLEET_RESULT_TTL'"),
    "a setting that the chart sets": (
        {"settings": {"TOOLFLEET_DRAIN_SECONDS": 5}},
        "invalid propertyName 'TOOLFLEET_DRAIN_SECONDS'",
    ),
    "a key in the open": (
        {"settings": {"TOOLFLEET_SIGNING_KEY": "x" * 32}},
        "invalid propertyName 'TOOLFLEET_SIGNING_KEY'",
    ),
    "a password in a URL": (
        {"settings": {"TOOLFLEET_MODULE_SERVICES": {"owls": "http://me:secret@owls:8000"}}},
        "TOOLFLEET_MODULE_SERVICES",
    ),
    "a secret's value in the place of its name": (
        {"secretSettings": {"TOOLFLEET_SIGNING_KEY": "x" * 32}},
        "TOOLFLEET_SIGNING_KEY",
    ),
    "a token among a host's variables": (
        {"hosts": {"owls": {"folder": {"path": "/tools"}, "env": {"OWL_TOKEN": "x"}}}},
        "hosts",
    ),
    "a token in a header": (
        {"hosts": {"owls": {"mcp": {"url": "https://owls/mcp", "headers": ["Authorization:Bearer abc"]}}}},
        "hosts",
    ),
    "a setting of ours among own variables": (
        {"workers": {"fast": {"env": {"TOOLFLEET_LANE": "slow"}}}},
        "invalid propertyName 'TOOLFLEET_LANE'",
    ),
    "a grace that is too short": (
        {"workers": {"slow": {"longestCallSeconds": 300, "terminationGracePeriodSeconds": 60}}},
        "workers.slow has terminationGracePeriodSeconds 60, and needs 345",
    ),
    "a call that is longer than its lane's longest": (
        {"workers": {"slow": {"longestCallSeconds": 120}}},
        "the settings let a call of that lane run for 300 s",
    ),
    "a gateway's grace that is too short": (
        {"gateway": {"terminationGracePeriodSeconds": 20}},
        "gateway has terminationGracePeriodSeconds 20",
    ),
    "two autoscalers": ({"workers": {"slow": {"autoscaling": {"by": "both"}}}}, "autoscaling/by"),
    "more at least than at most": (
        {"workers": {"slow": {"autoscaling": {**KEDA, "minReplicas": 9, "maxReplicas": 3}}}},
        "minReplicas above its maxReplicas",
    ),
    "no worker for the fleet's own tasks": (
        {"workers": {"fast": {"autoscaling": {**KEDA, "minReplicas": 0}}}},
        "only the slow lane may be without workers",
    ),
    "scaling of a worker for all lanes": (
        {"workers": {"all": {"longestCallSeconds": 300, "autoscaling": KEDA}}},
        "workers.all has no autoscaling",
    ),
    "scaling without a key": ({"keda": {"existingSecret": ""}}, "keda.existingSecret must name"),
    "scaling without a gateway": ({"gateway": {"enabled": False}}, "autoscaling by keda asks a gateway"),
    "a budget that lets no pod go": (
        {"workers": {"fast": {"podDisruptionBudget": {"maxUnavailable": 0}}}},
        "maxUnavailable",
    ),
    "a budget of no percent": ({"gateway": {"podDisruptionBudget": {"maxUnavailable": "0%"}}}, "maxUnavailable"),
    "two beats": ({"beat": {"replicas": 2}}, "additional properties 'replicas' not allowed"),
    "no limit of memory": ({"workers": {"fast": {"resources": {"limits": {"memory": None}}}}}, "limits"),
    "a host of nothing": ({"hosts": {"owls": {"folder": None}}}, "hosts"),
    "a host of two things": ({"hosts": {"owls": {"openapi": {"document": "/pets.json"}}}}, "hosts"),
    "an ingress without a name": ({"gateway": {"ingress": {"hosts": []}}}, "hosts"),
    "monitors without metrics": ({"metrics": {"enabled": False}}, "serviceMonitor needs metrics.enabled"),
    "two hosts of one name": (
        {"hosts": {"source-code": {"folder": {"path": "/tools"}}}},
        "Two modules of hosts would both be named",
    ),
}

# A text in a template -> what stands there instead, and what is found then.
PLANTED: dict[str, tuple[str, str, str, str]] = {
    "liveness asks Redis": (
        "_helpers.tpl",
        "livenessProbe:\n  httpGet: {path: /livez",
        "livenessProbe:\n  httpGet: {path: /readyz",
        "its livenessProbe asks /readyz",
    ),
    "readiness asks no Redis": ("_helpers.tpl", "path: /readyz", "path: /livez", "its readinessProbe asks /livez"),
    "a probe of a port that is not there": (
        "workers.yaml",
        '"toolfleet.probes" "probes"',
        '"toolfleet.probes" "probe"',
        "asks a port that it does not have",
    ),
    "probes that listen on loopback": (
        "workers.yaml",
        "--probe-address, 0.0.0.0",
        "--probe-address, 127.0.0.1",
        "where nobody else reaches it",
    ),
    "no limits": (
        "workers.yaml",
        "            {{- toYaml $worker.resources | nindent 12 }}",
        "            requests: {cpu: 1, memory: 1Gi}",
        "has no limit of memory",
    ),
    "a grace that is too short": (
        "workers.yaml",
        '{{ include "toolfleet.grace" (dict "given" $worker',
        '{{ 60 }} # {{ include "toolfleet.grace" (dict "given" $worker',
        "is killed after 60.0 s, while it drains",
    ),
    "a drain that is too short": ("_helpers.tpl", "{{- add (int .longestCallSeconds) 20 -}}", "30", "drains for 30"),
    "no preStop": ("beat.yaml", '{{- include "toolfleet.lifecycle" . | nindent 10 }}', "", "beat has no preStop"),
    "both autoscalers": (
        "autoscaling.yaml",
        "{{- else }}\n---",
        "{{- end }}\n{{- if true }}\n---",
        "has 2 autoscalers",
    ),
    "a number of replicas beside an autoscaler": (
        "workers.yaml",
        '{{- if eq $worker.autoscaling.by "none" }}',
        "{{- if true }}",
        "is scaled, and has a number of replicas",
    ),
    "another lane's load": (
        "autoscaling.yaml",
        "/scale/{{ $lane }}",
        "/scale/all",
        "asks for another lane than its own",
    ),
    "scaling without a key": (
        "autoscaling.yaml",
        '      authenticationRef:\n        name: {{ include "toolfleet.fullname" $ }}-scale\n',
        "",
        "asks the gateway without a key",
    ),
    "root": ("_helpers.tpl", "runAsUser: 10001", "runAsUser: 0", "runs as root"),
    "a root that can be written to": (
        "_helpers.tpl",
        "readOnlyRootFilesystem: true",
        "readOnlyRootFilesystem: false",
        "can write to its root",
    ),
    "capabilities": ("_helpers.tpl", "drop: [ALL]", "drop: [NET_RAW]", "keeps capabilities"),
    "no seccomp": ("_helpers.tpl", "type: RuntimeDefault", "type: Unconfined", "has no seccomp profile"),
    "a token of Kubernetes": (
        "_helpers.tpl",
        "automountServiceAccountToken: false",
        "automountServiceAccountToken: true",
        "has a token of Kubernetes",
    ),
    "Services for settings": (
        "_helpers.tpl",
        "enableServiceLinks: false",
        "enableServiceLinks: true",
        "takes Services for settings",
    ),
    "a secret in the open": (
        "settings.yaml",
        "data:\n",
        "data:\n  TOOLFLEET_SIGNING_KEY: 0123456789abcdef0123456789abcdef\n",
        "TOOLFLEET_SIGNING_KEY stands in the open",
    ),
    "a URL of Redis in the open": (
        "beat.yaml",
        '            {{- include "toolfleet.secrets" $about | nindent 12 }}',
        "            - {name: TOOLFLEET_REDIS_URL, value: 'redis://redis'}",
        "the URL of Redis stands in the open",
    ),
    "a Secret of the chart's": ("serviceaccount.yaml", "kind: ServiceAccount", "kind: Secret", "is made by the chart"),
    "modules' headers for all": ("_helpers.tpl", '(ne $.kind "worker")', "false", "has the modules' headers"),
    "a setting that is none": (
        "workers.yaml",
        "TOOLFLEET_DRAIN_SECONDS",
        "TOOLFLEET_DRAIN_SECOND",
        "TOOLFLEET_DRAIN_SECOND is no setting",
    ),
    "a budget that blocks all": (
        "_parts.tpl",
        "maxUnavailable: {{ .budget.maxUnavailable }}",
        "minAvailable: 100%",
        "may let no pod go",
    ),
    "a budget of nobody's": (
        "_parts.tpl",
        '{{- include "toolfleet.selector" .about | nindent 6 }}',
        "app: owls",
        "selects nothing",
    ),
    "two beats": ("beat.yaml", "replicas: 1", "replicas: 2", "there is not exactly one beat"),
    "a beat beside its successor": (
        "beat.yaml",
        "type: Recreate",
        "type: RollingUpdate",
        "runs twice while it is replaced",
    ),
    "hosts that everybody reaches": (
        "networkpolicy.yaml",
        "      from:\n        {{- range $workers }}",
        "      to_be_removed:\n        {{- range $workers }}",
        "to_be_removed",
    ),
    "a fleet's part without a policy": (
        "networkpolicy.yaml",
        'matchLabels:\n      {{- include "toolfleet.selector" (dict "root" . "component" "beat")',
        'matchLabels:\n      {{- include "toolfleet.selector" (dict "root" . "component" "gateway")',
        "beat is reached by everybody",
    ),
    "a Service that leads nowhere": ("gateway.yaml", "targetPort: http", "targetPort: web", "leads nowhere"),
    "an image of any version": (
        "_helpers.tpl",
        "default .Chart.AppVersion .Values.image.tag",
        '"latest"',
        "has no version",
    ),
    "a field that Kubernetes does not know": (
        "beat.yaml",
        "          ports:",
        "          port: []\n          ports:",
        "Additional properties are not allowed",
    ),
    "a word where a number is asked": (
        "gateway.yaml",
        "replicas: {{ $gateway.replicas }}",
        "replicas: many",
        "is not of type",
    ),
    "a field that KEDA does not know": (
        "autoscaling.yaml",
        "cooldownPeriod:",
        "coolDownPeriod:",
        "Additional properties are not allowed",
    ),
    "a number where KEDA wants text": ("autoscaling.yaml", 'targetValue: "1"', "targetValue: 1", "is not of type"),
    "a key that stands twice": ("beat.yaml", "  replicas: 1\n", "  replicas: 1\n  replicas: 1\n", "stand twice"),
}


def merged(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges them: objects by their keys."""
    both = dict(values)
    for key, value in own.items():
        known = both.get(key)
        both[key] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return both


@pytest.fixture(scope="module")
def refused(python: Path) -> Answer:
    """All values that are wrong, at once: each is the whole example but for one thing."""
    return render(python, [merged(WHOLE, values) for values, _ in REFUSED.values()])


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_values_are_refused(refused: Answer, name: str) -> None:
    """Nothing is rendered, and what is said names the value."""
    found = refused.cases[list(REFUSED).index(name)]

    assert found.error is not None, found.objects
    assert REFUSED[name][1] in found.error


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_a_template_is_found(python: Path, tmp_path: Path, name: str) -> None:
    """By a rule of ours, by the API's schema, or by Helm."""
    file, text, other, said = PLANTED[name]
    chart = tmp_path / "toolfleet"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / file
    assert text in template.read_text(), "the fault is not planted"
    template.write_text(template.read_text().replace(text, other))
    (found,) = render(python, [WHOLE], chart).cases

    everything = [found.error or "", *found.faults, *(faults(found.objects) if found.objects else [])]
    assert any(said in fault for fault in everything), everything
