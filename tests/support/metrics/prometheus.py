"""Runs a real Prometheus on some targets and rules, where there is one, and asks it."""

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.metrics.scraping import wait_until_read
from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import held_port
from toolfleet_modules.hosts.child_process import spawn, stop

OPS = Path(__file__).parents[3] / "ops"
ALERTS = OPS / "alerts.yaml"
DASHBOARD = OPS / "grafana.json"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus here: apt-get install it",
)


@dataclass(frozen=True)
class Prometheus:
    """One that is ready."""

    url: str

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """The series that an expression has now. Fails where it is none."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", (expression, answer)
        found: Sequence[Mapping[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> Sequence[Mapping[str, Any]]:
        """The rules that it evaluates, each with its health."""
        groups = self._get("rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def check(self, queries: Mapping[str, str]) -> None:
        """Wait until each of these has series, by what asks it, and all rules were evaluated. Fails where that does not come."""
        for what, query in queries.items():
            await wait_until_read(lambda query=query: self.query(query), f"{what}: {query}")  # type: ignore[misc] # bound now
        await wait_until_read(
            lambda: {rule["health"] for rule in self.rules()} == {"ok"} and len(self.rules()) == len(alerts()),
            "all rules were evaluated",
        )

    def _get(self, what: str, **params: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(
            f"{self.url}/api/v1/{what}", params=params, timeout=PATIENCE_SECONDS, verify=PLAIN
        ).json()
        return answer


@contextmanager
def prometheus(folder: Path, ports: Collection[int], rules: Path) -> Generator[Prometheus]:
    """It scrapes these ports each second, and evaluates the rules as often."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "toolfleet", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with held_port() as port, (folder / "prometheus.log").open("wb") as output:
        url = f"http://127.0.0.1:{port}"
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        process = spawn(command, env={}, cwd=folder, output=output)
        try:
            wait_until_sync(lambda: _is_ready(url) or process.poll() is not None, "Prometheus is ready")
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            yield Prometheus(url)
        finally:
            stop(process, patience_seconds=10)


def alerts() -> Mapping[str, str]:
    """The expression of each alert."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> Mapping[str, str]:
    """The dashboard's queries, by panel and letter, with a minute in the place of Grafana's interval."""
    dashboard = json.loads(DASHBOARD.read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }


def families_in(expression: str) -> set[str]:
    """The families of ours that it names."""
    names: set[str] = set(re.findall(r"\btoolfleet_\w+", expression))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}


def labels_in(expression: str) -> set[str]:
    """The labels that it groups by or matches."""
    groups: list[str] = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")} | set(
        re.findall(r"(\w+)(?==~?\"|!=\")", expression)
    )


def check_rules(files: Sequence[Path]) -> str:
    """What `promtool test rules` says of files of tests. Fails where one fails."""
    command = [shutil.which("promtool") or "promtool", "test", "rules", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=PATIENCE_SECONDS, verify=PLAIN).status_code == 200
    except httpx.HTTPError:
        return False
