"""An MCP server without libraries that answers its tools' calls as it is told to: over HTTP in a thread, or as a program."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer

JSON = {"Content-Type": "application/json"}
_KEPT = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}


class Answer(NamedTuple):
    """An HTTP answer to a call; `%d` in its body is the number of the request. `None` ends the connection."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = JSON


class OddServer:
    """A server of the older era with sessions, or of the newer one. Each call has its effect, `executed`, before its answer."""

    def __init__(
        self, answers: Mapping[str, Answer | None], tools: Mapping[str, Mapping[str, Any]], *, is_new: bool = False
    ) -> None:
        self.answers, self.tools, self.is_new = answers, tools, is_new
        self.executed = Counter[str]()
        self.methods = list[str]()
        self.messages = list[dict[str, Any]]()
        self.session = 1
        self.forgets_with = Answer(404)
        """How it answers to what comes in a session that it does not know."""
        self.before: Callable[[str], object] = lambda _: None
        """Is called with the tool's name when a call has had its effect."""
        self.url = ""
        self.pages: Callable[[str | None], dict[str, Any]] = lambda _: {"tools": self.listed(*answers)}
        """Gives the page of a cursor."""
        self.seen = list[tuple[str, str, dict[str, str]]]()
        """Method, path and header fields of each request."""
        self.redirects: Mapping[str, Answer] = {}
        """What is answered to requests for other paths than `/mcp`, and to those for `/mcp` if it is named."""

    def listed(self, *names: str) -> list[dict[str, Any]]:
        """Tools as a list has them."""
        return [{"name": name, "inputSchema": {"type": "object"}, **self.tools.get(name, {})} for name in names]

    def forget(self, answer: Answer) -> None:
        """Be as after a restart: it knows no session any more."""
        self.session += 1
        self.forgets_with = answer

    def answer(self, asked: dict[str, Any], session: str | None) -> Answer | None:  # noqa: PLR0911 - one a method
        """What is answered to one message."""
        method, number = asked["method"], asked.get("id")
        self.methods.append(method)
        self.messages.append(asked)
        known = None if self.is_new else f"session-{self.session}"
        if method == "initialize":
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
            return Answer(200, written(number, result), {**JSON, "Mcp-Session-Id": f"session-{self.session}"})
        if method == "server/discover" and self.is_new:
            discovered = {**_KEPT, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return Answer(200, written(number, discovered))
        if method == "server/discover":
            return Answer(200, json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}}))
        if session != known:
            return self.forgets_with
        if number is None:
            return Answer(202)
        if method == "tools/list":
            page = self.pages(asked.get("params", {}).get("cursor"))
            return Answer(200, written(number, {**_KEPT, **page} if self.is_new else page))
        if method == "tools/call":
            name = asked["params"]["name"]
            self.executed[name] += 1
            self.before(name)
            found = self.answers[name]
            return None if found is None else found._replace(body=found.body.replace("%d", str(number)))
        return Answer(200, written(number, {}))


def written(number: object, result: Mapping[str, Any]) -> str:
    """An answer of the protocol."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result})


@contextmanager
def odd_http(
    answers: Mapping[str, Answer | None],
    tools: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    is_new: bool = False,
) -> Generator[tuple[OddServer, HttpServer]]:
    """Serve it over HTTP."""
    odd = OddServer(answers, tools or {}, is_new=is_new)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            odd.seen.append((self.command, self.path, dict(self.headers.items())))
            told = odd.redirects.get(self.path) or odd.answer(asked, self.headers.get("Mcp-Session-Id"))
            if told is None:
                self.close_connection = True
                return
            self.send_response(told.status)
            data = told.body.encode("utf-8", "surrogateescape")
            for name, value in {"Content-Length": str(len(data)), **told.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.send_error(405)

        do_DELETE = do_GET  # noqa: N815 - as the library calls it

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    odd.url = f"http://127.0.0.1:{server.server_port}/mcp"
    try:
        yield odd, HttpServer(odd.url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def odd_program(folder: Path, lines: Mapping[str, str], *, is_new: bool = False) -> StdioServer:
    """Serve it as a program that answers each call with its line; the files `executed` and `messages` have what it has got."""
    script = folder / "odd.json"
    script.write_text(json.dumps({"lines": lines, "is_new": is_new, "folder": str(folder)}))
    return StdioServer(
        (sys.executable, str(Path(__file__)), str(script)), environment={"PYTHONPATH": ":".join(sys.path)}
    )


def main() -> None:
    """Serve over the standard streams what the file says."""
    told = json.loads(Path(sys.argv[1]).read_text())
    odd = OddServer({name: Answer(200, line) for name, line in told["lines"].items()}, {}, is_new=told["is_new"])
    for line in sys.stdin:
        answer = odd.answer(json.loads(line), None if odd.is_new else "session-1")
        Path(told["folder"], "executed").write_text(json.dumps(odd.executed))
        Path(told["folder"], "messages").write_text(json.dumps(odd.messages))
        if answer is not None and answer.status == 200:
            sys.stdout.buffer.write(answer.body.encode("utf-8", "surrogateescape") + b"\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
