"""Starts ContextForge in an environment of its own, with the module's tool behind it: set for speed, and said so."""

import secrets
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.environments import python_of
from benchmarks.features.mcp_peer import Peer
from toolfleet_cli.local.redis_server import LOOPBACK, free_port
from toolfleet_modules.hosts.child_process import spawn, stop

ENVIRONMENT = "contextforge"
SET = (
    "ContextForge 1.0.7.post20260921: one process on uvloop and httptools, caches in memory, SQLite (no call reads it); limits "
    "of rate, metrics, usage log, compression, structured log, correlation ids, checks of headers and of hung-up clients off; "
    "`SKIP_SSL_VERIFY`, or each call makes a TLS context for plain HTTP. The module is its REST tool, without an MCP server between; "
    "it is asked as of 2025-11-25, without a session."
)

_START_SECONDS, _STOP_SECONDS, _TOKEN_MINUTES = 90, 5, "600"
_WHO = "operator@example.com"
_OFF = (
    "CLIENT_DISCONNECT_MIDDLEWARE_ENABLED",
    "COMPRESSION_ENABLED",
    "CORRELATION_ID_ENABLED",
    "DB_METRICS_RECORDING_ENABLED",
    "HEADER_SIZE_VALIDATION_ENABLED",
    "MCPGATEWAY_CATALOG_ENABLED",
    "METRICS_AGGREGATION_ENABLED",
    "PERFORMANCE_TRACKING_ENABLED",
    "RATE_LIMITING_ENABLED",
    "REQUIRE_STRONG_SECRETS",
    "SECURITY_HEADERS_ENABLED",
    "STRUCTURED_LOGGING_ENABLED",
    "TOKEN_USAGE_LOGGING_ENABLED",
)
_ON = ("JSON_RESPONSE_ENABLED", "SKIP_SSL_VERIFY", "SSRF_ALLOW_LOCALHOST", "SSRF_ALLOW_PRIVATE_NETWORKS")
_SERVED = ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--timeout-keep-alive", "3600")
_OBJECT = {"type": "object"}
_SCHEMA = {**_OBJECT, "properties": {"tool_name": {"type": "string"}, "arguments": _OBJECT}}


@contextmanager
def contextforge(folder: Path, name: str, module: str) -> Generator[Peer]:
    """Run it for as long as the peer of that name is needed. Ends the program if it does not start."""
    port, env = free_port(), _variables(folder)
    command: list[str | Path] = [
        python_of(ENVIRONMENT),
        "-m",
        "mcpgateway.cli",
        "--host",
        LOOPBACK,
        "--port",
        str(port),
        *_SERVED,
    ]
    with (folder / "contextforge.log").open("wb") as log:
        process = spawn(command, env=env, cwd=folder, output=log)
    try:
        _wait(process, folder, port)
        token = _token(folder, env)
        _register(port, token, f"{module}/execute")
        wrapped = {"tool_name": "instant.echo"}
        yield Peer(name, process.pid, port, path="/mcp/", key=token, is_modern=False, wrapped=wrapped)
    finally:
        stop(process, patience_seconds=_STOP_SECONDS)


def _variables(folder: Path) -> dict[str, str]:
    password = f"Aa1!{secrets.token_urlsafe(24)}"
    return {
        "PATH": f"{python_of(ENVIRONMENT).parent}:/usr/bin:/bin",
        "DATABASE_URL": f"sqlite:///{folder}/contextforge.db",
        "CACHE_TYPE": "memory",
        "LOG_LEVEL": "ERROR",
        "TOOL_RATE_LIMIT": "1000000000",
        "TOOL_CONCURRENT_LIMIT": "1000",
        "HEALTH_CHECK_INTERVAL": "3600",
        "PLATFORM_ADMIN_EMAIL": _WHO,
        "PLATFORM_ADMIN_PASSWORD": password,
        "BASIC_AUTH_PASSWORD": password,
        "JWT_SECRET_KEY": secrets.token_urlsafe(48),
        "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
        **dict.fromkeys(_OFF, "false"),
        **dict.fromkeys(_ON, "true"),
    }


def _wait(process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            if httpx.get(f"http://{LOOPBACK}:{port}/health", timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    sys.exit(f"ContextForge does not start: {(folder / 'contextforge.log').read_text(errors='replace')[-3000:]}")


def _token(folder: Path, env: dict[str, str]) -> str:
    command: list[str | Path] = [
        python_of(ENVIRONMENT),
        "-m",
        "mcpgateway.utils.create_jwt_token",
        "--username",
        _WHO,
        "--admin",
    ]
    command += ["--exp", _TOKEN_MINUTES, "--secret", env["JWT_SECRET_KEY"]]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=_START_SECONDS, check=True
    )
    return done.stdout.split()[-1]


def _register(port: int, token: str, url: str) -> None:
    tool = {
        "name": "echo",
        "url": url,
        "description": "Echo.",
        "integration_type": "REST",
        "request_type": "POST",
        "input_schema": _SCHEMA,
        "visibility": "public",
    }
    headers = {"Authorization": f"Bearer {token}"}
    asked = {"tool": tool, "visibility": "public"}
    answer = httpx.post(f"http://{LOOPBACK}:{port}/tools", json=asked, headers=headers, timeout=30, trust_env=False)
    if not answer.is_success:
        sys.exit(f"ContextForge does not take the tool: {answer.status_code} {answer.text[:500]}")
