"""Who may do what over HTTP: one table of routes, roles and answers."""

import re
from typing import Any

import pytest

from support.gateways.keyed_gateway import KeyedGateway

# Each route with what a request of it is answered by role: a viewer's, an operator's and an admin's. Users without a role get 403.
TABLE: list[tuple[str, str, Any, tuple[int, int, int]]] = [
    ("GET", "/operations/status", None, (200, 200, 200)),
    ("GET", "/operations/agents", None, (200, 200, 200)),
    ("GET", "/operations/agents/none", None, (404, 404, 404)),
    ("PUT", "/operations/agents/owls.none", {}, (403, 403, 409)),
    ("DELETE", "/operations/agents/none", None, (403, 403, 404)),
    ("GET", "/operations/agents/none/versions", None, (404, 404, 404)),
    ("POST", "/operations/agents/none/rollback", {"version": 1}, (403, 403, 404)),
    ("GET", "/operations/dead-letters", None, (200, 200, 200)),
    ("POST", "/operations/dead-letters/replay?kind=webhook", None, (403, 200, 200)),
    ("DELETE", "/operations/dead-letters?kind=webhook", None, (403, 200, 200)),
    ("GET", "/operations/dead-letters/none", None, (404, 404, 404)),
    ("DELETE", "/operations/dead-letters/none", None, (403, 404, 404)),
    ("POST", "/operations/dead-letters/none/replay", {}, (403, 404, 404)),
    ("GET", "/operations/wake-ups", None, (200, 200, 200)),
    ("GET", "/operations/wake-ups/none", None, (404, 404, 404)),
    ("POST", "/operations/wake-ups/none/replay", None, (403, 404, 404)),
    ("DELETE", "/operations/wake-ups/none", None, (403, 404, 404)),
    ("POST", "/operations/wake-ups/replay?about=nobody", None, (403, 200, 200)),
    ("DELETE", "/operations/wake-ups?about=nobody", None, (403, 200, 200)),
    ("DELETE", "/operations/wake-ups?cursor=wrong", None, (403, 400, 400)),
    ("GET", "/operations/audit", None, (200, 200, 200)),
    ("GET", "/operations/calls", None, (200, 200, 200)),
    ("GET", "/operations/calls/values?field=tool", None, (200, 200, 200)),
    ("GET", "/operations/calls/charts", None, (200, 200, 200)),
    ("DELETE", "/operations/calls/contents?user_id=none", None, (403, 403, 200)),
    ("DELETE", "/operations/calls/artifacts?user_id=none&id=none.1.0", None, (403, 403, 200)),
    ("GET", "/operations/calls/none", None, (404, 404, 404)),
    ("GET", "/operations/tools", None, (200, 200, 200)),
    ("POST", "/operations/tools/owls.none/disable", None, (403, 409, 409)),
    ("POST", "/operations/tools/owls.none/enable", None, (403, 409, 409)),
    ("POST", "/operations/tools/owls.none/approve", {}, (403, 409, 409)),
    ("POST", "/operations/tools/owls.none/forget", None, (403, 204, 204)),
    ("POST", "/operations/tools/owls.none/rollback", {"version": "1"}, (403, 409, 409)),
    ("GET", "/operations/tools/owls.none/versions", None, (409, 409, 409)),
    ("GET", "/operations/tools/events", None, (200, 200, 200)),
    ("POST", "/operations/modules/none/pin", None, (403, 409, 409)),
    ("POST", "/operations/modules/none/unpin", None, (403, 409, 409)),
    ("GET", "/operations/modules", None, (200, 200, 200)),
    ("POST", "/operations/modules", {"module": "owls", "url": "http://127.0.0.1:1"}, (403, 409, 409)),
    ("DELETE", "/operations/modules/none", None, (403, 409, 409)),
    ("GET", "/operations/queues", None, (200, 200, 200)),
    ("GET", "/operations/queues/none", None, (404, 404, 404)),
    ("POST", "/operations/queues/none", {"action": "pause"}, (403, 404, 404)),
    ("GET", "/operations/jobs", None, (200, 200, 200)),
    ("DELETE", "/operations/jobs?user_id=none", None, (403, 200, 200)),
    ("DELETE", "/operations/jobs", None, (403, 400, 400)),
    ("GET", "/operations/jobs/none", None, (404, 404, 404)),
    ("DELETE", "/operations/jobs/none", None, (403, 404, 404)),
    ("GET", "/operations/jobs/none/wake-ups", None, (404, 404, 404)),
    ("GET", "/operations/programs", None, (200, 200, 200)),
    ("GET", "/operations/programs/none", None, (404, 404, 404)),
    ("DELETE", "/operations/programs/none", None, (403, 404, 404)),
    ("GET", "/operations/keys", None, (403, 403, 200)),
    ("POST", "/operations/keys", {"user_id": "ada", "expires_at": 1}, (403, 403, 409)),
    ("DELETE", "/operations/keys/none", None, (403, 403, 404)),
    ("GET", "/tools/errors", None, (200, 200, 200)),
    ("GET", "/metrics", None, (200, 200, 200)),
    ("GET", "/scale/fast", None, (200, 200, 200)),
    ("GET", "/scale/none", None, (404, 404, 404)),
    ("POST", "/refresh-tools", None, (403, 200, 200)),
]
# `POST /tools/reload` takes its seconds: it is below, once.
# What everybody with a key may ask.
FOR_ALL = ["/tools", "/modules", "/api/modules", "/jobs", "/workflows/none", "/approvals"]


async def asked(gateway: KeyedGateway, who: str, method: str, path: str, body: Any) -> int:
    async with gateway.client(who) as client:
        answer = await client.request(method, path, **({} if body is None else {"json": body}))
    if answer.status_code >= 400:
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert (problem["status"], problem["instance"]) == (answer.status_code, path.partition("?")[0])
    return answer.status_code


@pytest.mark.parametrize(("method", "path", "body", "statuses"), TABLE)
async def test_each_route_asks_for_its_role(
    gateway: KeyedGateway, method: str, path: str, body: Any, statuses: tuple[int, int, int]
) -> None:
    """A viewer reads, an operator changes, an admin makes keys; a user without a role gets 403, whatever they may call, and nobody 401."""
    of_roles = [await asked(gateway, who, method, path, body) for who in ("vera", "olga", "ada")]
    of_others = [await asked(gateway, who, method, path, body) for who in ("bob", "gus", "nobody")]

    assert tuple(of_roles) == statuses
    assert of_others == [403, 403, 401]


async def test_the_table_has_every_route_of_operators(gateway: KeyedGateway) -> None:
    """A route that is added has its row, so that nobody forgets its role."""
    paths = (await gateway.get("bob", "/openapi.json")).json()["paths"]
    routes = {(method.upper(), path) for path in paths for method in paths[path] if path.startswith("/operations/")}
    asked_for = {
        (method, re.sub("/(owls\\.)?none(?=/|$)", "/{}", path.partition("?")[0])) for method, path, _, _ in TABLE
    }

    assert {(method, re.sub("{[a-z_]+}", "{}", path)) for method, path in routes} <= asked_for


async def test_a_reload_is_for_operators(gateway: KeyedGateway) -> None:
    """Without a host of a tool folder it answers in a few seconds that nobody has answered."""
    answer = await gateway.post("olga", "/tools/reload")

    assert (answer.status_code, answer.json()) == (200, {"count": 0, "errors": [], "hosts": 0, "pending": []})
    assert [await asked(gateway, who, "POST", "/tools/reload", None) for who in ("vera", "bob")] == [403, 403]


@pytest.mark.parametrize("path", FOR_ALL)
async def test_what_is_for_all_needs_a_key(gateway: KeyedGateway, path: str) -> None:
    """Each key gets an answer about its own, and nobody else gets one."""
    assert [await asked(gateway, who, "GET", path, None) for who in ("gus", "bob", "vera", "nobody")] == [
        200,
        200,
        200,
        401,
    ]


async def test_a_role_gives_no_tool_and_a_permission_no_role(gateway: KeyedGateway) -> None:
    """An operator without modules may not have a job call a tool; who may call everything may still not operate."""
    job = {"start": {"tool_name": "owls.echo"}, "conversation": {"conversation_id": "nest"}}

    assert await asked(gateway, "olga", "POST", "/jobs", job) == 403
    assert await asked(gateway, "bob", "GET", "/operations/status", None) == 403


@pytest.mark.parametrize(
    ("path", "last"),
    [
        *((f"/tools?cursor={cursor}", None) for cursor in ("!", "x" * 600, "MDo=", "LTE6", "4oKs")),
        *((f"/operations/calls{query}", None) for query in ("?cursor=soon", "?limit=0", "?since=-1", "?tenant=x")),
        *(
            (f"/operations/calls/{query}", None)
            for query in ("values", "values?field=worker", "charts?since=5&until=5")
        ),
        ("/operations/audit?cursor=last", None),
        ("/operations/audit?after=1-0&cursor=1-0", None),
        ("/operations/dead-letters?cursor=last", None),
        ("/operations/dead-letters?about=owls&offset=1", None),
        ("/operations/dead-letters?min_age_seconds=-1", None),
        ("/operations/wake-ups?conversation_id=nest-7&offset=1", None),
        *(("/events", last) for last in ("x", "-", "9" * 100)),
        *(
            ("/conversations/nest/completions", last)
            for last in ("job-1", "1", "1-x", "-1-0", "99999999999999999999999-0")
        ),
    ],
)
async def test_a_wrong_question_is_refused(gateway: KeyedGateway, path: str, last: str | None) -> None:
    """A cursor, a field or a `Last-Event-ID` of nobody's making is 400, and no stream."""
    answer = await gateway.get("vera", path, headers={} if last is None else {"last-event-id": last})
    assert (answer.status_code, answer.json()["error_code"]) == (400, "invalid_request")
