"""What a token's claims say of its holder."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.auth.tokens import claim_of, identity_of
from toolfleet_registry.access import ROLES
from toolfleet_registry.config.gateway_settings import DEFAULT_CLAIMS
from toolfleet_registry.contracts import Level

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["admin", "owner", "user operator", "*", "Admin", "admin,viewer"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)


def read(**claims: Any) -> Identity:
    return identity_of({"sub": "ada", **claims}, DEFAULT_CLAIMS, expires_at=1)


def identity_or_status(claims: dict[str, Any]) -> Identity | int:
    try:
        return read(**claims)
    except AuthRefused as exc:
        return exc.status


@given(permission=values, modules=values, role=values, conversation=values)
def test_no_claim_gives_more_than_it_names(permission: Any, modules: Any, role: Any, conversation: Any) -> None:
    """Whatever is in it: an identity, or a refusal with 401."""
    claims = {
        "toolfleet_permission": permission,
        "toolfleet_modules": modules,
        "toolfleet_role": role,
        "toolfleet_conversation": conversation,
    }
    found = identity_or_status(claims)
    if not isinstance(found, Identity):
        assert found == 401
        return
    assert found.caller.permission == "guest" or found.caller.permission in str(permission)
    assert found.role == "none" or found.role in str(role)
    assert found.caller.allowed_modules is not None or modules is None
    assert found.caller.allowed_modules != "*" or "*" in str(modules)
    assert not found.acts_for_others


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("user", "user"),
        (["user", "owner", "x"], "owner"),
        ("openid admin", "admin"),
        ("Admin", "guest"),
        ("superowner", "guest"),
        (["admin user"], "guest"),  # one text of a list is one name
        (True, "guest"),
        (3, "guest"),
        ({"admin": True}, "guest"),
        (None, "guest"),
    ],
)
def test_the_highest_level_that_is_named_counts(value: Any, level: Level) -> None:
    """Letter for letter; what is unknown gives nothing."""
    assert level in get_args(Level)
    assert read(toolfleet_permission=value).caller.permission == level


@pytest.mark.parametrize(
    ("value", "modules"),
    [
        ("owls notes", frozenset({"owls", "notes"})),
        ("owls,notes", frozenset({"owls", "notes"})),
        (["owls"], frozenset({"owls"})),
        ([], frozenset()),
        ("", frozenset()),
        ("*", "*"),
        (["owls", "*"], "*"),
        (None, None),
    ],
)
def test_modules_are_those_that_are_named(value: Any, modules: Any) -> None:
    """None of them is not all of them."""
    assert read(toolfleet_modules=value).caller.allowed_modules == modules


@pytest.mark.parametrize("value", [7, True, {}, ["owls", None], [f"m{number}" for number in range(1001)]])
def test_modules_that_cannot_be_read_are_refused(value: Any) -> None:
    """To leave them out would be to give all."""
    with pytest.raises(AuthRefused, match="toolfleet_modules"):
        read(toolfleet_modules=value)


def test_a_role_is_a_claim_of_its_own() -> None:
    """It follows from no permission."""
    assert read(toolfleet_permission="owner").role == "none"
    assert read(toolfleet_role=["viewer", "operator"]).role == "operator"
    assert {read(toolfleet_role=role).role for role in ROLES} == {*ROLES}


def test_dots_lead_into_objects() -> None:
    """Unless there is a claim of just that name."""
    claims = {"a": {"b": {"c": 1}}, "a.b": 2, "d": [1]}

    assert claim_of(claims, "a.b.c") == 1
    assert claim_of(claims, "a.b") == 2
    assert claim_of(claims, "a.x.c") is None
    assert claim_of(claims, "d.0") is None
    assert claim_of(claims, "") is None


def test_a_conversation_is_a_text() -> None:
    """Or there is none."""
    assert read(toolfleet_conversation="t-1").conversation_id == "t-1"
    assert read().conversation_id is None
    with pytest.raises(AuthRefused):
        read(toolfleet_conversation=7)


def test_limits_are_those_of_a_key() -> None:
    """A token without them has none, and acts for nobody else."""
    limited = read(toolfleet_requests_per_second=2.5, toolfleet_streams=3, toolfleet_acts_for_others=True)

    assert (limited.requests_per_second, limited.streams, limited.acts_for_others) == (2.5, 3, True)
    assert (read().requests_per_second, read().streams, read().acts_for_others) == (None, None, False)


@pytest.mark.parametrize("value", ["2", True, 0.0001, -1, float("inf"), float("nan"), 10**400, [1], {}])
@pytest.mark.parametrize("claim", ["toolfleet_requests_per_second", "toolfleet_streams"])
def test_a_limit_that_is_not_understood_refuses_the_token(claim: str, value: object) -> None:
    """It would have no limit otherwise."""
    with pytest.raises(AuthRefused):
        read(**{claim: value})


@pytest.mark.parametrize("value", ["true", 1, [True], {"true": True}])
def test_only_true_lets_a_token_act_for_others(value: object) -> None:
    """What is not understood gives nothing."""
    assert not read(toolfleet_acts_for_others=value).acts_for_others
