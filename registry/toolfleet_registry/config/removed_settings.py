"""Lists the settings of the version before that are gone: one that is still set is named in a warning.

It ends no start, but for `fast_transport` switched off at a Redis broker: such a fleet would carry its calls otherwise.

A name stays here for one version.
"""

from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = {
    "fast_transport": "calls travel by the fleet's own transport at Redis, and by kombu's at RabbitMQ; remove it",
    "gateway_max_body_bytes": "a body has room for four calls with the largest arguments: TOOLFLEET_MAX_ARGUMENTS_BYTES",
    "gateway_body_seconds": "a request's body has 30 s to arrive",
    "gateway_max_header_bytes": "a request's URL and headers have 32 KiB",
    "gateway_header_seconds": "a request's headers have 10 s to arrive",
    "gateway_streams": "half of TOOLFLEET_GATEWAY_CONNECTIONS may be streams",
    "gateway_wait_seconds": "a call's request is held open for 30 s, or as its client says: `Prefer: wait=N`",
    "gateway_longest_wait_seconds": "a call's request is held open for 300 s at most",
    "gateway_result_kept_seconds": "a result stays for 600 s after it was handed out",
    "mcp_wait_seconds": "an MCP client waits for a call for 50 s, and is then told how to ask for it",
    "mcp_task_seconds": "a call becomes a task after 0.5 s, for a client that takes tasks",
    "mcp_grace_seconds": "a call whose client has gone waits 10 s for a repeat",
    "mcp_session_seconds": "a session that sends nothing is kept for an hour",
    "tool_debounce_ms": "changes of files are gathered for 500 ms at most",
    "tool_load_seconds": "the import of one file may take TOOLFLEET_DISCOVERY_TIMEOUT_SECONDS, as that of functions in workers",
    "tool_environment_days": "packages that no host has used for 30 days are removed",
    "tool_install_seconds": "`uv` has 15 minutes to install packages",
    "core_timeout_seconds": "the core has 30 s for its answer",
    "dead_wakes_kept": "TOOLFLEET_DEAD_LETTERS_KEPT counts for wake-ups, too",
    "dead_webhooks_kept": "TOOLFLEET_DEAD_LETTERS_KEPT counts for events of the registry, too",
    "completions_kept_seconds": "wake-ups wait for an agent without HTTP for 7 days",
    "job_kept_seconds": "an ended job can be looked at for 7 days",
    "max_job_seconds": "no job may last longer than 366 days",
    "shortest_poll_seconds": "no job may poll more often than TOOLFLEET_JOBS_INTERVAL_SECONDS, or once a second",
    "manifest_requests": "a process asks 500 modules at once",
    "max_manifest_bytes": "a manifest has 4 MiB",
    "manifest_ttl_seconds": "a manifest is kept for an hour, or for three times TOOLFLEET_REFRESH_INTERVAL_SECONDS if that is longer",
    "manifest_stale_seconds": "tools are stale after three times TOOLFLEET_REFRESH_INTERVAL_SECONDS",
    "max_clock_offset_seconds": "a worker whose clock is 300 s off takes no calls",
    "agent_backlog_limit": "50,000 calls may wait in one agent",
    "broker_patience_seconds": "a call waits 30 s for a broker that is away, within its deadline",
    "restart_seconds": "a worker that SIGTERM ends counts for 60 s as one that is being restarted; TOOLFLEET_UNSERVED_SECONDS has calls wait longer",
    "breaker_failures": "a module is away after 20 calls in a row without an answer",
    "breaker_seconds": "a module that is away is left alone for 10 s at most",
    "gate_blocks_once": "a gate that fails or is late always blocks tools whose effect must not happen twice",
    "loop_stall_seconds": "the watchdog logs what blocks an event loop for 5 s",
    "metrics_ports": "16 ports are tried, from TOOLFLEET_METRICS_PORT on",
    "metrics_tools": "a process counts 200 tools by themselves",
    "up_gateway": "`toolfleet up --no-gateway` starts none",
    "mcp_listed_tools": "with more than 500 tools an MCP client is shown three in their place",
}
"""Name of a setting that is gone -> what holds in its place, as the end of a sentence."""
