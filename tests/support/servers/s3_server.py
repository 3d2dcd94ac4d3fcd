"""A real S3 server in a process of its own, with its objects in memory: for as long as the block lasts."""

import os
import signal
import ssl
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import held_port
from toolfleet_modules.hosts.child_process import spawn, stop

# The server takes any; a client has to have some.
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read whom to trust takes 20 ms, and there is no TLS here
KEYS = {"AWS_ACCESS_KEY_ID": "owl", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class S3Server:
    """`url` is its endpoint."""

    url: str
    process: subprocess.Popen[bytes]

    def make_bucket(self) -> str:
        """A new bucket's name."""
        name = f"owls-{uuid.uuid4().hex}"
        httpx.put(f"{self.url}/{name}", trust_env=False, verify=NOBODY).raise_for_status()
        return name

    @contextmanager
    def frozen(self) -> Generator[None]:
        """It takes connections and says nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def s3_server(folder: Path) -> Generator[S3Server]:
    """It listens on this machine only, and logs to `folder`."""
    log = folder / "s3.log"
    with held_port() as port, log.open("wb") as output:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = spawn(words, env=KEYS, cwd=folder, output=output)
        try:
            wait_until_sync(
                lambda: b"Running on" in log.read_bytes() or process.poll() is not None,
                "the S3 server runs",
                seconds=3 * PATIENCE_SECONDS,
            )
            assert process.poll() is None, log.read_text()
            yield S3Server(f"http://127.0.0.1:{port}", process)
        finally:
            stop(process, patience_seconds=5)
