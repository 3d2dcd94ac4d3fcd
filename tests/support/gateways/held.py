"""Tells what a gateway's process holds: its clients' connections, and its memory."""

from pathlib import Path

import psutil

from support.gateways.gateway_process import Gateway


def connections_of(gateway: Gateway) -> int:
    """How many of its clients' connections it has, whatever their state."""
    _, port = gateway.address
    process = psutil.Process(gateway.process.process.pid)
    return len([each for each in process.net_connections("tcp") if each.raddr and each.laddr.port == port])


def memory_of(gateway: Gateway) -> int:
    """Bytes of it that are in no file."""
    for line in Path(f"/proc/{gateway.process.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
