"""Whatever is wrong with a request has one clear answer, and the gateway goes on."""

import json
import uuid
from dataclasses import dataclass

import pytest

from support.gateways.gateway_process import Gateway
from support.gateways.raw_http import answer_to, request

_CALL = json.dumps({"tool_name": "owls.echo", "arguments": {}})
_UNKNOWN = str(uuid.UUID(int=7))


@dataclass(frozen=True)
class Bad:
    """A request: its bytes, with `{key}` for the gateway's key, and what it must be answered."""

    name: str
    text: bytes
    status: int
    error_code: str


def _post(body: str | bytes = _CALL, *headers: str, path: str = "/calls") -> bytes:
    return request("POST", path, key="{key}", headers=headers, body=body)


def _get(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> bytes:
    return request(method, path, key="{key}", host=host, headers=headers)


_MANY = json.dumps({"calls": [{"tool_name": "owls.echo"}] * 51})
_DEEP = '{"tool_name": "owls.echo", "arguments": ' + '{"a":' * 150 + "1" + "}" * 150 + "}"
_HTTP = [
    Bad("no HTTP", b"HELLO\r\n\r\n", 400, "invalid_request"),
    Bad("a method that nobody knows", b"FROB / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "invalid_request"),
    Bad("a header without a colon", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nNonsense\r\n\r\n", 400, "invalid_request"),
    Bad("a NUL in a header", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n", 400, "invalid_request"),
    Bad("a blank before the colon", b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, "invalid_request"),
    Bad("a length that is none", _post(_CALL, "Content-Length: -1"), 400, "invalid_request"),
    Bad("a length with a sign", _post(_CALL, "Content-Length: +5"), 400, "invalid_request"),
    Bad("two lengths", _post(_CALL, "Content-Length: 5", "Content-Length: 6"), 400, "invalid_request"),
    Bad("two equal lengths", _post(_CALL, "Content-Length: 5", "Content-Length: 5"), 400, "invalid_request"),
    Bad("a length, and chunks", _post(b"0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), 400, "invalid_request"),
    Bad("chunks, and a length", _post(b"0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5"), 400, "invalid_request"),
    Bad("chunks in disguise", _post(b"0\r\n\r\n", "Transfer-Encoding: xchunked"), 400, "invalid_request"),
    Bad("chunks twice", _post(b"0\r\n\r\n", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400, "invalid_request"),
    Bad("a chunk whose length is none", _post(b"zz\r\n\r\n", "Transfer-Encoding: chunked"), 400, "invalid_request"),
    Bad("large headers", _get("/livez", "A: " + "a" * 9000), 431, "headers_too_large"),
    Bad("many headers", _get("/livez", *(f"A{n}: {n}" for n in range(2000))), 431, "headers_too_large"),
    Bad("a long URL", _get("/" + "a" * 9000), 431, "headers_too_large"),
]  # fmt: skip
_HEADERS = [
    Bad("no Host", _get("/livez", host=""), 400, "invalid_request"),
    Bad("two Hosts", _get("/livez", "Host: localhost"), 400, "invalid_request"),
    Bad("a foreign Host", _get("/openapi.json", host="evil.example"), 421, "wrong_host"),
    Bad("a Host that only begins well", _get("/openapi.json", host="localhost.evil.example"), 421, "wrong_host"),
    Bad(
        "a Host with another one behind its port",
        _get("/openapi.json", host="localhost:8484@evil.example"),
        421,
        "wrong_host",
    ),
    Bad("a foreign Origin", _post(_CALL, "Origin: https://evil.example"), 403, "wrong_origin"),
    Bad("no Origin at all", _post(_CALL, "Origin: null"), 403, "wrong_origin"),
    Bad("two Authorizations", _post(_CALL, "Authorization: Bearer x"), 400, "invalid_request"),
    Bad("a key in two places", _post(_CALL, "X-API-Key: x"), 400, "invalid_request"),
    Bad("two Idempotency-Keys", _post(_CALL, "Idempotency-Key: a", "Idempotency-Key: b"), 400, "invalid_request"),
    Bad("an empty Idempotency-Key", _post(_CALL, "Idempotency-Key:"), 400, "invalid_request"),
    Bad("a long Idempotency-Key", _post(_CALL, "Idempotency-Key: " + "a" * 257), 400, "invalid_request"),
    Bad("a foreign character in it", _post(_CALL, "Idempotency-Key: \xe4"), 400, "invalid_request"),
    Bad("no key", request("POST", "/calls", body=_CALL), 401, "missing_credentials"),
    Bad("a key that is none", request("POST", "/calls", key="tfk_nonsense", body=_CALL), 401, "invalid_key"),
    Bad("a key in the query", _get("/livez?api_key=x"), 400, "credentials_in_query"),
    Bad("a token in the query", _post(path="/calls?access_token=x"), 400, "credentials_in_query"),
]
_BODIES = [
    Bad("no body", _post(""), 400, "invalid_request"),
    Bad("no content type", _post(_CALL, "Content-Type:"), 415, "unsupported_media_type"),
    Bad("a form", _post("a=1", "Content-Type: application/x-www-form-urlencoded"), 415, "unsupported_media_type"),
    Bad("text", _post(_CALL, "Content-Type: text/plain"), 415, "unsupported_media_type"),
    Bad("another charset", _post(_CALL, "Content-Type: application/json; charset=latin-1"), 415, "unsupported_media_type"),
    Bad("a packed body", _post(_CALL, "Content-Encoding: gzip"), 415, "unsupported_media_type"),
    Bad("a large body, as it says itself", _post(_CALL, "Content-Length: 100000000"), 413, "body_too_large"),
    Bad("a body with a huge length", _post(_CALL, "Content-Length: 9999999999999999"), 413, "body_too_large"),
    Bad("no JSON", _post("{"), 400, "invalid_request"),
    Bad("no UTF-8", _post(b'{"tool_name": "\xff"}'), 400, "invalid_request"),
    Bad("no number", _post('{"tool_name": "owls.echo", "arguments": {"a": NaN}}'), 400, "invalid_request"),
    Bad("deep JSON", _post(_DEEP), 400, "invalid_request"),
    Bad("a list", _post("[]"), 400, "invalid_request"),
    Bad("no tool", _post("{}"), 400, "invalid_request"),
    Bad("a field that nobody knows", _post('{"tool_name": "owls.echo", "argument": {}}'), 400, "invalid_request"),
    Bad("a number for a tool", _post('{"tool_name": 1}'), 400, "invalid_request"),
    Bad("a list of arguments", _post('{"tool_name": "owls.echo", "arguments": []}'), 400, "invalid_request"),
    Bad("no time", _post('{"tool_name": "owls.echo", "timeout_seconds": 0}'), 400, "invalid_request"),
    Bad("an empty batch", _post('{"calls": []}', path="/calls/batch"), 400, "invalid_request"),
    Bad("a large batch", _post(_MANY, path="/calls/batch"), 400, "invalid_request"),
]  # fmt: skip
_PATHS = [
    Bad("a path that is none", _get("/nothing"), 404, "not_found"),
    Bad("a slash too much", _get("/calls/"), 404, "not_found"),
    Bad("a path that climbs", _get("/calls/../livez/../../etc/passwd"), 404, "not_found"),
    Bad("a header in the path", _get("/calls%0d%0aSet-Cookie:%20a=b"), 404, "not_found"),
    Bad("a wrong method", _get("/calls"), 405, "method_not_allowed"),
    Bad("a method for other sites", _get("/calls", method="OPTIONS"), 405, "method_not_allowed"),
    Bad("a field that no query has", _get("/livez?verbose=1"), 400, "invalid_request"),
    Bad("a call that is none", _get(f"/calls/{_UNKNOWN}"), 404, "not_found"),
    Bad("an id that is none", _get("/calls/*"), 404, "not_found"),
    Bad("the end of a call that is none", _get(f"/calls/{_UNKNOWN}", method="DELETE"), 404, "not_found"),
    Bad("a stream of none", _get(f"/calls/{_UNKNOWN}/events"), 404, "not_found"),
    Bad("a foreign event", _get(f"/calls/{_UNKNOWN}/events", "Last-Event-ID: x:end"), 400, "invalid_request"),
    Bad("another module's tool", _post('{"tool_name": "jays.echo"}', path="/api/modules/owls/execute"), 400, "invalid_request"),
]  # fmt: skip


@pytest.mark.parametrize("bad", [*_HTTP, *_HEADERS, *_BODIES, *_PATHS], ids=lambda bad: bad.name)
async def test_a_bad_request_has_one_clear_answer(strict: Gateway, bad: Bad) -> None:
    """A problem with its code says what is wrong, and nothing has happened."""
    answer = await answer_to(strict, bad.text.replace(b"{key}", strict.key.encode()))

    assert (answer.status, answer.problem["error_code"]) == (bad.status, bad.error_code), answer
    assert answer.problem["effect_state"] == "none"
    assert "set-cookie" not in answer.headers
    assert ("www-authenticate" in answer.headers) == (bad.status == 401)
    assert (await answer_to(strict, _get("/livez").replace(b"{key}", strict.key.encode()))).status == 200


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


async def test_a_slow_body_is_given_up(strict: Gateway) -> None:
    """One byte at a time does not hold a request open."""
    head = request("POST", "/calls", key=strict.key, headers=("Content-Length: 1000",), body=b"")

    answer = await answer_to(strict, head, *[b" "] * 1000, pause_seconds=0.1)

    assert (answer.status, answer.problem["error_code"]) == (408, "body_too_slow")


async def test_slow_headers_are_given_up(strict: Gateway) -> None:
    """Neither does one header at a time, nor a connection that says nothing."""
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"

    slow = await answer_to(strict, head, *[b"A: b\r\n"] * 1000, pause_seconds=0.1)
    silent = await answer_to(strict)

    assert [answer.problem["error_code"] for answer in (slow, silent)] == ["headers_too_slow"] * 2


async def test_a_second_request_is_not_smuggled_in(strict: Gateway) -> None:
    """What is contradictory is refused whole, and the connection is closed: nothing behind it is read as a request."""
    smuggled = _get("/openapi.json")
    text = _post(b"0\r\n\r\n" + smuggled, "Content-Length: 5", "Transfer-Encoding: chunked")

    answer = await answer_to(strict, text.replace(b"{key}", strict.key.encode()))

    assert (answer.status, answer.headers["connection"]) == (400, "close")
