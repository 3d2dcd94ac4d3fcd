"""Settings that are tables: of hosts, agents, webhooks, approvals and OAuth; what is wrong in one is one sentence."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from toolfleet_cli.local.environment import environment_of
from toolfleet_gateway.hooks import approval_hook_routes
from toolfleet_registry.config.host_settings import FolderSpec, HostBase, McpSpec, OAuthSpec, OpenApiSpec, is_safe_url
from toolfleet_registry.config.setting_sources import channel_secret
from toolfleet_registry.config.setting_values import MappedModels
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.client.fleet import ToolFleet

SECRET = "whsec_" + "b3ds" * 8
ISSUER, AUDIENCE = "https://login.example/realms/acme", "https://tools.example/fleet/"
URL = "https://owls.example/mcp"
MACHINE = {"grant": "client_credentials", "client_id": "owl", "client_secret": "${KEY}", "issuer": "https://a.example"}
TOML = """
[[approvals.webhooks]]
url = "https://erp.example/approvals?token=s3cret"
secret = "NOTICES"
events = ["asked"]

[approvals.approvers.erp]
secret = "ERP"
user_id = "boss"
permission = "admin"
"""

pytestmark = pytest.mark.usefixtures("elsewhere")


def in_a_child(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What a child process reads that has been started with these settings."""
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    return load_settings()


def webhooks(*more: dict[str, Any]) -> dict[str, Any]:
    return {"webhooks": [{"url": "http://s3cret/x", "secret": "A", **each} for each in more]}


def approvers(**names: str) -> dict[str, Any]:
    return {"approvers": {name: {"secret": secret, "user_id": "s3cret"} for name, secret in names.items()}}


def host(**table: Any) -> dict[str, Any]:
    return {"hosts": {"owls": table}}


def agent(**profile: Any) -> dict[str, Any]:
    return {"agents": {"p": profile}}


def oauth(**table: Any) -> dict[str, Any]:
    return host(url=URL, oauth=table)


def receivers(webhooks: str, secret: str | None = SECRET) -> dict[str, Any]:
    return {"registry_webhooks": webhooks, "registry_webhooks_secret": secret}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"approvals": webhooks({"url": "ftp://s3cret/x"})}, "must be an http:// or https:// URL with a host"),
        ({"approvals": webhooks({"events": ["eaten"]})}, "asked"),
        ({"approvals": webhooks({}, {})}, "each webhook has a URL of its own"),
        ({"approvals": webhooks(*({"url": f"http://s3cret/{n}"} for n in range(21)))}, "at most 20 webhooks"),
        ({"approvals": approvers(a="A", b="A")}, "each approver has secrets of its own"),
        ({"approvals": {**webhooks({}), **approvers(a="A")}}, "each approver has secrets of its own"),
        ({"approvals": {"approvers": {"a": {"user_id": "s3cret"}}}}, "secrets"),
        ({"approvals": approvers(**{"a b": "A"})}, "an approver cannot be named"),
        ({"approvals": "{s3cret"}, "must be JSON"),
        (receivers("http://s3cret/x", None), "REGISTRY_WEBHOOKS needs TOOLFLEET_REGISTRY_WEBHOOKS_SECRET"),
        (receivers("http://s3cret/x", "whsec_s3cret"), "must be whsec_ and base64"),
        (receivers("ftp://s3cret/x"), "must be http:// or https:// URLs with a host"),
        (receivers('{"http://s3cret/x": ["eaten"]}'), "a list with any of registered, changed"),
        (receivers('{"http://s3cret/x": "changed"}'), "a list with any of registered, changed"),
        (receivers('["http://s3cret/x", 1]'), "must be URLs, or JSON"),
        (receivers("{s3cret"), "must be JSON"),
        (receivers(json.dumps([f"http://s3cret/{n}" for n in range(21)])), "at most 20 URLs"),
        ({"core_secret": SECRET, "registry_webhooks_secret": SECRET}, "another one than TOOLFLEET_CORE_SECRET"),
        ({"oauth_issuer": ISSUER}, "TOOLFLEET_OAUTH_AUDIENCE"),
        ({"oauth_issuer": ISSUER, "oauth_audience": "api"}, "TOOLFLEET_GATEWAY_URL"),
        ({"oauth_issuer": "http://login.example"}, "https://"),  # whoever is on the way could send keys
        ({"oauth_issuer": "login.example"}, "https://"),
        ({"oauth_jwks_url": "http://login.example/keys"}, "https://"),
        ({"oauth_jwks_url": "file:///keys"}, "https://"),
        ({"oauth_algorithms": "HS256"}, "TOOLFLEET_OAUTH_ALGORITHMS"),
        ({"oauth_algorithms": "none"}, "TOOLFLEET_OAUTH_ALGORITHMS"),
        ({"oauth_algorithms": ""}, "one at least"),
        ({"oauth_claims": '{"admin": "x"}'}, "TOOLFLEET_OAUTH_CLAIMS"),
        ({"oauth_claims": "sub"}, "JSON"),
        ({"gateway_url": "tools.example"}, "TOOLFLEET_GATEWAY_URL"),
        ({"gateway_url": "https://tools.example/?a=1"}, "TOOLFLEET_GATEWAY_URL"),
        ({"gateway_url": "https://ada:s3cret@tools.example/"}, "TOOLFLEET_GATEWAY_URL"),
        (host(), "folder, tools, command, url, document"),
        (host(folder="a", document="b"), "folder, tools, command, url, document"),
        (host(command=["a"], url="http://b"), "either a command or a url"),
        (host(command=[]), "either a command or a url"),
        (host(folder="a", speed=3), "speed"),
        (host(folder="a", secrets=["no name"]), "secrets"),
        ({"hosts": {"local": {"folder": "a"}}}, "cannot be named 'local'"),
        ({"secrets": {"TOKEN": {}}}, "one source: variable, file or command"),
        ({"secrets": {"TOKEN": {"variable": "A", "file": "b"}}}, "one source: variable, file or command"),
        ({"secrets": {"a-b": {"variable": "A"}}}, "cannot be named 'a-b'"),
        (oauth(client_secret="s3cret"), r"client_secret is written \$\{NAME\}"),
        (oauth(private_key="a ${KEY}"), r"private_key is written \$\{NAME\}"),
        (oauth(**MACHINE, private_key="${KEY}"), "either client_secret or private_key"),
        (oauth(client_secret="${KEY}", issuer=URL), "need a client_id"),
        (oauth(client_secret="${KEY}", client_id="owl"), "need the issuer"),
        (oauth(grant="client_credentials"), "client_credentials needs a client_id"),
        (oauth(**MACHINE, redirect_port=8080), "leave redirect_port out"),
        (oauth(client_id="owl", private_key="${KEY}", issuer=URL), "private_key is for grant"),
        (oauth(client_id="owl", client_metadata_url=f"{URL}/c"), "either client_id or client_metadata_url"),
        (oauth(client_metadata_url="http://owls.example/client"), "client_metadata_url is no https URL"),
        (oauth(client_metadata_url="https://owls.example/"), "client_metadata_url is no https URL with a path"),
        (oauth(issuer="http://owls.example"), "issuer is no https URL"),
        (oauth(scopes=("read write",)), "a scope is one word"),
        (oauth(grant="implicit"), "Input should be"),
        (oauth(redirect_port=70_000), "less than or equal"),
        (oauth(secret="s3cret"), "there is no such field"),
        (host(command=["owls"], oauth={}), "oauth is for a server that has a url"),
        (host(url="http://owls.example/mcp", oauth={}), "no url without https"),
        (
            host(url=URL, oauth={}, headers={"authorization": "Bearer ${KEY}"}),
            "either oauth or a header Authorization",
        ),
        ({"agents": {"a b": {}}}, "TOOLFLEET_AGENTS.*an agent cannot be named 'a b'"),
        (agent(middleware=[{"name": "rate"}]), "at p.middleware.0: a middleware's name is one of tool_retry"),
        (agent(middleware=[{"name": "tool_retry", "retries": 3}]), "p.middleware.0"),
        (agent(middleware=[{"name": "tool_retry", "max_retries": 11}]), "less than or equal to 10"),
        (agent(middleware=[{"name": "tool_call_limit"}]), "needs a run_limit, a thread_limit or both"),
        (agent(middleware=[{"name": "pii", "pii_types": []}]), "needs pii_types, patterns or both"),
        (agent(middleware=[{"name": "human_in_the_loop"}]), "approve_tools"),
        (agent(tools=["git status"]), "'git status' selects no tools"),
        (agent(allowed_modules=["a/b"]), "'a/b' is no name of a module"),
        (agent(tool=["git.log"]), "there is no such field"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_place(given: dict[str, Any], words: str) -> None:
    """At the start; it shows no URL and no secret."""
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(**given)
    assert "s3cret" not in str(caught.value)


def test_a_wrong_table_of_the_file_is_named_with_its_place(elsewhere: Path) -> None:
    """An empty table of `oauth` is one for a person's login."""
    file = elsewhere / "toolfleet.toml"
    file.write_text(f'[hosts.owls]\nurl = "{URL}"\n[hosts.owls.oauth]\nclient_secret = "${{KEY}}"\n')
    with pytest.raises(
        SettingsError, match=r"toolfleet\.toml.*owls\.oauth: client_secret and private_key need a client"
    ):
        load_settings()
    file.write_text(f'[hosts.owls]\nurl = "{URL}"\n[hosts.owls.oauth]\n')
    spec = load_settings().hosts["owls"]
    assert isinstance(spec, McpSpec)
    assert spec.oauth == OAuthSpec()


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({"folder": "owls"}, FolderSpec),
        ({"command": ["owls", "--serve"], "trusted": True}, McpSpec),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}, McpSpec),
        ({"document": "owls.yaml", "base": "http://127.0.0.1:1"}, OpenApiSpec),
    ],
    ids=["folder", "program", "server", "document"],
)
def test_a_hosts_table_is_of_the_kind_that_its_field_says(table: dict[str, Any], kind: type[HostBase]) -> None:
    """It is the same once more when it is given as an object."""
    spec = load_settings(**host(**table)).hosts["owls"]
    assert type(spec) is kind
    assert load_settings(hosts={"owls": spec}).hosts["owls"] == spec


def test_channels_of_approvals_are_read_from_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process reads the same from its environment; no URL is shown."""
    (elsewhere / "toolfleet.toml").write_text(TOML)
    settings = load_settings()
    (webhook,), approver = settings.approvals.webhooks, settings.approvals.approvers["erp"]
    assert (webhook.secret, webhook.events) == ("NOTICES", ("asked",))
    assert (approver.secrets, approver.user_id, approver.permission) == (("ERP",), "boss", "admin")
    assert "s3cret" not in repr(settings)

    (elsewhere / "toolfleet.toml").unlink()
    assert in_a_child(settings, monkeypatch).approvals == settings.approvals


def test_a_secret_that_signs_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, or no secret of Standard Webhooks: its name is said, and its value is not."""
    with pytest.raises(SettingsError, match="ERP is not there"):
        channel_secret("ERP", {})
    monkeypatch.setenv("ERP", "s3cret")
    with pytest.raises(SettingsError, match="The secret ERP must be whsec_") as caught:
        channel_secret("ERP", {})
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("ERP", SECRET)
    assert channel_secret("ERP", {}) == SECRET


def test_two_approvers_do_not_sign_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that could not tell them apart does not start."""
    for name in ("ONE", "TWO"):
        monkeypatch.setenv(name, SECRET)
    settings = load_settings(redis_url="redis://127.0.0.1:1", approvals=approvers(one="ONE", two="TWO"))
    with pytest.raises(SettingsError, match="the approver two signs"):
        approval_hook_routes(ToolFleet(settings=settings), settings)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("http://a/x, https://b", {"http://a/x": (), "https://b": ()}),
        ('["http://a/x"]', {"http://a/x": ()}),
        (
            '{"http://a/x": ["changed", "removed"], "http://b": []}',
            {"http://a/x": ("changed", "removed"), "http://b": ()},
        ),
        ("", {}),
    ],
)
def test_receivers_of_events_are_read_from_the_environment(
    text: str, read: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commas, as a list, or each with its kinds of event; a child process reads the same."""
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS", text)
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS_SECRET", SECRET)
    settings = load_settings()

    assert settings.registry_webhooks == read
    assert in_a_child(settings, monkeypatch).registry_webhooks == read
    assert "a/x" not in repr(settings)
    assert SECRET not in repr(settings)


def test_oauth_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists with commas or as JSON; a claim that is not named keeps its name. Without it only public keys' signatures count."""
    bare = load_settings()
    assert (bare.oauth_issuer, bare.gateway_resource, bare.oauth_claim_names["user_id"]) == (None, None, "sub")
    assert bare.oauth_algorithms == {"RS256", "ES256", "EdDSA"}
    for name, value in {
        "OAUTH_ISSUER": ISSUER,
        "OAUTH_AUDIENCE": f"{AUDIENCE}, other",
        "OAUTH_ALGORITHMS": '["ES256"]',
        "OAUTH_SCOPES": "call,read",
        "OAUTH_CLAIMS": '{"user_id": "email"}',
    }.items():
        monkeypatch.setenv(f"TOOLFLEET_{name}", value)
    settings = load_settings()

    assert settings.oauth_issuer == ISSUER
    assert settings.oauth_audience == (AUDIENCE, "other")
    assert settings.oauth_algorithms == {"ES256"}
    assert settings.oauth_scopes == ("call", "read")
    assert (settings.oauth_claim_names["user_id"], settings.oauth_claim_names["role"]) == ("email", "toolfleet_role")
    assert settings.gateway_resource == "https://tools.example/fleet"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_an_issuer_on_this_machine_needs_no_tls(host: str) -> None:
    """For one that is tried out."""
    settings = load_settings(oauth_issuer=f"http://{host}:8080", oauth_audience="api", gateway_url="http://127.0.0.1:9")
    assert settings.gateway_resource == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://owls.example", True),
        ("https://10.0.0.7/mcp", True),
        ("http://127.0.0.1:8000/mcp", True),
        ("http://localhost:8000/mcp", True),
        ("http://[::1]/mcp", True),
        ("http://10.0.0.7/mcp", False),
        ("http://owls.example", False),
        ("http://localhost.owls.example", False),
        ("https://ada:word@owls.example", False),
        ("https://", False),
        ("ftp://127.0.0.1", False),
        ("owls", False),
    ],
)
def test_credentials_are_sent_unseen(url: str, *, is_safe: bool) -> None:
    """Over https, or without leaving the machine."""
    assert is_safe_url(url) == is_safe


class Talon(BaseModel, defer_build=True):
    """What few settings have."""

    length: int
    built: ClassVar[list[object]] = []

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Note that a validator is built."""
        cls.built.append(source)
        return handler(source)


class Owls(BaseModel):
    """A part of settings."""

    model_config = ConfigDict(validate_default=True)

    talons: MappedModels[str, Talon] = {}


def test_the_validator_of_models_is_built_with_the_first_one() -> None:
    """Most processes have no agents and hosts in their settings; a wrong one is reported with its place all the same."""
    assert Owls().talons == Owls(talons={}).talons == {}
    assert not Talon.built

    assert Owls.model_validate({"talons": '{"left": {"length": 3}}'}).talons == {"left": Talon(length=3)}
    with pytest.raises(ValidationError) as caught:
        Owls.model_validate({"talons": {"left": {"length": "long"}}})
    assert [error["loc"] for error in caught.value.errors()] == [("talons", "left", "length")]
