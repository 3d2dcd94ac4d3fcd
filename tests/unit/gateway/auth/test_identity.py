"""Who has sent a request, by what it is proved, and for whom it acts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_gateway.auth.authenticator import ProtectedResource, challenge_of
from toolfleet_gateway.auth.identity import STATUSES, AuthRefused, Identity, SentCredential, read_credential
from toolfleet_registry.access import ROLES, has_role
from toolfleet_registry.contracts import Caller

ADA = Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}))


def test_an_identity_acts_for_itself() -> None:
    """A request that names its own user, or none, is in its own name."""
    identity = Identity(ADA, key_id="a")

    assert identity.caller_for(None) == identity.caller_for("ada") == ADA


def test_acting_for_others_is_a_right_of_its_own() -> None:
    """Neither a high permission nor a role gives it; who has it gives the other user no more than itself has."""
    owner = Identity(ADA.model_copy(update={"permission": "owner"}), role="admin", key_id="a")
    with pytest.raises(AuthRefused) as refused:
        owner.caller_for("bob")
    assert (refused.value.status, refused.value.problem) == (403, "acts-for-others")

    other = Identity(ADA, key_id="a", acts_for_others=True).caller_for("bob")
    assert other == ADA.model_copy(update={"user_id": "bob"})


def test_a_key_of_some_modules_is_shown_calls_of_these_only() -> None:
    """Also of its own user's, whichever key has made them."""

    def seen(modules: Any) -> list[str]:
        identity = Identity(ADA.model_copy(update={"allowed_modules": modules}), key_id="a")
        return [name for name in ("owls.count", "owlsome.count", "git.push") if identity.sees_calls_of(name)]

    assert seen(frozenset({"owls"})) == ["owls.count"]
    assert seen(frozenset()) == []
    assert seen("*") == seen(None) == ["owls.count", "owlsome.count", "git.push"]


@pytest.mark.parametrize("user_id", ["", "x" * 257])
def test_a_user_has_a_name(user_id: str) -> None:
    """What is none is the request's fault."""
    with pytest.raises(AuthRefused) as refused:
        Identity(ADA, key_id="a", acts_for_others=True).caller_for(user_id)

    assert refused.value.status == 400


def test_roles_are_in_one_order() -> None:
    """A holder of one may do what needs a lower one; without one, none of it."""
    assert [has_role("operator", needed) for needed in ROLES] == [True, True, True, False]
    assert not Identity(ADA).has_role("viewer")


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


KEY = f"tfk_0123456789ab_{49 * 'x'}"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
Header = tuple[bytes, bytes]


def bearer(text: str) -> Header:
    return b"authorization", f"Bearer {text}".encode("latin-1")


@pytest.mark.parametrize(
    ("header", "credential"),
    [
        (bearer(KEY), SentCredential("key", KEY)),
        (bearer(TOKEN), SentCredential("token", TOKEN)),
        ((b"Authorization", f"BEARER   {TOKEN}".encode()), SentCredential("token", TOKEN)),
        ((b"x-api-key", KEY.encode()), SentCredential("key", KEY)),
        ((b"X-API-KEY", TOKEN.encode()), SentCredential("key", TOKEN)),
        ((b"authorization", b"Basic YWRhOmFkYQ=="), None),
        ((b"authorization", b"Digest username=ada"), None),
        ((b"cookie", f"key={KEY}".encode()), None),
        ((b"proxy-authorization", f"Bearer {KEY}".encode()), None),
    ],
)
def test_one_header_is_the_credential(header: Header, credential: SentCredential | None) -> None:
    """In any case of letters; no other header, and no other scheme, is."""
    assert read_credential([(b"host", b"x"), header]) == credential


@pytest.mark.parametrize(
    "headers",
    [
        [bearer(KEY), (b"x-api-key", KEY.encode())],
        [bearer(KEY), bearer(KEY)],
        [bearer(KEY), bearer(TOKEN)],
        [(b"x-api-key", KEY.encode()), (b"X-Api-Key", b"other")],
        [bearer(KEY), (b"Authorization", b"Basic YWRhOmFkYQ==")],
    ],
)
def test_two_are_contradictory(headers: list[Header]) -> None:
    """Also if they say the same: a proxy may look at one, and we at the other."""
    with pytest.raises(AuthRefused) as refused:
        read_credential(headers)

    assert (refused.value.status, refused.value.problem) == (400, "repeated-credentials")


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b""),
        (b"authorization", b"Bearer"),
        (b"authorization", b"Bearer "),
        bearer(f"{KEY}, Bearer {KEY}"),  # as proxies join repeated ones
        bearer(f"{KEY} {KEY}"),
        bearer("\xe9"),
        bearer('"x"'),
        (b"authorization", b"\xff\xfe"),
        (b"authorization", b"Bearer\tx"),
        (b"x-api-key", b""),
        (b"x-api-key", f"{KEY},{KEY}".encode()),
        (b"x-api-key", f"Bearer {KEY}".encode()),
        (b"x-api-key", b"\xff"),
        (b"x-api-key", b"a\x00b"),
    ],
)
def test_what_cannot_be_read_is_refused(header: Header) -> None:
    """With 400, and nothing of it in the reason."""
    with pytest.raises(AuthRefused) as refused:
        read_credential([header])

    assert (refused.value.status, refused.value.problem) == (400, "malformed-credentials")
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_a_long_one_is_refused(name: bytes) -> None:
    """Before it is looked at."""
    with pytest.raises(AuthRefused) as refused:
        read_credential([(name, b"Bearer " + b"x" * 100_000)])

    assert (refused.value.status, refused.value.problem) == (401, "invalid-token")


@pytest.mark.parametrize(
    "query",
    [
        "access_token=x",
        "API_KEY=x",
        "x-api-key=x",
        "a=1&Authorization=",
        f"q={KEY}",
        f"q={TOKEN}",
        f"q=Bearer+{TOKEN}",
        f"q={KEY.replace('_', '%5F')}",
        f"a[b]={TOKEN}&c=d",
        "&".join("a=1" for _ in range(1001)),
    ],
)
def test_a_secret_in_the_query_is_refused(query: str) -> None:
    """By its name or by how it looks, also beside a good header; so that nobody gets used to it."""
    for headers in ([], [bearer(KEY)]):
        with pytest.raises(AuthRefused) as refused:
            read_credential(headers, query.encode())
        assert (refused.value.status, refused.value.problem) == (400, "credentials-in-query")
        assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    "query", ["", "q=tokens", "token_count=5", "key=a.b.c", "search=eyJ", "wait=5&cursor=abc%20def"]
)
def test_other_queries_are_none_of_this(query: str) -> None:
    """Nor is one that only looks a little like it."""
    assert read_credential([bearer(KEY)], query.encode()) == SentCredential("key", KEY)


@given(
    headers=st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"x"]), st.binary(max_size=60)), max_size=3
    ),
    query=st.binary(max_size=60),
)
def test_whatever_comes_has_one_of_these_answers(headers: list[Header], query: bytes) -> None:
    """A credential, none, or a refusal."""
    assert answer_to(headers, query)


def answer_to(headers: list[Header], query: bytes) -> bool:
    """Whether it is one of those."""
    try:
        found = read_credential(headers, query)
    except AuthRefused as exc:
        return exc.status in {400, 401}
    return found is None or bool(found.text)


def test_a_credential_is_not_shown() -> None:
    """In no traceback, and in no log."""
    assert KEY not in repr(read_credential([bearer(KEY)]))
