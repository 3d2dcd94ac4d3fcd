"""The compose file and the image, as far as they can be judged without a container engine."""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from modules.files import FileSettings
from support.modules.dockerfiles import read_stages
from toolfleet_cli.app import command_line
from toolfleet_cli.local.modules import SLOW_EXAMPLES, find_examples
from toolfleet_gateway.http.app import LIVE
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT, GATEWAY_LEAVE_SECONDS, GATEWAY_STOP_SECONDS
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_tasks.queues import lane_of

ROOT = Path(__file__).parents[2]
OURS = ("worker-fast", "worker-slow", "beat", "flower", "gateway")
MODULES = (
    *("file-manager", "code-executor", "research", "knowledge"),
    *("location", "report-builder", "claude-code", "deployer"),
)
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
"""What is told from outside, and stands in for nothing where it is not told."""
IF_SET = re.compile(r"\$\{(\w+):\+((?:[^${}]|\$\{\w+\})*)\}")
"""What stands there only where something is told from outside, and may name it."""
STORAGE = ("minio", "postgres")
KEEPERS = ("file-manager", "knowledge", "location", "report-builder", "code-executor")
SLOT = re.compile(r"(?m)^  #(?=[a-z]|  )")
"""Begins a line that is to be uncommented; those of prose have one space."""


def read_compose(text: str) -> dict[str, Any]:
    compose = yaml.safe_load(text)
    assert isinstance(compose, dict)
    return compose


TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = read_compose(TEXT)
SERVICES: Mapping[str, dict[str, Any]] = COMPOSE["services"]
STAGES = read_stages(ROOT / "Dockerfile")


def dockerfile_of(module: str) -> Path:
    return ROOT / "examples" / "modules" / module.replace("-", "_") / "Dockerfile"


def settings_of(service: str) -> Settings:
    """What a container's environment comes to."""
    environment = SERVICES[service]["environment"]
    prefix = "TOOLFLEET_"
    return Settings(
        **{name.removeprefix(prefix).lower(): value for name, value in told(environment).items() if prefix in name}
    )


def told(environment: Mapping[str, str]) -> dict[str, Any]:
    """What of an environment is set, where nothing is told from outside."""
    values = {name: VARIABLE.sub(r"\2", value) for name, value in environment.items()}
    return {name: value for name, value in values.items() if value}


def seconds(duration: str) -> int:
    assert re.fullmatch(r"\d+s", duration), f"{duration} is not in seconds"
    return int(duration[:-1])


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its options, as our command line reads them. Fails for what it does not know."""
    program, name, *options = words
    assert program == "toolfleet"
    command: Any = typer.main.get_command(command_line())
    with command.commands[name].make_context(name, options) as context:
        return name, dict(context.params)


def test_it_is_a_compose_file() -> None:
    """The schema of the Compose Specification accepts it."""
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())

    assert [error.message for error in jsonschema.Draft201909Validator(schema).iter_errors(COMPOSE)] == []


def test_the_whole_fleet_is_there() -> None:
    """Redis, both lanes, beat, Flower, a gateway, Prometheus and each example module."""
    assert set(SERVICES) == {"redis", *OURS, *MODULES, *STORAGE, "prometheus"}
    assert {example.name.replace("_", "-") for example in find_examples()} == set(MODULES)


def test_redis_keeps_what_it_was_given() -> None:
    """Append-only file on a volume, no eviction, and its health is known before anybody connects."""
    redis = SERVICES["redis"]
    options = dict(zip(redis["command"][1::2], redis["command"][2::2], strict=True))

    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"
    assert redis["volumes"] == ["redis:/data"]
    assert "redis" in COMPOSE["volumes"]
    assert "redis-cli ping" in redis["healthcheck"]["test"][1]
    for service in OURS:
        assert SERVICES[service]["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_only_what_people_open_is_published_and_only_here() -> None:
    """Nobody else on the network reaches Redis, a module, Flower, the gateway or Prometheus."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert published == {
        "flower": ["127.0.0.1:5555:5555"],
        "gateway": ["127.0.0.1:8484:8484"],
        "prometheus": ["127.0.0.1:9090:9090"],
    }


def test_prometheus_asks_who_counts() -> None:
    """Workers, gateways and hosts at the port that the file names, with the alerts, and only where it is asked for."""
    service = SERVICES["prometheus"]
    asked = yaml.safe_load((ROOT / "ops" / "prometheus.yaml").read_text())
    (found,) = asked["scrape_configs"][0]["dns_sd_configs"]
    sources = [volume.partition(":")[0] for volume in service["volumes"] if volume.startswith("./")]

    assert service["profiles"] == ["metrics"]
    assert f"#   TOOLFLEET_METRICS_PORT={found['port']} " in TEXT
    assert {*found["names"]} == {"worker-fast", "worker-slow", "gateway", "tools"}
    assert all((ROOT / source).is_file() for source in sources)
    assert asked["rule_files"] == ["alerts.yaml"]
    for name in ("worker-fast", "worker-slow", "gateway"):
        assert set(service["networks"]) & set(SERVICES[name]["networks"])
        assert settings_of(name).metrics_port is None
        assert settings_of(name).metrics_address == "0.0.0.0"  # noqa: S104 - in its container


def test_the_gateway_asks_for_a_key_and_has_time_for_its_requests() -> None:
    """It listens for others than itself, where it takes keys of the registry only; its health needs no Redis and no key.

    The command that makes the first key stands beside it, and is one of ours.
    """
    service, settings = SERVICES["gateway"], settings_of("gateway")
    _, options = parse(service["command"])
    (making,) = re.findall(r"# docker compose exec beat (toolfleet keys create .*)", TEXT)
    words = shlex.split(making)

    assert (options["host"], options["port"]) == ("0.0.0.0", None)  # noqa: S104 - in its container
    assert (settings.gateway_key, settings.gateway_port) == (None, None)
    assert "127.0.0.1" in settings.gateway_hosts
    assert seconds(service["stop_grace_period"]) > GATEWAY_LEAVE_SECONDS + GATEWAY_STOP_SECONDS
    assert f":{DEFAULT_PORT}{LIVE}'" in service["healthcheck"]["test"][-1]
    command: Any = typer.main.get_command(command_line())
    with command.commands["keys"].commands["create"].make_context("create", words[3:]) as context:
        assert (context.params["user"], context.params["role"]) == ("me", "admin")


def test_code_that_a_model_wrote_reaches_neither_redis_nor_the_world() -> None:
    """The module that runs it shares a network without a way out, with the workers alone."""
    neighbours = {name for name, service in SERVICES.items() if "code" in service["networks"]}

    beside = {name for name, service in SERVICES.items() if "code-storage" in service["networks"]}

    assert neighbours == {"code-executor", "worker-fast", "worker-slow"}
    assert beside == {"code-executor", *STORAGE}
    assert SERVICES["code-executor"]["networks"] == ["code", "code-storage"]
    assert COMPOSE["networks"]["code-storage"] == COMPOSE["networks"]["storage"] == {"internal": True}
    assert SERVICES["claude-code"]["networks"] == SERVICES["deployer"]["networks"] == ["workshop"]
    assert COMPOSE["networks"]["workshop"] == {"internal": True}
    assert COMPOSE["networks"]["code"] == {"internal": True}
    assert COMPOSE["networks"]["queues"] == {"internal": True}


def test_a_stopping_process_has_time_for_its_calls() -> None:
    """The grace period exceeds the drain time, which exceeds the longest hard limit of any lane; a slow module has as long."""
    for worker in ("worker-fast", "worker-slow"):
        settings = settings_of(worker)
        hard_limit = max(settings.default_timeout, settings.tool_execution_timeout) + HARD_LIMIT_MARGIN
        assert hard_limit < settings.drain_seconds < seconds(SERVICES[worker]["stop_grace_period"])
    for slow in ("report-builder", "deployer"):
        assert seconds(SERVICES[slow]["stop_grace_period"]) > settings.tool_execution_timeout
    assert seconds(SERVICES["file-manager"]["stop_grace_period"]) >= settings.default_timeout


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_comes_back_shows_its_health_and_has_no_more_rights_than_it_needs(name: str) -> None:
    """Not root, nothing to write to but its volume, no capabilities, and no way to get any."""
    service = SERVICES[name]

    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service.get("user", "the image's") not in {"root", "0"}
    users = {"redis": "redis", "postgres": "postgres", "prometheus": "nobody", "minio": None}
    assert service.get("user") == users[name] if name in users else service["image"].startswith("toolfleet")


@pytest.mark.parametrize("name", OURS)
def test_our_command_line_knows_the_commands(name: str) -> None:
    """What a container runs, and what its health check runs, is spelt as our command wants it."""
    service = SERVICES[name]
    command, _ = parse(service["command"])
    check = service["healthcheck"]["test"]

    assert command == name.partition("-")[0]
    if check[1] == "toolfleet":
        assert [parse(check[1:])[1][option] for option in ("check", "live")] == [True, True]


def test_both_lanes_are_served() -> None:
    """Each lane has its own service, which checks the same lane, and each has a module."""
    for lane in ("fast", "slow"):
        service = SERVICES[f"worker-{lane}"]
        assert parse(service["command"])[1]["lane"] == lane
        assert parse(service["healthcheck"]["test"][1:])[1]["lane"] == lane
    settings = settings_of("worker-fast")

    assert {lane_of(module, settings) for module in settings.module_services} == {"fast", "slow"}
    assert settings.slow_modules == SLOW_EXAMPLES


def test_there_is_one_beat_and_flower_shows_and_does_nothing() -> None:
    """A second beat would find nothing to do; a user of Flower may not revoke, publish or stop."""
    beats = [service for service in SERVICES.values() if "beat" in service.get("command", ())]

    assert [beat["deploy"]["replicas"] for beat in beats] == [1]
    assert SERVICES["flower"]["environment"]["FLOWER_READ_ONLY"] == "true"


@pytest.mark.parametrize("name", OURS)
def test_all_are_built_here_and_have_the_same_settings(name: str) -> None:
    """Lanes, queues and modules are the same in every process, and wait where they are said to."""
    settings = settings_of(name)

    assert (SERVICES[name]["build"], SERVICES[name]["pull_policy"]) == (".", "build"), "a stranger's image would run"
    assert settings == settings_of("worker-fast")
    assert settings.redis_url == "redis://redis:6379/0"
    for module, url in settings.module_services.items():
        command = read_stages(dockerfile_of(module))[-1].cmd()
        assert url == f"http://{module.replace('_', '-')}:{command[-1]}"
        assert f"modules.{module}.main:app" in command


def test_there_is_no_secret_in_the_file() -> None:
    named = {
        (name, value)
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if re.search("AUTH|PASSWORD|SECRET|TOKEN|KEY", name)
    }
    own = ("FLOWER_BASIC_AUTH", "RESEARCH_SEARCH_KEY", "TOOLFLEET_SIGNING_KEY")
    of_files = ("AWS_SECRET_ACCESS_KEY", "MINIO_ROOT_PASSWORD", "POSTGRES_PASSWORD")

    assert named - {("AWS_ACCESS_KEY_ID", "${FILES_PASSWORD:+files}")} == {
        *((name, f"${{{name}:-}}") for name in own),
        *((name, "${FILES_PASSWORD:-}") for name in of_files),
    }
    assert not re.search(r"://[^/\s]*:[^/\s]+@", IF_SET.sub("", VARIABLE.sub("", TEXT)))


def test_every_command_of_compose_works_without_a_variable() -> None:
    """`exec`, `logs`, `ps` and `down` read the whole file, and one that must be set would fail all of them.

    Flower itself refuses an empty password: see `tests/integration/cli/test_cli.py`.
    """
    told_twice = sum(inner.count("${") for _, inner in IF_SET.findall(TEXT))
    assert TEXT.count("${") == len(VARIABLE.findall(TEXT)) + len(IF_SET.findall(TEXT)) + told_twice
    assert VARIABLE.sub(r"\2", SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"]) == ""


def interpolated(value: str, password: str) -> str:
    """As compose reads it, where `FILES_PASSWORD` is this and nothing else is told."""
    value = IF_SET.sub(lambda found: found[2].replace("${FILES_PASSWORD}", password) if password else "", value)
    return VARIABLE.sub(lambda found: (password if found[1] == "FILES_PASSWORD" else "") or found[2], value)


@pytest.mark.parametrize("name", KEEPERS)
def test_users_files_are_where_the_profile_keeps_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a password they are in MinIO and PostgreSQL, which the module reaches; without one in the volume."""
    service = SERVICES[name]
    settings: dict[str, FileSettings] = {}
    for password in ("", "owls0123456789abcdef"):
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, interpolated(value, password))
        settings[password] = FileSettings(root=Path("/data/files"))
    volume, stored = settings.values()

    assert (volume.folder, volume.database_url) == (Path("/data/files"), None)
    assert (stored.store, stored.s3_endpoint) == ("s3://files", "http://minio:9000")
    assert stored.database_url == "postgresql+pg8000://files:owls0123456789abcdef@postgres/files"
    for each in STORAGE:
        assert set(service["networks"]) & set(SERVICES[each]["networks"])


@pytest.mark.parametrize("name", STORAGE)
def test_the_storage_is_started_on_demand(name: str) -> None:
    """By its profile; what it holds is on a volume of its own, its image has a version, and the modules' account is the one it has."""
    service = SERVICES[name]
    environment = service["environment"]

    assert service["profiles"] == ["storage"]
    assert set(service["networks"]) == {"storage", "code-storage"}
    assert [volume.split(":")[0] for volume in service["volumes"]] == [name]
    assert name in COMPOSE["volumes"]
    assert ":" in service["image"]
    assert not service["image"].endswith(":latest")
    assert "files" in {environment.get("MINIO_ROOT_USER"), environment.get("POSTGRES_USER")}
    assert [other for other in SERVICES if other not in STORAGE and "profiles" in SERVICES[other]] == ["prometheus"]


REFUSED = "FILES_PASSWORD is not set, or has fewer than 16 characters.\n"


@pytest.mark.parametrize(("password", "code"), [("", 1), ("minioadmin", 1), ("owls0123456789abcdef", 0)])
def test_minio_does_not_start_without_a_password_of_ours(password: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "minio").write_text("#!/bin/sh\n")
    (tmp_path / "minio").chmod(0o755)
    service = SERVICES["minio"]
    (command,) = service["command"]
    ended = subprocess.run(
        [*service["entrypoint"], command.replace("$$", "$")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MINIO_ROOT_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (code, REFUSED if code else "")


def test_ones_own_module_and_agent_have_their_place() -> None:
    """Uncommented, it is a compose file: a module that workers reach, a host that announces itself, and an agent."""
    whole = read_compose(SLOT.sub("  ", TEXT))
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    module, agent = whole["services"]["owls"], whole["services"]["agent"]

    assert [error.message for error in jsonschema.Draft201909Validator(schema).iter_errors(whole)] == []
    assert whole["services"].keys() - SERVICES.keys() == {"owls", "tools", "agent"}
    assert set(module["networks"]) & set(whole["services"]["worker-fast"]["networks"]) == {"modules"}
    assert "queues" in agent["networks"]
    assert not whole["networks"]["agents"].get("internal")
    assert set(agent["networks"]) <= whole["networks"].keys()
    assert agent["environment"] == SERVICES["beat"]["environment"]
    assert "TOOLFLEET_MODULE_HEADERS" not in agent["environment"]  # workers' alone
    _check_host(whole["services"]["tools"])
    assert (module["read_only"], agent["read_only"]) == (True, True)


def _check_host(host: dict[str, Any]) -> None:
    """It reaches Redis, is reached at its own name, has no key of the fleet's, and its command is spelt rightly."""
    shell, option, line = host["command"]
    words = shlex.split(line.replace("$$HOSTNAME", "tools"))

    assert (shell, option, words[0]) == ("sh", "-c", "exec")
    assert {"queues", "modules"} <= set(host["networks"])
    assert set(host["environment"]) == {
        "TOOLFLEET_REDIS_URL",
        "TOOLFLEET_MODULE_KEY",
        "TOOLFLEET_ANNOUNCE_KEY",
        "TOOLFLEET_METRICS_PORT",
        "TOOLFLEET_METRICS_ADDRESS",
    }
    assert host["volumes"] == ["./tools:/tools:ro"]
    command: Any = typer.main.get_command(command_line())
    with command.commands["host"].commands["folder"].make_context("folder", words[4:]) as context:
        assert context.params["announce_url"] == f"http://tools:{context.params['port']}"


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_container_is_its_own_image(name: str) -> None:
    """Built from the module's own Dockerfile and started by that image's command; its volumes are where that keeps its data."""
    service = SERVICES[name]

    assert service["build"] == {"context": ".", "dockerfile": str(dockerfile_of(name).relative_to(ROOT))}
    assert (service["image"], service["pull_policy"]) == (f"toolfleet-{name}", "build")
    assert {"command", "entrypoint", "working_dir"} & service.keys() == set()
    image = read_stages(dockerfile_of(name))[-1]
    made = {word for run in image.all("RUN") for word in run.split() if word.startswith("/data/")}
    assert {volume.split(":")[1] for volume in service.get("volumes", ())} == made
    assert made <= {path for value in image.environment().values() for path in re.findall(r"/data/\w+", value)}


def instructions(name: str) -> list[str]:
    """The arguments of one kind of instruction in the Dockerfile."""
    return [argument for stage in STAGES for argument in stage.all(name)]


def test_the_image_installs_what_is_locked() -> None:
    """Versions and hashes come from the lock; what is built of the project, in two parts, brings nothing along."""
    installs = [command for run in instructions("RUN") for command in run.split("&&") if "uv " in command]
    dependencies, *builds, project = (
        shlex.split(command) for command in installs if "pip install --no-cache" not in command
    )

    assert "--require-hashes" in dependencies
    assert dependencies[dependencies.index("--constraint") + 1] == "requirements.lock"
    assert len(builds) == 2
    for build in builds:
        assert "--require-hashes" in build
        assert build[build.index("--build-constraint") + 1] == "requirements.lock"
    assert {"--no-deps", "--no-index"} <= set(project)


def test_the_image_is_small_and_nobodys_and_ends_in_good_order() -> None:
    """Two stages on a slim Python, compiled, with a user that is not root; no shell stands between SIGTERM and our process.

    It checks that a worker is alive, whichever lane the environment names, and asks no Redis.
    """
    users = instructions("USER")
    command, _ = parse(json.loads(instructions("CMD")[0]))
    checked, options = parse(json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2]))

    assert any("-m compileall" in run and "/venv" in run for run in instructions("RUN"))
    assert [base.split()[0] for base in instructions("FROM")] == ["python:3.12-slim"] * 2
    assert len(users) == 1
    assert all(int(number) > 0 for number in users[0].split(":"))
    assert (instructions("STOPSIGNAL"), instructions("ENTRYPOINT")) == (["SIGTERM"], [])
    assert (command, checked) == ("worker", "worker")
    assert (options["check"], options["live"], options["lane"]) == (True, True, None)


def test_the_image_is_built_from_what_is_named() -> None:
    """Nothing that lies around in the folder gets into it: everything is ignored but what is copied."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [source for stage in STAGES for source in stage.sources()]

    assert ignored[0] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    tops = {source.split("/")[0] for source in copied}
    assert all(top in kept or (top.endswith(".md") and "*.md" in kept) for top in tops)
    assert all((ROOT / source).exists() for source in copied)
