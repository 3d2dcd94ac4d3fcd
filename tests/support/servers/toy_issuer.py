"""An OAuth issuer on the loopback interface, with real keys: it publishes them, rotates them, and signs whatever a test wants."""

import functools
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.servers.web_site import WebSite, web_site

AUDIENCE = "https://tools.example/fleet"


@functools.cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """One for that algorithm; made once, as that takes a while."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1, "ES384": ec.SECP384R1}[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def jwk_of(key_id: str | None, algorithm: str, key: Any, **more: Any) -> dict[str, Any]:
    """The public key as a JWKS has it."""
    fields = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    named = {} if key_id is None else {"kid": key_id}
    return {"kty": fields["kty"], **{k: v for k, v in fields.items() if k != "key_ops"}, **named, "use": "sig", **more}


def encoded(value: Any) -> str:
    """A part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: Any, claims: Any, sign: Callable[[bytes], bytes]) -> str:
    """A token of just these parts."""
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(sign(text.encode()))}"


class ToyIssuer:
    """`site` counts who asks; what it publishes may be replaced there."""

    def __init__(self, site: WebSite) -> None:
        self.site = site
        self.url = f"http://127.0.0.1:{site.port}"
        self.jwks_url = f"{self.url}/keys"
        self.keys = dict[str, tuple[str, Any]]()
        self.add_key("rsa-1", "RS256")
        self.add_key("ec-1", "ES256")

    def add_key(self, key_id: str, algorithm: str, number: int = 0) -> None:
        self.keys[key_id] = algorithm, private_key(algorithm, number)
        self.publish()

    def withdraw(self, key_id: str) -> None:
        del self.keys[key_id]
        self.publish()

    def publish(self, *, metadata: str = "/.well-known/oauth-authorization-server") -> None:
        """Answer with what there is."""
        document = {"issuer": self.url, "jwks_uri": self.jwks_url}
        self.site.page(metadata, json.dumps(document).encode())
        listed = [jwk_of(key_id, *pair) for key_id, pair in self.keys.items()]
        self.site.page("/keys", json.dumps({"keys": listed}).encode())

    def go_away(self) -> None:
        """Answer everything with an error."""
        for path in self.site.pages:
            self.site.page(path, b"", status="503 Service Unavailable")

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Those of a good token, and what is changed; without those that are `None`."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "nbf": now, "exp": now + 300}
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, key_id: str = "rsa-1", *, header: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """A token that is signed with one of its keys."""
        algorithm, key = self.keys[key_id]
        return jwt.encode(self.claims(**changed), key, algorithm, headers={"kid": key_id, **(header or {})})

    def public_pem(self, key_id: str) -> bytes:
        public = self.keys[key_id][1].public_key()
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return bytes(public.public_bytes(serialization.Encoding.PEM, kind))

    def asked_for(self, path: str) -> int:
        """How often."""
        return sum(request.split()[1] == path for request in self.site.asked)


@asynccontextmanager
async def toy_issuer() -> AsyncGenerator[ToyIssuer]:
    async with web_site() as site:
        yield ToyIssuer(site)
