"""Who has sent a request, and for whom it acts."""

import pytest

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.protected_resource import ProtectedResource, challenge_of
from toolfleet_gateway.auth.refusals import STATUSES, AuthRefused
from toolfleet_registry.access.roles import ROLES, has_role, role_of
from toolfleet_registry.contracts import Caller

ADA = Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}))


def test_an_identity_acts_for_itself() -> None:
    """A request that names its own user, or none, is in its own name."""
    identity = Identity(ADA, key_id="a")

    assert identity.caller_for(None) == identity.caller_for("ada") == ADA
    assert identity.for_user(None) == identity


def test_acting_for_others_is_a_right_of_its_own() -> None:
    """Neither a high permission nor a role gives it; who has it gives the other user no more than itself has."""
    owner = Identity(ADA.model_copy(update={"permission": "owner"}), role="admin", key_id="a")
    with pytest.raises(AuthRefused) as refused:
        owner.caller_for("bob")
    assert (refused.value.status, refused.value.problem) == (403, "acts-for-others")

    other = Identity(ADA, key_id="a", acts_for_others=True).caller_for("bob")
    assert other == ADA.model_copy(update={"user_id": "bob"})


@pytest.mark.parametrize("user_id", ["", "x" * 257])
def test_a_user_has_a_name(user_id: str) -> None:
    """What is none is the request's fault."""
    with pytest.raises(AuthRefused) as refused:
        Identity(ADA, key_id="a", acts_for_others=True).caller_for(user_id)

    assert refused.value.status == 400


def test_roles_are_in_one_order() -> None:
    """Whoever has one may do what needs a lower one; an unknown one is none."""
    assert [has_role("operator", needed) for needed in ROLES] == [True, True, True, False]
    assert not Identity(ADA).has_role("viewer")
    assert (role_of("admin"), role_of("Admin"), role_of(None), role_of(7)) == ("admin", "none", "none", "none")


def test_limits_go_by_key_or_subject() -> None:
    """One user's token is another one's than a key of that name."""
    assert Identity(ADA, key_id="x").name != Identity(ADA, subject="x").name


def test_each_refusal_is_of_http() -> None:
    """And says in its own header when to come again, in whole seconds, never at once."""
    for problem, status in STATUSES.items():
        assert AuthRefused(problem, "x").status == status
    waits = [AuthRefused("too-many-requests", "x", retry_after_seconds=each) for each in (0, 0.001, 1, 1.001, 90)]
    assert [each.headers["Retry-After"] for each in waits] == ["1", "1", "1", "2", "90"]


def test_the_metadata_say_where_tokens_come_from() -> None:
    """As RFC 9728 has them: of the gateway, and of an endpoint below it."""
    resource = ProtectedResource("https://tools.example/fleet", "https://login.example", ("call",))

    assert resource.metadata() == {
        "resource": "https://tools.example/fleet",
        "authorization_servers": ["https://login.example"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Toolfleet",
        "scopes_supported": ["call"],
    }
    assert resource.metadata("/mcp")["resource"] == "https://tools.example/fleet/mcp"
    assert resource.metadata_path("/mcp") == "/.well-known/oauth-protected-resource/fleet/mcp"
    assert resource.metadata_url() == "https://tools.example/.well-known/oauth-protected-resource/fleet"
    assert ProtectedResource("https://a:8443", "x").metadata_url("/mcp") == (
        "https://a:8443/.well-known/oauth-protected-resource/mcp"
    )


def test_a_challenge_can_be_parsed() -> None:
    """Whatever is in the reason; and what other credentials would not change has none."""
    refused = AuthRefused("invalid-token", 'a "b" \\ \r\n ü')
    assert challenge_of(refused, None) == (
        "Bearer realm=\"toolfleet\", error=\"invalid_token\", error_description=\"a 'b' ' '' '\""
    )
    for problem in ("acts-for-others", "too-many-requests", "auth-unavailable", "repeated-credentials"):
        assert challenge_of(AuthRefused(problem, "x"), None) is None
