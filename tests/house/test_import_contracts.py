"""The import contracts hold without exceptions; and nobody goes past the ports to time, chance, Redis and queues."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINTER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = LINTER["contracts"]
# Each other option of import-linter allows an import that the contract forbids.
STRICT = {
    "layers": {"name", "type", "layers", "containers"},
    "forbidden": {"name", "type", "source_modules", "forbidden_modules", "allow_indirect_imports"},
}

SOURCES = sorted(path for room in ("registry", "tasks", "workers", "gateway") for path in (ROOT / room).rglob("*.py"))

CLOCKS = {
    "gateway/toolfleet_gateway/auth/own_secrets.py": "makes a password, and the key of what is sealed, which nobody shall guess",
    "gateway/toolfleet_gateway/console/sessions.py": "marks a session's forms as nobody shall guess",
    "gateway/toolfleet_gateway/mcp/old_clients.py": "names a session, and a question, as nobody shall guess",
    "registry/toolfleet_registry/contracts/jobs.py": "makes the secret of a job's hook, which nobody shall guess",
    "registry/toolfleet_registry/system/fleet_clock.py": "the port to the fleet's time",
    "registry/toolfleet_registry/system/machine_clock.py": "the port to this machine's clocks",
    "registry/toolfleet_registry/system/randomness.py": "the port to chance",
    "registry/toolfleet_registry/catalog/registration.py": "measures a thread's work, not time that passes",
    "registry/toolfleet_registry/once/sqlite.py": "waits in a thread for another process to let go of its file",
    "tasks/toolfleet_tasks/control/probe_sockets.py": "names a socket as nobody shall guess",
    "workers/toolfleet_workers/pool/bootsteps.py": "watches the real loop of a worker from a thread",
}
# Who puts a call, or a task of ours, into a queue past the port of `publish`.
WRITERS = {
    "tasks/toolfleet_tasks/transport/kombu_publisher.py": "a publisher",
    "tasks/toolfleet_tasks/transport/redis_publisher.py": "a publisher",
    "tasks/toolfleet_tasks/control/beat.py": "is Celery's own scheduler",
    "tasks/toolfleet_tasks/control/fleet_tasks.py": "is what beat does at its start",
    "tasks/toolfleet_tasks/transport/kombu_transport.py": "writes for kombu",
    "tasks/toolfleet_tasks/call_task.py": "has Celery publish what follows a call",
    "tasks/toolfleet_tasks/operations/worker_probes.py": "sends canaries, and takes the very same texts out again",
}
WRITING = {"PUBLISH", "apply_async", "send_task"}
READINGS = {
    "time": {"clock_gettime", "monotonic", "monotonic_ns", "perf_counter", "process_time", "sleep", "thread_time", "time", "time_ns"},
    "datetime": {"now", "today", "utcnow"},
    "date": {"today"},
    "os": {"urandom"},
    "random": {"Random", "choice", "getrandbits", "randint", "random", "randrange", "sample", "shuffle", "uniform"},
    "secrets": {"token_bytes", "token_hex", "token_urlsafe"},
    "uuid": {"uuid1", "uuid4"},
}  # fmt: skip
REDIS = {
    "registry/toolfleet_registry/redis/servers.py": "the port to Redis",
    "tasks/toolfleet_tasks/transport/kombu_transport.py": "uses the connections of kombu, which has made them",
}
MAKERS = {"Connection", "ConnectionPool", "Redis", "SSLConnection", "Sentinel", "SyncRedis", "SyncSentinel"}


def test_no_contract_has_an_exception() -> None:
    """Not one import is ignored, not even those for type checkers, and an indirect import counts as a direct one."""
    assert set(LINTER) == {"root_packages", "include_external_packages", "contracts"}
    assert [each["name"] for each in CONTRACTS if not set(each) <= STRICT.get(each["type"], set())] == []
    assert [each["name"] for each in CONTRACTS if each.get("allow_indirect_imports", False)] == []


def test_clocks_and_chance_are_read_through_ports() -> None:
    """A simulation replaces the loop and three modules, and every wait and every draw is its own."""
    found = {str(path.relative_to(ROOT)) for path in SOURCES if any(readings_in(parsed(path)))}

    assert found == set(CLOCKS)


def test_no_default_keeps_a_clock() -> None:
    """It would be the clock of the time when its module was imported."""
    functions = (
        (path, node)
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    kept = {
        str(path.relative_to(ROOT))
        for path, node in functions
        for default in (*node.args.defaults, *node.args.kw_defaults)
        if default is not None and {"fleet_clock", "machine_clock", "randomness"} & names_of(default)
    }

    assert kept == set()


def test_connections_to_redis_are_made_in_one_place() -> None:
    """Whoever puts another Redis behind the fleet changes what these functions return."""
    found = {str(path.relative_to(ROOT)) for path in SOURCES if makes_redis(parsed(path))}

    assert found == set(REDIS)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def readings_in(tree: ast.AST) -> Iterator[str]:
    """The clocks and dice that a file names, by whatever name it imports their modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (name.name for name in node.names if name.name in READINGS.get(node.module or "", ()))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from {node.attr} & READINGS.get(node.value.id.removeprefix("_"), set())


def names_of(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def makes_redis(tree: ast.AST) -> bool:
    """Whether a file makes a client of Redis, or a connection, by redis-py."""
    if not any(isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redis") for node in ast.walk(tree)):
        return False
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (call.value if isinstance(call, ast.Attribute) else call for call in calls)
    return any(isinstance(name, ast.Name) and name.id in MAKERS for name in names)


def test_queues_are_written_by_publishers() -> None:
    """Who puts a call, or a task of ours, into a queue does it through the port."""
    found = {str(path.relative_to(ROOT)) for path in SOURCES if WRITING & _names_in(parsed(path))}

    assert found == set(WRITERS)


def _names_in(tree: ast.AST) -> set[str]:
    """What a file asks of other objects, and what it imports from other modules, by name."""
    nodes = list(ast.walk(tree))
    asked = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return asked | {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
