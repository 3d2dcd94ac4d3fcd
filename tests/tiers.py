"""Says which make target runs a test: the nearest mark, file or folder with a tier decides.

`make test` runs the first two tiers. What starts whole fleets or many processes is `fleet`, but for one test or two of each
capability, so `-m usual` is the short way while one works. A test, a class or a parameter has a mark of another tier than its file, such as `@pytest.mark.slow`.
"""

from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TARGETS = {
    "usual": "test",
    "fleet": "test",
    "slow": "proofs",
    "load": "load-proofs",
    "clients": "test-all",
    "console": "test-all",
    "chart": "test-all",
    "release": "test-all",
}
"""The tiers, each with the target that runs it. Each is a mark."""
SHORT = ("usual", "fleet")
"""The tiers that a file is in as a whole. In the others is what is marked."""
TIERS = {
    "chaos": "usual",
    "chart": "chart",
    "clients": "clients",
    "conformance": "fleet",
    "console": "console",
    "examples": "usual",
    "examples/claude_code/test_claude_code_crashes.py": "fleet",
    "examples/code_executor/test_code_executor_isolation.py": "fleet",
    "examples/code_executor/test_code_executor_sandbox.py": "fleet",
    "examples/code_executor/test_code_executor_shared_folders.py": "fleet",
    "examples/deployer/test_deployer_faults.py": "fleet",
    "examples/files/test_modules.py": "fleet",
    "examples/modules/test_escapes.py": "fleet",
    "examples/modules/test_private_process.py": "fleet",
    "examples/test_small_programs.py": "fleet",
    "faults": "usual",
    "fleet": "fleet",
    "fleet/adapters/test_calling.py": "usual",
    "fleet/agents/test_own_middleware.py": "usual",
    "fleet/agents/test_sync_threads.py": "usual",
    "fleet/calls/test_call_bounds.py": "usual",
    "fleet/calls/test_calls.py": "usual",
    "fleet/calls/test_files.py": "usual",
    "fleet/calls/test_schemas.py": "usual",
    "fleet/gateway/mcp/test_calls.py": "usual",
    "fleet/gateway/mcp/test_real_clients.py": "usual",
    "fleet/gateway/test_calls.py": "usual",
    "fleet/gateway/test_guide.py": "usual",
    "fleet/jobs/test_jobs.py": "usual",
    "fleet/local_tools/test_tag_context.py": "usual",
    "fleet/logs/test_logs.py": "usual",
    "fleet/modules/test_module_directory.py": "usual",
    "fleet/operations/test_remote_control.py": "usual",
    "fleet/redis/test_redis_kinds.py": "usual",
    "fleet/security/test_personal_data.py": "usual",
    "fleet/security/test_signed_calls.py": "usual",
    "fleet/security/test_signed_results.py": "usual",
    "fleet/up/test_troubleshooting.py": "usual",
    "fundamentals": "usual",
    "house": "usual",
    "house/packaging/test_scripts.py": "fleet",
    "house/test_site.py": "fleet",
    "integration": "usual",
    "integration/cli/hosting/test_announced_hosts.py": "fleet",
    "integration/cli/hosting/test_mcp_login.py": "fleet",
    "integration/cli/hosting/test_shared_replies.py": "fleet",
    "integration/cli/local/test_supervisor.py": "fleet",
    "integration/cli/testing/test_testing_plugin.py": "fleet",
    "integration/gateway/console/test_frozen_redis.py": "fleet",
    "integration/gateway/console/test_pages.py": "fleet",
    "integration/gateway/http/test_redis_away.py": "fleet",
    "integration/gateway/http/test_schemathesis.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_logs.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_oauth.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_questions.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_sessions.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_tasks.py": "fleet",
    "integration/modules/hosts/mcp/test_mcp_watches.py": "fleet",
    "integration/modules/hosts/test_broken_files.py": "fleet",
    "integration/modules/hosts/test_reload.py": "fleet",
    "integration/modules/hosts/test_tag_tools.py": "fleet",
    "integration/modules/hosts/test_tool_packages.py": "fleet",
    "integration/modules/hosts/test_tool_secrets.py": "fleet",
    "integration/modules/hosts/test_zoo.py": "fleet",
    "integration/modules/sdk/test_processes.py": "fleet",
    "integration/registry/formats/test_real_tools.py": "fleet",
    "integration/registry/store/test_races.py": "fleet",
    "integration/registry/store/test_walk.py": "fleet",
    "integration/tasks/client/test_begun_calls.py": "fleet",
    "integration/tasks/ledger/test_ledger_stateful.py": "fleet",
    "integration/tasks/wakeups/test_wake_faults.py": "fleet",
    "integration/workers/pool/test_pool_redis_away.py": "fleet",
    "integration/workers/test_start.py": "fleet",
    "rabbitmq": "fleet",
    "release": "release",
    "seeds": "usual",
    "seeds/test_folder_doors.py": "fleet",
    "seeds/test_http_doors.py": "fleet",
    "soak": "usual",
    "unit": "usual",
    "virtual": "usual",
    "wire": "fleet",
}
"""The tier of each folder of tests, and of each file that is in another one than its folder."""


@cache
def tier_of(path: Path) -> str:
    """Find the tier of a file of tests: its own, or that of the nearest folder that has one.

    Raises:
        LookupError: None of its folders has one.

    """
    inside = path.relative_to(TESTS)
    for each in (inside, *inside.parents):
        if (tier := TIERS.get(each.as_posix())) is not None:
            return tier
    raise LookupError(f"{inside} is in no tier: its folder needs a line in {Path(__file__).name}")


def mark_tier(test: pytest.Item) -> None:
    """Leave a test with the mark of one tier: a parameter that takes long takes the whole test with it."""
    marked = TARGETS.keys() & {mark.name for mark in test.iter_markers()}
    if not marked:
        test.add_marker(tier_of(test.path))
    elif not marked <= set(SHORT):
        test.own_markers[:] = [mark for mark in test.own_markers if mark.name not in SHORT]


def mark_redis(test: pytest.Function) -> None:
    """Mark a test that uses the Redis server: those run on each server that is supported."""
    if "redis_process_url" in test.fixturenames or "redis" in test.nodeid:  # by its name: a parameter or a folder
        test.add_marker("redis")


def is_apart(path: Path, asked: str) -> bool:
    """Whether a file of tests surely has none of the tiers that pytest's `-m` asks for, so that it need not be imported.

    Only of the short ones that is sure: marks of others come from what files import, too.
    """
    tiers = asked.split(" or ")
    if not set(tiers) <= set(SHORT) or not path.name.startswith("test_") or tier_of(path) in tiers:
        return False
    text = path.read_text()
    return not any(f"mark.{tier}" in text for tier in tiers)
