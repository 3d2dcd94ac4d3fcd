"""What `toolfleet up` hosts announces itself, signed where the fleet signs: several processes of one host, and tools that come later."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.hosts.host_process import OWL_TOOL
from support.up import Up, call, toolfleet, up
from support.waiting import wait_until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a whole fleet for a few tests


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A signed fleet with two processes of one host, and without tools of its own."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "nest").mkdir()
    (folder / "nest" / "hoot.py").write_text(OWL_TOOL)
    (folder / "toolfleet.toml").write_text('[hosts.owls]\nfolder = "nest"\nreplicas = 2\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFLEET_SIGNING_KEY", "a secret of more than thirty-two characters")
        with up(folder, None, "--no-gateway") as running:
            yield running


def listed(fleet: Up) -> dict[str, dict[str, Any]]:
    found = json.loads(toolfleet("modules", "list", "--json", cwd=fleet.folder).stdout)
    return {module["module"]: module for module in found}


def test_a_host_with_replicas_is_one_module_at_several_addresses(fleet: Up) -> None:
    """Each is a process with a name, and `up` says where the module is."""
    owls = listed(fleet)["owls"]

    assert (owls["origin"], owls["state"], len(owls["replicas"])) == ("announced", "ok", 2)
    assert owls["refused_hosts"] == []
    assert {"owls", "owls-2"} <= fleet.run_file().processes.keys()
    assert "and 1 more" in fleet.said()
    assert call("owls.hoot", "day=3", cwd=fleet.folder)["result"] == "hoot 3"


def test_tools_that_come_later_are_taken_up(fleet: Up) -> None:
    """The first `toolfleet create tool` needs no restart of the fleet."""
    made = toolfleet("create", "tool", "echo_text", cwd=fleet.folder)
    assert made.returncode == 0, made.stderr
    wait_until_sync(lambda: listed(fleet).get("tools", {}).get("state") == "ok", "the fleet has tools of its own")

    assert call("tools.echo_text", "text=owl", "times=2", cwd=fleet.folder)["result"] == {"text": "owl owl"}
    assert "tools" in fleet.run_file().processes
    assert toolfleet("restart", "tools", cwd=fleet.folder).returncode == 0


def test_a_replica_that_is_restarted_is_missed_by_nobody(fleet: Up) -> None:
    """The other one has the calls meanwhile; afterwards there are two again."""
    before = {one["id"] for one in listed(fleet)["owls"]["replicas"]}
    assert toolfleet("restart", "owls", cwd=fleet.folder).returncode == 0
    for day in range(5):
        assert call("owls.hoot", f"day={day}", cwd=fleet.folder)["result"] == f"hoot {day}"

    def is_renewed() -> bool:
        now = {one["id"] for one in listed(fleet)["owls"]["replicas"]}
        return len(now) == 2 and len(now & before) == 1

    wait_until_sync(is_renewed, "another process has taken its place")
