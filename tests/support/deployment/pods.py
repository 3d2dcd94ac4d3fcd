"""Finds the pods among the objects of Kubernetes, and what each of them runs with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.deployment.chart import Object
from support.deployment.command_lines import parse
from toolfleet_registry.settings import PREFIX, Settings

_AGREED = "rediss://redis:6379/0"


@dataclass(frozen=True)
class Pod:
    """The pod of a Deployment, with its one container. `kind`: worker, beat, gateway or host; `options`: of its command."""

    name: str
    kind: str
    options: dict[str, Any]
    spec: dict[str, Any]
    container: dict[str, Any]
    owner: Object
    objects: Sequence[Object]

    @property
    def ports(self) -> dict[str, int]:
        """Number by name."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    """Those of one of these kinds."""
    return [found for found in objects if found["kind"] in kinds]


def pods_of(objects: Sequence[Object]) -> list[Pod]:
    """One for each Deployment. Fails for a command that is none of ours."""
    pods: list[Pod] = []
    for owner in of_kind(objects, "Deployment"):
        spec = owner["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        words = [word.replace("$(POD_IP)", "10.1.2.3") for word in (*container["command"], *container["args"])]
        command, options = parse(words)
        kind = command.partition(" ")[0]
        pods.append(Pod(f"Deployment {owner['metadata']['name']}", kind, options, spec, container, owner, objects))
    return pods


def labels_of(pod: Pod) -> dict[str, str]:
    """Those of the pod, and not of its Deployment."""
    labels: dict[str, str] = pod.owner["spec"]["template"]["metadata"]["labels"]
    return labels


def selects(selector: Any, pod: Pod) -> bool:
    """Whether a selector by labels takes the pod."""
    return bool(selector["matchLabels"].items() <= labels_of(pod).items())


def is_fleets(name: str) -> bool:
    """Whether an object of this name is one of the release, and none that somebody else made."""
    return name.startswith("fleet-")


def variables_of(pod: Pod) -> dict[str, str | None]:
    """All of its variables; None is the value of one that comes out of a Secret or of Kubernetes."""
    maps = {found["metadata"]["name"]: found["data"] for found in of_kind(pod.objects, "ConfigMap")}
    shared = [maps.get(source["configMapRef"]["name"], {}) for source in pod.container.get("envFrom", [])]
    own = {each["name"]: each.get("value") for each in pod.container.get("env", [])}
    return {name: value for found in (*shared, own) for name, value in found.items()}


def settings_of(pod: Pod) -> Settings:
    """What the plain ones of its variables come to."""
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    plain = {known[name]: value for name, value in variables_of(pod).items() if value is not None and name in known}
    values: dict[str, Any] = {"redis_url": _AGREED, **plain}
    return Settings(**values)


def grace_of(pod: Pod) -> float:
    """Seconds until it is killed; those of Kubernetes, if it says nothing."""
    return float(pod.spec.get("terminationGracePeriodSeconds", 30))
