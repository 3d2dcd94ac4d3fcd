"""`code_executor` where the kernel gives no namespaces, and as a user without rights: each in such a place, really."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modules.code_executor.isolation import described, isolation_for
from modules.code_executor.limits import Limits
from support.modules.example_modules import EXAMPLES
from support.programs.launchers import WITHOUT_LANDLOCK

NO_NAMESPACES = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
NO_RIGHTS = ["unshare", "--user", "--map-user=1234", "--map-group=1234"]

ASK = """
import asyncio, json, os, sys
from modules.code_executor.isolation import described, isolation_for
from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import FileSettings, open_pipeline
try:
    module = module_for(Limits(isolation=sys.argv[1]), open_pipeline(FileSettings(root=sys.argv[2])))
except RuntimeError as exc:
    raise SystemExit(print(json.dumps({"refused": str(exc)})))
async def ask():
    code = "import os; print(os.getuid(), len([p for p in os.listdir('/proc') if p.isdigit()])) or open('/tmp/in-tmp', 'w').write('x')"
    code = code if sys.argv[1] == "namespaces" else code.split(" or ")[0]
    async with module.client() as client:
        return await client.call("run_python", code=code, user_id="ada")
result = asyncio.run(ask())
(told,) = (tool.description for tool in module.manifest.tools if tool.name == "code_executor.run_python")
print(json.dumps({"user": os.geteuid(), "told": told, "stdout": str(result)}))
"""


def ask(place: list[str], isolation: str, root: Path) -> dict[str, Any]:
    """Start the module in such a place, and run a program in it."""
    if subprocess.run([*place, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel or container gives no user namespaces to test in")
    argv = [*place, sys.executable, "-c", ASK, isolation, str(root)]
    done = subprocess.run(argv, capture_output=True, check=False, cwd=EXAMPLES, env={**os.environ})
    told: dict[str, Any] = json.loads(done.stdout or json.dumps({"failed": done.stderr.decode()[-3000:]}))
    return told


def test_without_namespaces_the_description_says_so(tmp_path: Path) -> None:
    """Programs run, one at a time, and the model, as the operator, knows what does not protect from them."""
    told = ask(NO_NAMESPACES, "best", tmp_path)
    assert "It is NOT in a sandbox: it reaches the network, local services" in told["told"]
    assert "/tmp, /var/tmp and /dev/shm are not writable. One program runs at a time." in told["told"]
    assert "directly in 'output/' there become files" in told["told"]
    assert "'exit_code': 0" in told["stdout"]


def test_where_nothing_keeps_users_apart_the_module_does_not_start_by_itself(tmp_path: Path) -> None:
    """Only if its settings say so; then the description says what stays for others."""
    place = [*NO_NAMESPACES, *WITHOUT_LANDLOCK]
    refused = ask(place, "best", tmp_path)["refused"]
    assert refused.startswith("CODE_EXECUTOR_ISOLATION=best: this machine does not allow it.")
    assert "CODE_EXECUTOR_ISOLATION=none runs programs, one at a time" in refused
    told = ask(place, "none", tmp_path)
    assert "and all files and processes of the module's own user" in told["told"]
    assert "/tmp, /var/tmp and /dev/shm stays there for others. One program runs at a time." in told["told"]
    assert "'exit_code': 0" in told["stdout"]


@pytest.mark.parametrize("isolation", ["namespaces", "user"])
def test_a_module_whose_settings_demand_isolation_does_not_start_without(tmp_path: Path, isolation: str) -> None:
    """Rather than with less."""
    refused = ask(NO_NAMESPACES, isolation, tmp_path)["refused"]
    assert refused.startswith(f"CODE_EXECUTOR_ISOLATION={isolation}: this machine does not allow it.")


def test_a_user_without_rights_has_the_sandbox_too(tmp_path: Path) -> None:
    """What root takes for granted, everybody gets from the kernel."""
    told = ask(NO_RIGHTS, "namespaces", tmp_path)
    assert told.get("user") == 1234, told
    assert "It has no network." in told["told"]
    assert "/tmp, /var/tmp and /dev/shm are its own, and end with it." in told["told"]
    assert "'saved_files': [{'name': 'in-tmp', 'bytes': 1}]" in told["stdout"]
    assert "1000 2\\n" in told["stdout"]


def test_what_is_not_asked_for_is_not_claimed() -> None:
    """Without isolation in the settings there is none in the description."""
    assert isolation_for(Limits(isolation="none")) == "none"
    assert "NOT in a sandbox" in described("none", network=False)
