"""Whatever is wrong with a request has one clear answer, nothing behind it is read as another one, and the gateway goes on."""

import asyncio
import json
import uuid
from dataclasses import dataclass

import pytest

from support.gateways.gateway_process import Gateway
from support.gateways.raw_http import answer_to, only_answer_to, request

_CALL = '{"tool_name": "owls.echo", "arguments": {}}'
_HIDDEN = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""What is behind a request; it would be answered with the gateway's document."""


@dataclass(frozen=True)
class Row:
    """A request as it is sent, with `{key}` for the gateway's key, and its one answer."""

    name: str
    text: bytes
    status: int = 400
    error_code: str = "invalid_request"


def _post(*headers: str, body: str | bytes = _CALL, path: str = "/calls") -> bytes:
    return request("POST", path, key="{key}", headers=headers, body=body)


def _get(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> bytes:
    return request(method, path, key="{key}", host=host, headers=headers)


def _chunked(body: bytes, *headers: str) -> bytes:
    return _post("Transfer-Encoding: chunked", *headers, body=body + _HIDDEN)


def _head(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""]) + _HIDDEN


_UNKNOWN = str(uuid.UUID(int=7))
_MANY = json.dumps({"calls": [{"tool_name": "owls.echo"}] * 51})
_DEEP = '{"tool_name": "owls.echo", "arguments": ' + '{"a":' * 150 + "1" + "}" * 150 + "}"
_GET, _HOST = b"GET /openapi.json HTTP/1.1", b"Host: localhost"
_SMUGGLED = [
    Row("a length, and chunks", _post("Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN)),
    Row("chunks, and a length", _post("Transfer-Encoding: chunked", "Content-Length: 5", body=b"0\r\n\r\n" + _HIDDEN)),
    Row("two lengths", _post("Content-Length: 0", "Content-Length: 43", body=_HIDDEN)),
    Row("a list of lengths", _post("Content-Length: 5, 5", body=_HIDDEN)),
    Row("a length in hexadecimals", _post("Content-Length: 0x5", body=_HIDDEN)),
    Row("a length with a blank in it", _post("Content-Length: 5 5", body=_HIDDEN)),
    Row("an empty length", _post("Content-Length:", body=_HIDDEN)),
    Row("no coding", _post("Transfer-Encoding: identity", body=_HIDDEN)),
    Row("chunks that are not the last coding", _post("Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n" + _HIDDEN)),
    Row("a coding with a vertical tab", _post("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n" + _HIDDEN)),
    Row("chunks in quotes", _post('Transfer-Encoding: "chunked"', body=b"0\r\n\r\n" + _HIDDEN)),
    Row("chunks in a request of HTTP/1.0", _post("Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN).replace(b"1.1", b"1.0", 1)),
    Row("a chunk with a sign", _chunked(b"+5\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk with a minus", _chunked(b"-1\r\n\r\n0\r\n\r\n")),
    Row("a chunk with 0x", _chunked(b"0x5\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk of more than can be", _chunked(b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk without a size", _chunked(b"\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk that is longer than it says", _chunked(b"2\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk's line that ends with LF", _chunked(b"5\nhello\r\n0\r\n\r\n")),
    Row("an extension with LF", _chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n")),
    Row("a chunk that ends with LF", _chunked(b"5\r\nhello\n0\r\n\r\n")),
    Row("a folded header", _head(_GET, _HOST, b"A: b", b" c: d")),
    Row("a header folded with a tab", _head(_GET, _HOST, b"A: b", b"\tc")),
    Row("lines that end with LF", _head(_GET, _HOST).replace(b"\r\n", b"\n")),
    Row("one line that ends with LF", _head(_GET, _HOST + b"\nA: b")),
    Row("one line that ends with CR", _head(_GET, _HOST, b"A: b\rC: d")),
    Row("a blank before the first header", _head(_GET, b" " + _HOST)),
    Row("a header without a name", _head(_GET, _HOST, b": b")),
    Row("a header's name with a blank", _head(_GET, _HOST, b"A b: c")),
    Row("a header's name with a NUL", _head(_GET, _HOST, b"A\x00: c")),
    Row("a header's name beyond ASCII", _head(_GET, _HOST, b"\xc3\xa4: c")),
    Row("a line without a version", _head(b"GET /livez", _HOST)),
    Row("a version that is none", _head(b"GET /livez HTTP/1.9", _HOST)),
    Row("the beginning of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HIDDEN),
    Row("a method in small letters", _head(b"get /livez HTTP/1.1", _HOST)),
    Row("a tunnel", _head(b"CONNECT localhost:80 HTTP/1.1", _HOST)),
    Row("a path beyond ASCII", _head(b"GET /\xff HTTP/1.1", _HOST)),
    Row("a path with a NUL", _head(b"GET /\x00 HTTP/1.1", _HOST)),
    Row("a URL with another host", _head(b"GET http://evil.example/openapi.json HTTP/1.1", _HOST)),
    Row("a URL with another port", _head(b"GET http://localhost:1/openapi.json HTTP/1.1", _HOST)),
    Row("a URL with somebody before its host", _head(b"GET http://localhost@evil.example/ HTTP/1.1", _HOST)),
    Row("a URL of another kind", _head(b"GET file:///etc/passwd HTTP/1.1", _HOST)),
]  # fmt: skip


@pytest.mark.parametrize("row", _SMUGGLED, ids=lambda row: row.name)
async def test_nothing_behind_an_ambiguous_request_is_read(strict: Gateway, row: Row) -> None:
    """It has one answer, after which the connection is closed; others are answered as before."""
    answer = await only_answer_to(strict, row.text.replace(b"{key}", strict.key.encode()))

    assert (answer.status, answer.problem["error_code"]) == (row.status, row.error_code), answer
    assert (await answer_to(strict, _get("/livez").replace(b"{key}", strict.key.encode()))).status == 200


_INJECTED = [
    Row("CR in a key", _post("Idempotency-Key: a\rb")),
    Row("LF in a key", _post("Idempotency-Key: a\nX-Injected: b")),
    Row("NUL in a key", _post("Idempotency-Key: a\x00b")),
    Row("DEL in a key", _post("Idempotency-Key: a\x7fb")),
    Row("a tab in a key", _post("Idempotency-Key: a\tb")),
    Row("CR in Prefer", _post("Prefer: wait=1\rX-Injected: b")),
    Row("NUL in Prefer", _post("Prefer: wait=1\x00")),
    Row("NUL in an event's id", _get("/events", "Last-Event-ID: \x00")),
    Row("NUL in Authorization", request("GET", "/tools", headers=("Authorization: Bearer \x00",))),
    Row("a foreign character in an API key", request("GET", "/tools", headers=("X-API-Key: \xe4",)), 400, "malformed_credentials"),
    Row("two API keys in one header", request("GET", "/tools", headers=("X-API-Key: a, b",)), 400, "malformed_credentials"),
    Row("two tokens in one header", request("GET", "/tools", headers=("Authorization: Bearer a, Bearer b",)), 400, "malformed_credentials"),
    Row("a line in a call's id", _get("/calls/%0d%0aX-Injected:%20b"), 404, "not_found"),
    Row("a line in a job's id", _get("/jobs/%0d%0aX-Injected:%20b"), 404, "not_found"),
    Row("a line in a tool's name", _get("/tools/owls.%0d%0aX-Injected:%20b"), 404, "unknown_tool"),
    Row("NUL in a call's id", _get("/calls/%00"), 404, "not_found"),
    Row("NUL in a job's id", _get("/jobs/%00"), 404, "not_found"),
    Row("NUL in a key's id", _get("/operations/keys/%00", method="DELETE"), 404, "not_found"),
    Row("a letter's id that is no UTF-8", _get("/operations/dead-letters/%ff"), 404, "not_found"),
    Row("a line in a module", _post(body='{"tool_name": "echo"}', path="/api/modules/a%0d%0ab/execute"), 400, "invalid_tool_name"),
    Row("a module of 9,000 characters", _post(body='{"tool_name": "echo"}', path=f"/api/modules/{'a' * 7000}/execute"), 400, "invalid_tool_name"),
]  # fmt: skip
_REPEATED = [
    Row("two content types", _post("Content-Type: application/json", "Content-Type: text/plain")),
    Row("two content encodings", _post("Content-Encoding: identity", "Content-Encoding: gzip")),
    Row("two origins", _post("Origin: http://localhost", "Origin: https://evil.example")),
    Row("two API keys", request("GET", "/tools", headers=("X-API-Key: a", "X-API-Key: b"))),
    Row("two last events", _get("/events", "Last-Event-ID: 1-1", "Last-Event-ID: 2-2")),
    Row("two equal hosts", _get("/livez", "Host: localhost")),
    Row("two wishes", _get("/livez?limit=1&limit=2")),
    Row("a limit twice", _get("/tools?limit=1&limit=2")),
    Row("a form of parts", _post("Content-Type: multipart/form-data; boundary=a"), 415, "unsupported_media_type"),
    Row("JSON of another kind", _post("Content-Type: application/json-patch+json"), 415, "unsupported_media_type"),
    Row("JSON in UTF-16", _post("Content-Type: application/json; charset=utf-16"), 415, "unsupported_media_type"),
    Row("two types in one header", _post("Content-Type: application/json, text/plain"), 415, "unsupported_media_type"),
    Row("an API key by another name", _get("/tools?%61pi_key=x"), 400, "credentials_in_query"),
    Row("a key under any name", _get("/tools?q=tfk_abc"), 400, "credentials_in_query"),
    Row("a header in the query", _get("/tools?Authorization=Bearer%20x"), 400, "credentials_in_query"),
    *(Row(f"{method} where it is not", _get("/tools", method=method), 405, "method_not_allowed") for method in ("PUT", "PATCH", "TRACE", "OPTIONS", "DELETE", "PROPFIND")),
    Row("a body that is too large to be sent", _post("Expect: 100-continue", "Content-Length: 200000"), 413, "body_too_large"),
]  # fmt: skip


_HTTP = [
    Row("no HTTP", b"HELLO\r\n\r\n"),
    Row("a method that nobody knows", b"FROB / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    Row("a header without a colon", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nNonsense\r\n\r\n"),
    Row("a NUL in a header", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n"),
    Row("a blank before the colon", b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n"),
    Row("a length that is none", _post("Content-Length: -1")),
    Row("a length with a sign", _post("Content-Length: +5")),
    Row("two equal lengths", _post("Content-Length: 5", "Content-Length: 5")),
    Row("chunks in disguise", _post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n")),
    Row("chunks twice", _post("Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=b"0\r\n\r\n")),
    Row("a chunk whose length is none", _post("Transfer-Encoding: chunked", body=b"zz\r\n\r\n")),
    Row("large headers", _get("/livez", "A: " + "a" * 33_000), 431, "headers_too_large"),
    Row("many headers", _get("/livez", *(f"A{n}: {n}" for n in range(4000))), 431, "headers_too_large"),
    Row("a long URL", _get("/" + "a" * 33_000), 431, "headers_too_large"),
]  # fmt: skip

_HEADERS = [
    Row("no Host", _get("/livez", host="")),
    Row("two Hosts", _get("/livez", "Host: localhost")),
    Row("a foreign Host", _get("/openapi.json", host="evil.example"), 421, "wrong_host"),
    Row("a Host that only begins well", _get("/openapi.json", host="localhost.evil.example"), 421, "wrong_host"),
    Row(
        "a Host with another one behind its port",
        _get("/openapi.json", host="localhost:8484@evil.example"),
        421,
        "wrong_host",
    ),
    Row("a foreign Origin", _post("Origin: https://evil.example"), 403, "wrong_origin"),
    Row("no Origin at all", _post("Origin: null"), 403, "wrong_origin"),
    Row("two Authorizations", _post("Authorization: Bearer x")),
    Row("a key in two places", _post("X-API-Key: x")),
    Row("two Idempotency-Keys", _post("Idempotency-Key: a", "Idempotency-Key: b")),
    Row("an empty Idempotency-Key", _post("Idempotency-Key:")),
    Row("a long Idempotency-Key", _post("Idempotency-Key: " + "a" * 257)),
    Row("a foreign character in it", _post("Idempotency-Key: \xe4")),
    Row("no key", request("POST", "/calls", body=_CALL), 401, "missing_credentials"),
    Row("a key that is none", request("POST", "/calls", key="tfk_nonsense", body=_CALL), 401, "invalid_key"),
    Row("a key in the query", _get("/livez?api_key=x"), 400, "credentials_in_query"),
    Row("a token in the query", _post(path="/calls?access_token=x"), 400, "credentials_in_query"),
]

_BODIES = [
    Row("no body", _post(body="")),
    Row("no content type", _post("Content-Type:"), 415, "unsupported_media_type"),
    Row("a form", _post("Content-Type: application/x-www-form-urlencoded", body="a=1"), 415, "unsupported_media_type"),
    Row("text", _post("Content-Type: text/plain"), 415, "unsupported_media_type"),
    Row("another charset", _post("Content-Type: application/json; charset=latin-1"), 415, "unsupported_media_type"),
    Row("a packed body", _post("Content-Encoding: gzip"), 415, "unsupported_media_type"),
    Row("a large body, as it says itself", _post("Content-Length: 100000000"), 413, "body_too_large"),
    Row("a body with a huge length", _post("Content-Length: 9999999999999999"), 413, "body_too_large"),
    Row("no JSON", _post(body="{")),
    Row("no UTF-8", _post(body=b'{"tool_name": "\xff"}')),
    Row("no number", _post(body='{"tool_name": "owls.echo", "arguments": {"a": NaN}}')),
    Row("deep JSON", _post(body=_DEEP)),
    Row("a list", _post(body="[]")),
    Row("no tool", _post(body="{}")),
    Row("a field that nobody knows", _post(body='{"tool_name": "owls.echo", "argument": {}}')),
    Row("a number for a tool", _post(body='{"tool_name": 1}')),
    Row("a list of arguments", _post(body='{"tool_name": "owls.echo", "arguments": []}')),
    Row("no time", _post(body='{"tool_name": "owls.echo", "timeout_seconds": 0}')),
    Row("an empty batch", _post(body='{"calls": []}', path="/calls/batch")),
    Row("a large batch", _post(body=_MANY, path="/calls/batch")),
]  # fmt: skip

_PATHS = [
    Row("a path that is none", _get("/nothing"), 404, "not_found"),
    Row("a slash too much", _get("/calls/"), 404, "not_found"),
    Row("a path that climbs", _get("/calls/../livez/../../etc/passwd"), 404, "not_found"),
    Row("a header in the path", _get("/calls%0d%0aSet-Cookie:%20a=b"), 404, "not_found"),
    Row("a wrong method", _get("/calls"), 405, "method_not_allowed"),
    Row("a method for other sites", _get("/calls", method="OPTIONS"), 405, "method_not_allowed"),
    Row("a field that no query has", _get("/livez?verbose=1")),
    Row("a call that is none", _get(f"/calls/{_UNKNOWN}"), 404, "not_found"),
    Row("an id that is none", _get("/calls/*"), 404, "not_found"),
    Row("the end of a call that is none", _get(f"/calls/{_UNKNOWN}", method="DELETE"), 404, "not_found"),
    Row("a stream of none", _get(f"/calls/{_UNKNOWN}/events"), 404, "not_found"),
    Row("a foreign event", _get(f"/calls/{_UNKNOWN}/events", "Last-Event-ID: x:end")),
    Row("another module's tool", _post(body='{"tool_name": "jays.echo"}', path="/api/modules/owls/execute")),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", [*_HTTP, *_HEADERS, *_BODIES, *_PATHS, *_INJECTED, *_REPEATED], ids=lambda row: row.name
)
async def test_a_bad_request_has_one_clear_answer(strict: Gateway, row: Row) -> None:
    """A problem with its code says what is wrong; nothing has happened, and nothing of the request becomes a header."""
    answer = await answer_to(strict, row.text.replace(b"{key}", strict.key.encode()))
    assert (answer.status, answer.problem["error_code"]) == (row.status, row.error_code), answer
    assert answer.problem["effect_state"] == "none"
    assert not {"x-injected", "set-cookie"} & set(answer.headers)
    assert ("www-authenticate" in answer.headers) == (answer.status == 401)
    assert (await answer_to(strict, _get("/livez").replace(b"{key}", strict.key.encode()))).status == 200


async def test_a_url_with_the_gateways_host_is_taken(strict: Gateway) -> None:
    """As RFC 9112 has it: a proxy may send one."""
    text = _get("http://localhost/livez", "Connection: close").replace(b"{key}", strict.key.encode())

    assert (await answer_to(strict, text)).status == 200


@pytest.mark.parametrize("kind", ["websocket", "h2c"])
async def test_no_connection_becomes_another_protocol(strict: Gateway, kind: str) -> None:
    """Who asks for one is answered as everybody is."""
    text = _get("/livez", "Connection: Upgrade", f"Upgrade: {kind}").replace(b"{key}", strict.key.encode())

    answer = await answer_to(strict, text)

    assert (answer.status, "upgrade" in answer.headers) == (200, False)


async def test_a_wrong_method_is_told_which_are_right(strict: Gateway) -> None:
    """RFC 9110 asks for `Allow`."""
    answer = await answer_to(strict, request("PUT", "/calls", key=strict.key))

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_a_body_is_bounded_by_what_is_read(strict: Gateway) -> None:
    """A body in chunks, which promises nothing, is refused as soon as it is too large."""
    head = request("POST", "/calls", key=strict.key, headers=("Transfer-Encoding: chunked",), body=b"")
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"

    answer = await answer_to(strict, head, *[chunk] * 50)

    assert (answer.status, answer.problem["error_code"]) == (413, "body_too_large")


async def test_slow_headers_are_given_up(strict: Gateway) -> None:
    """Neither does one header at a time, nor a connection that says nothing."""
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"

    slow = answer_to(strict, head, *[b"A: b\r\n"] * 1000, pause_seconds=0.1)

    assert [answer.problem["error_code"] for answer in await asyncio.gather(slow, answer_to(strict))] == [
        "headers_too_slow"
    ] * 2
