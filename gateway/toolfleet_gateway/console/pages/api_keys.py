"""Shows API keys to admins, and has them revoke some."""

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of


def api_key_pages() -> list[ConsolePage]:
    """The pages."""
    return [
        ConsolePage("GET", "/keys", _listed, "admin"),
        ConsolePage("POST", "/keys/{key_id}", _revoked, "admin"),
    ]


async def _listed(visit: Visit) -> Outcome:
    window, user = window_of(visit.query), visit.query.get("user", "").strip()
    keys = (await visit.ask("listKeys"))["keys"]
    found = [each for each in keys if user.lower() in each["key"]["user_id"].lower()]
    return Shown("api_keys", "Keys", {**window.cut(found), "user": user, "own": visit.who.key_id})


async def _revoked(visit: Visit) -> Outcome:
    key_id = visit.path["key_id"]
    await visit.ask("revokeKey", RouteQuestion({"key_id": key_id}))
    return Done(f"The key {key_id} is revoked: within two seconds no gateway takes it.", "/keys")
