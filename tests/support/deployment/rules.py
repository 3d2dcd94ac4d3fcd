"""Says what is wrong with the objects of a fleet on Kubernetes, beyond what the API itself refuses."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from support.deployment.chart import Object
from support.deployment.pods import (
    Pod,
    grace_of,
    is_fleets,
    labels_of,
    of_kind,
    pods_of,
    selects,
    settings_of,
    variables_of,
)
from toolfleet_cli.console import SECRETS
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT, GATEWAY_LEAVE_SECONDS, GATEWAY_STOP_SECONDS
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, PREFIX, Settings
from toolfleet_tasks.queues import lane_of

MODULES_OWN = {"TOOLFLEET_MODULE_KEY", "TOOLFLEET_ANNOUNCE_KEY"}
METRICS = {"TOOLFLEET_METRICS_PORT", "TOOLFLEET_METRICS_ADDRESS"}
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|_KEY$|REDIS_URL|BROKER_URL|REGISTRY_URL")
_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]+@")
_RETURN_SECONDS = 20
"""What a worker has after it has drained, to put back what has not ended."""

Objects = Sequence[Object]


def faults(objects: Objects) -> list[str]:
    """A sentence for each fault."""
    by_pod = [fault for pod in pods_of(objects) for rule in POD_RULES for fault in rule(pod)]
    return by_pod + [fault for whole in FLEET_RULES for fault in whole(objects)]


def _rights(pod: Pod) -> Iterator[str]:
    inside, outside = pod.container.get("securityContext", {}), pod.spec.get("securityContext", {})
    wanted = {
        "runs as root": outside.get("runAsNonRoot") is True and outside.get("runAsUser", 0) != 0,
        "has no seccomp profile": outside.get("seccompProfile") == {"type": "RuntimeDefault"},
        "can write to its root": inside.get("readOnlyRootFilesystem") is True,
        "keeps capabilities": inside.get("capabilities") == {"drop": ["ALL"]},
        "can get more rights": inside.get("allowPrivilegeEscalation") is False and not inside.get("privileged"),
        "has a token of Kubernetes": pod.spec.get("automountServiceAccountToken") is False,
        "takes Services for settings": pod.spec.get("enableServiceLinks") is False,
        "is on its node's network or disk": "hostNetwork" not in pod.spec
        and not any("hostPath" in volume for volume in pod.spec.get("volumes", [])),
    }
    yield from (f"{pod.name} {fault}" for fault, holds in wanted.items() if not holds)


def _resources(pod: Pod) -> Iterator[str]:
    resources = pod.container.get("resources", {})
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys():
        yield f"{pod.name} asks for no processor or memory"
    if "memory" not in resources.get("limits", {}):
        yield f"{pod.name} has no limit of memory"


def _probes(pod: Pod) -> Iterator[str]:
    live, ready = ("/health", "/health") if pod.kind == "host" else ("/livez", "/readyz")
    for probe, path in (("startupProbe", live), ("livenessProbe", live), ("readinessProbe", ready)):
        asked = pod.container.get(probe, {}).get("httpGet", {})
        if asked.get("path") != path:
            yield f"{pod.name}: its {probe} asks {asked.get('path')}, and not {path}"
        elif asked.get("port") not in pod.ports:
            yield f"{pod.name}: its {probe} asks a port that it does not have"
    if pod.container.get("readinessProbe", {}).get("timeoutSeconds", 0) < 5:
        yield f"{pod.name}: its readinessProbe does not wait for a slow Redis"


def _ports(pod: Pod) -> Iterator[str]:
    options = pod.options
    listens = {
        "worker": options.get("probe_port"),
        "beat": options.get("probe_port"),
        "gateway": options.get("port") or DEFAULT_PORT,
        "host": options.get("port"),
    }[pod.kind]
    if listens not in pod.ports.values():
        yield f"{pod.name} listens at {listens}, which is none of its ports"
    where = options.get("probe_address") or options.get("host") or options.get("address")
    if where != "0.0.0.0":  # noqa: S104 - in its pod
        yield f"{pod.name} listens where nobody else reaches it"


def _ending(pod: Pod) -> Iterator[str]:
    pause = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    if not pause:
        yield f"{pod.name} has no preStop"
    settings, grace = settings_of(pod), grace_of(pod)
    if pod.kind == "worker":
        lane = pod.options["lane"]
        longest = _longest_call(settings, lane) + HARD_LIMIT_MARGIN
        if settings.drain_seconds < longest:
            yield f"{pod.name} drains for {settings.drain_seconds} s, and a call may take {longest} s"
        if grace < pause + settings.drain_seconds + _RETURN_SECONDS:
            yield f"{pod.name} is killed after {grace} s, while it drains"
    if pod.kind == "gateway" and grace < pause + GATEWAY_LEAVE_SECONDS + GATEWAY_STOP_SECONDS:
        yield f"{pod.name} is killed after {grace} s, while requests are under way"


def _longest_call(settings: Settings, lane: str) -> float:
    usual, slow = settings.default_timeout, settings.tool_execution_timeout
    limits = {"fast": [usual], "slow": [slow], "all": [usual, slow]}[lane]
    return max([*limits, *(s for m, s in settings.module_timeouts.items() if lane in {"all", lane_of(m, settings)})])


def _settings(pod: Pod) -> Iterator[str]:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | MODULES_OWN | METRICS
    for name in variables_of(pod):
        if name.startswith(PREFIX) and name not in known:
            yield f"{pod.name}: {name} is no setting"
    if variables_of(pod).get("TOOLFLEET_REDIS_URL") is not None:
        yield f"{pod.name}: the URL of Redis stands in the open"
    if "TOOLFLEET_REDIS_URL" not in variables_of(pod):
        yield f"{pod.name} knows no Redis"
    if pod.kind != "worker" and "TOOLFLEET_MODULE_HEADERS" in variables_of(pod):
        yield f"{pod.name} has the modules' headers, which are for workers"
    if pod.kind == "host" and "TOOLFLEET_SIGNING_KEY" in variables_of(pod):
        yield f"{pod.name} has the fleet's key, and runs what others wrote"


def _image(pod: Pod) -> Iterator[str]:
    image = pod.container["image"]
    if image.endswith(":latest") or not re.search(r":[\w.]+$|@sha256:[0-9a-f]{64}$", image):
        yield f"{pod.name}: its image {image} has no version"


def _secrets(objects: Objects) -> Iterator[str]:
    hidden = {PREFIX + name.upper() for name in SECRETS}
    yield from (f"Secret {found['metadata']['name']} is made by the chart" for found in of_kind(objects, "Secret"))
    plain = [
        *((f"ConfigMap {found['metadata']['name']}", found["data"]) for found in of_kind(objects, "ConfigMap")),
        *((pod.name, {name: value for name, value in variables_of(pod).items() if value}) for pod in pods_of(objects)),
    ]
    for where, values in plain:
        for name, value in values.items():
            if name in hidden or _SECRET.search(name) or _PASSWORD.search(value):
                yield f"{where}: {name} stands in the open"


def _beat(objects: Objects) -> Iterator[str]:
    beats = [pod for pod in pods_of(objects) if pod.kind == "beat"]
    if [beat.owner["spec"].get("replicas") for beat in beats] != [1]:
        yield "there is not exactly one beat"
    yield from (
        f"{beat.name} runs twice while it is replaced"
        for beat in beats
        if beat.owner["spec"].get("strategy", {}).get("type") != "Recreate"
    )


def _autoscalers(objects: Objects) -> Iterator[str]:
    owners = {pod.owner["metadata"]["name"]: pod for pod in pods_of(objects)}
    scalers = of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
    targets = Counter(found["spec"]["scaleTargetRef"]["name"] for found in scalers)
    for target, number in targets.items():
        if number > 1:
            yield f"{target} has {number} autoscalers"
        if target not in owners or owners[target].kind != "worker":
            yield f"{target} is scaled, and is no worker"
        elif "replicas" in owners[target].owner["spec"]:
            yield f"{target} is scaled, and has a number of replicas"
    logins = {found["metadata"]["name"] for found in of_kind(objects, "TriggerAuthentication")}
    for found in of_kind(objects, "ScaledObject"):
        for trigger in found["spec"]["triggers"]:
            if trigger.get("authenticationRef", {}).get("name") not in logins:
                yield f"{found['metadata']['name']} asks the gateway without a key"
            lane = owners[found["spec"]["scaleTargetRef"]["name"]].options["lane"]
            if not trigger["metadata"]["url"].endswith(f"/scale/{lane}"):
                yield f"{found['metadata']['name']} asks for another lane than its own"


def _disruption(objects: Objects) -> Iterator[str]:
    for found in of_kind(objects, "PodDisruptionBudget"):
        name, spec = found["metadata"]["name"], found["spec"]
        if str(spec.get("maxUnavailable", 0)).rstrip("%") == "0" or "minAvailable" in spec:
            yield f"PodDisruptionBudget {name} may let no pod go"
        yield from _selects_something(f"PodDisruptionBudget {name}", spec["selector"], objects)


def _networks(objects: Objects) -> Iterator[str]:
    policies = of_kind(objects, "NetworkPolicy")
    for found in policies:
        yield from _selects_something(
            f"NetworkPolicy {found['metadata']['name']}", found["spec"]["podSelector"], objects
        )
    if not policies:
        return
    for pod in pods_of(objects):
        own = [found["spec"] for found in policies if selects(found["spec"]["podSelector"], pod)]
        if not any(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in own):
            yield f"{pod.name} is reached by everybody"
        if pod.kind == "host" and not all(rule.get("from") for spec in own for rule in spec.get("ingress", [])):
            yield f"{pod.name} is reached by others than workers"


def _selects_something(what: str, selector: Any, objects: Objects) -> Iterator[str]:
    if not any(selects(selector, pod) for pod in pods_of(objects)):
        yield f"{what} selects nothing"


def _owners(objects: Objects) -> Iterator[str]:
    for pod in pods_of(objects):
        if not selects(pod.owner["spec"]["selector"], pod):
            yield f"{pod.name} is not selected by its own Deployment"
    names = Counter((found["kind"], found["metadata"]["name"]) for found in objects)
    yield from (f"{kind} {name} is there {number} times" for (kind, name), number in names.items() if number > 1)
    accounts = {found["metadata"]["name"] for found in of_kind(objects, "ServiceAccount")}
    for pod in pods_of(objects):
        if accounts and pod.spec["serviceAccountName"] not in accounts:
            yield f"{pod.name} has an account that is not there"
        maps = {found["metadata"]["name"] for found in of_kind(objects, "ConfigMap")}
        for source in pod.container.get("envFrom", []):
            if is_fleets(source["configMapRef"]["name"]) and source["configMapRef"]["name"] not in maps:
                yield f"{pod.name} reads settings that are not there"


def _services(objects: Objects) -> Iterator[str]:
    for found in of_kind(objects, "Service"):
        spec = found["spec"]
        chosen = [pod for pod in pods_of(objects) if spec["selector"].items() <= labels_of(pod).items()]
        for port in spec["ports"]:
            if not any(port["targetPort"] in pod.ports for pod in chosen):
                yield f"Service {found['metadata']['name']} leads nowhere"


POD_RULES: tuple[Callable[[Pod], Iterator[str]], ...] = (
    _rights,
    _resources,
    _probes,
    _ports,
    _ending,
    _settings,
    _image,
)
FLEET_RULES: tuple[Callable[[Objects], Iterator[str]], ...] = (
    _secrets,
    _beat,
    _autoscalers,
    _disruption,
    _networks,
    _owners,
    _services,
)
