"""The chart renders into objects that the Kubernetes API takes, and that are what a fleet needs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployment.chart import CHART, Answer, Rendered, render
from support.deployment.pods import labels_of, of_kind, pods_of, settings_of, variables_of
from support.deployment.rules import faults

pytestmark = [pytest.mark.chart, pytest.mark.timeout(500)]

LEAST: dict[str, Any] = {"redis": {"existingSecret": "redis"}}
EXAMPLES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "examples").glob("*.yaml"))}
CASES: dict[str, dict[str, Any]] = {"least": LEAST, **EXAMPLES}


@pytest.fixture(scope="module")
def answer(python: Path) -> Answer:
    """All cases, rendered at once."""
    return render(python, list(CASES.values()))


def case(answer: Answer, name: str) -> Rendered:
    return answer.cases[list(CASES).index(name)]


def test_helm_has_nothing_to_say(answer: Answer) -> None:
    """Its linter finds neither errors nor warnings."""
    assert answer.lint == []


@pytest.mark.parametrize("name", CASES)
def test_the_api_takes_all_objects(answer: Answer, name: str) -> None:
    """They fit the schemas of Kubernetes, in which nothing unknown may stand; those of KEDA and the Prometheus Operator fit ours."""
    found = case(answer, name)

    assert (found.error, found.faults) == (None, [])
    assert found.objects


@pytest.mark.parametrize("name", CASES)
def test_no_rule_is_broken(answer: Answer, name: str) -> None:
    """Rights, probes, ends, secrets, scaling, networks: nothing is wrong with any object."""
    assert faults(case(answer, name).objects) == []


def test_the_least_is_a_whole_fleet(answer: Answer) -> None:
    """A name of a Secret is enough for both lanes, beat and gateways, each where no two of them end at once."""
    objects = case(answer, "least").objects

    assert {pod.name.partition("toolfleet-")[2] for pod in pods_of(objects)} == {
        "worker-fast",
        "worker-slow",
        "beat",
        "gateway",
    }
    assert len(of_kind(objects, "PodDisruptionBudget")) == 3
    assert of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler", "Ingress", "ServiceMonitor") == []


def test_a_small_fleet_has_one_worker_for_all_lanes(answer: Answer) -> None:
    """Lanes that are off leave nothing behind."""
    workers = [pod for pod in pods_of(case(answer, "small").objects) if pod.kind == "worker"]

    assert [pod.options["lane"] for pod in workers] == ["all"]


def test_settings_are_read_as_they_were_meant(answer: Answer) -> None:
    """Objects, lists and large numbers arrive whole; a lane that scales from zero is known to all processes."""
    objects = case(answer, "whole").objects
    for pod in pods_of(objects):
        settings = settings_of(pod)
        assert settings.module_timeouts == {"deployer": 300}
        assert settings.slow_modules == frozenset({"deployer"})
        assert settings.result_ttl_seconds == 10_000_000
        assert settings.scale_from_zero_lanes == frozenset({"slow"})
        assert variables_of(pod)["TOOLFLEET_MODULE_SERVICES"] is not None


def test_each_lane_has_its_own_scaling(answer: Answer) -> None:
    """One asks the gateway, with a key out of a Secret; the other goes by an external metric."""
    objects = case(answer, "whole").objects
    (keda,), (hpa,) = of_kind(objects, "ScaledObject"), of_kind(objects, "HorizontalPodAutoscaler")
    (trigger,) = keda["spec"]["triggers"]

    assert keda["spec"]["scaleTargetRef"]["name"].endswith("worker-slow")
    assert trigger["metadata"]["url"] == "http://fleet-toolfleet-gateway.agents.svc:8484/scale/slow"
    assert (trigger["metadata"]["valueLocation"], trigger["metadata"]["targetValue"]) == ("workers_wanted", "1")
    assert hpa["spec"]["scaleTargetRef"]["name"].endswith("worker-fast")
    assert hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"] == {"lane": "fast"}


def test_the_gateway_answers_to_the_names_that_it_has_here(answer: Answer) -> None:
    """Its Service's and those of the ingress; no other."""
    (gateway,) = [pod for pod in pods_of(case(answer, "whole").objects) if pod.kind == "gateway"]

    assert settings_of(gateway).gateway_hosts == {
        "localhost",
        "127.0.0.1",
        "[::1]",
        "fleet.example.com",
        "fleet-toolfleet-gateway",
        "fleet-toolfleet-gateway.agents",
        "fleet-toolfleet-gateway.agents.svc",
        "fleet-toolfleet-gateway.agents.svc.cluster.local",
    }


def test_each_kind_of_host_is_served(answer: Answer) -> None:
    """Each announces the address of its own pod, under its module's name; and what it is served from is there."""
    hosts = {
        pod.name.partition("host-")[2]: pod for pod in pods_of(case(answer, "whole").objects) if pod.kind == "host"
    }

    assert set(hosts) == {"owls", "clock", "source-code", "petstore"}
    for host in hosts.values():
        assert host.options["announce_url"] == "http://10.1.2.3:8000"
    assert hosts["source-code"].options["name"] == "source_code"
    assert hosts["clock"].options["command"] == ["mcp-server-time", "--local-timezone", "UTC"]
    assert hosts["source-code"].options["header"] == ["Authorization:Bearer ${SOURCE_TOKEN}"]
    assert {"name": "tools", "configMap": {"name": "owls-tools"}} in hosts["owls"].spec["volumes"]
    assert str(hosts["owls"].options["path"]) == "/tools"
    assert labels_of(hosts["owls"])["app.kubernetes.io/component"] == "host-owls"


def test_nobody_has_a_secret_that_it_does_not_need(answer: Answer) -> None:
    """Modules' headers are for workers, a core's secret is not for gateways, and hosts have keys of their own only."""
    names = {
        pod.name.partition("toolfleet-")[2]: set(variables_of(pod)) for pod in pods_of(case(answer, "whole").objects)
    }
    shared = {"TOOLFLEET_SIGNING_KEY", "TOOLFLEET_MODULE_HEADERS", "TOOLFLEET_CORE_SECRET", "TOOLFLEET_CORE_URL"}

    assert names["worker-fast"] >= shared
    assert names["beat"] & shared == shared - {"TOOLFLEET_MODULE_HEADERS"}
    assert names["gateway"] & shared == {"TOOLFLEET_SIGNING_KEY"}
    assert names["host-owls"] & shared == set()
    assert {"TOOLFLEET_MODULE_KEY", "TOOLFLEET_ANNOUNCE_KEY"} <= names["host-owls"]


def test_the_notes_say_what_to_do_next(answer: Answer) -> None:
    """The command for the first key is there, and a host that can reach nothing is named."""
    values = copy.deepcopy(EXAMPLES["whole"])
    notes = case(answer, "whole").notes

    assert "toolfleet keys create --user me" in notes
    assert "hosts.clock may connect to nothing" in notes
    assert "TOOLFLEET_SCALE_FROM_ZERO_LANES=slow" in notes
    assert all(f"Lane {lane}:" in notes for lane in values["workers"])
