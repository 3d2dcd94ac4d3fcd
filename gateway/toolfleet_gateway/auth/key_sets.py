"""Reads an issuer's set of public keys, a JWKS: those that may have signed a token."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt
from jwt.types import JWKDict

MOST_KEYS: Final = 100
"""Of a set: more would be read with each refresh."""

_RSA_BITS = 2048  # a shorter key can be broken
_LONGEST_ID = 256
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, and the algorithms that go with it and no others: what confuses them is an attack."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Any


def read_key_set(document: Mapping[str, Any], allowed: Collection[str]) -> list[IssuerKey]:
    """The keys for signatures by allowed algorithms; of others, of secrets and of what cannot be read there is none."""
    listed = document.get("keys")
    if not isinstance(listed, Sequence):
        return []
    found = (_read(each, allowed) for each in listed[:MOST_KEYS] if isinstance(each, Mapping))
    return [key for key in found if key is not None]


def _read(fields: Mapping[str, Any], allowed: Collection[str]) -> IssuerKey | None:
    key_id, use = fields.get("kid"), fields.get("use", "sig")
    operations = fields.get("key_ops", ["verify"])
    if use != "sig" or not isinstance(operations, Sequence) or "verify" not in operations:
        return None
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _LONGEST_ID):
        return None
    algorithms = _algorithms_of(fields) & frozenset(allowed)
    return _public_key(fields, key_id, algorithms) if algorithms else None


def _algorithms_of(fields: Mapping[str, Any]) -> frozenset[str]:
    """Those that a key of its kind can have; the one that it names, if it does."""
    match fields.get("kty"), fields.get("crv"):
        case "RSA", _:
            fitting = frozenset(_RSA)
        case "EC", str(curve):
            fitting = frozenset({_CURVES[curve]} if curve in _CURVES else ())
        case "OKP", "Ed25519":
            fitting = frozenset({"EdDSA"})
        case _:
            return frozenset()
    named = fields.get("alg")
    return fitting if named is None else fitting & {named if isinstance(named, str) else ""}


def _public_key(fields: Mapping[str, Any], key_id: str | None, algorithms: frozenset[str]) -> IssuerKey | None:
    kind: str = fields["kty"]
    public: JWKDict = {"kty": kind, **{name: fields.get(name) for name in _PUBLIC[kind]}}
    try:
        key = jwt.PyJWK(public, min(algorithms)).key
    except (jwt.PyJWTError, TypeError, ValueError, AttributeError):  # whatever is wrong in it
        return None
    if kind == "RSA" and key.key_size < _RSA_BITS:
        return None
    return IssuerKey(key_id, algorithms, key)
