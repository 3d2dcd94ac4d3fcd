"""Sends what a document's security schemes want, made of secrets, and hides it wherever it could come back."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from toolfleet_modules.hosts.openapi.documents.document import OpenApiDocument, OperationUnusable
from toolfleet_modules.hosts.openapi.documents.input_fields import place_of
from toolfleet_modules.hosts.serving.secrets import Secrets, SecretUnknown


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential for one scheme: a header, a part of the query, or a cookie."""

    place: Literal["header", "query", "cookie"]
    name: str
    value: str

    def __repr__(self) -> str:
        return f"Credential({self.place} {self.name})"


class Credentials:
    """The credentials for the schemes of one document. `auth`: scheme -> text with `${NAME}` for secrets.

    `hidden` has the secrets, and the values made of them. `faults`: scheme -> why it cannot be used. `places`: where
    keys of the document are sent, also those that it has no secret for: a service may accept any of them.
    """

    def __init__(
        self, document: OpenApiDocument, auth: Mapping[str, str], secrets: Secrets, headers: Mapping[str, str]
    ) -> None:
        self.faults: dict[str, str] = {}
        self._found: dict[str, Credential] = {}
        sent = dict[str, str]()
        for scheme, text in auth.items():
            try:
                credential = _credential(document, scheme, secrets.fill(text))
            except (OperationUnusable, SecretUnknown) as exc:
                self.faults[scheme] = str(exc)
                continue
            self._found[scheme] = credential
            sent[f"of {scheme}"] = credential.value.removeprefix("Basic ").removeprefix("Bearer ")
        self._fixed = [Credential("header", name, secrets.fill(text)) for name, text in headers.items()]
        self.hidden = secrets.with_values(sent)
        schemes = [each for each in document.security_schemes.values() if isinstance(each, dict)]
        keys = [(str(each.get("in")), str(each.get("name"))) for each in schemes if each.get("type") == "apiKey"]
        sent_in = [(each.place, each.name) for each in (*self._found.values(), *self._fixed)]
        self.places = frozenset(place_of(*each) for each in (*keys, *sent_in))

    def of(self, security: Sequence[Mapping[str, Any]]) -> Sequence[Credential]:
        """Return the credentials to send: for the first alternative that can be met, and the fixed headers.

        Raises `OperationUnusable`.
        """
        found = self._of_first(security)
        own = {place_of(each.place, each.name) for each in found}
        return [*found, *(each for each in self._fixed if place_of(each.place, each.name) not in own)]

    def _of_first(self, security: Sequence[Mapping[str, Any]]) -> Sequence[Credential]:
        """Alternatives that want nothing come last."""
        if not security:
            return ()
        for schemes in sorted(security, key=lambda each: not each):
            if all(scheme in self._found for scheme in schemes):
                return [self._found[scheme] for scheme in schemes]
        wanted = " or ".join(" and ".join(schemes) for schemes in security)[:200]
        why = next((f" {self.faults[each]}" for schemes in security for each in schemes if each in self.faults), "")
        raise OperationUnusable("CredentialMissing", f"It needs {wanted}: name its secret under `auth`.{why}")


def _credential(document: OpenApiDocument, scheme: str, value: str) -> Credential:
    """Make a credential. Raises `OperationUnusable` for a missing scheme, or one for which a secret is not enough."""
    node = document.security_schemes.get(scheme)
    if node is None:
        known = ", ".join(document.security_schemes) or "none"
        raise OperationUnusable(
            "SchemeUnknown", f"The document has no security scheme {scheme!r}; it has {known[:200]}."
        )
    if not value.isprintable() or not value.strip():
        raise OperationUnusable(
            "SchemeUnknown", f"What is to be sent for {scheme!r} is empty, or has control characters."
        )
    found = document.resolved(node)
    kind, name, place = found.get("type"), found.get("name"), found.get("in")
    if kind == "apiKey" and isinstance(name, str) and name.isprintable() and place in {"header", "query", "cookie"}:
        return Credential(place, name, value)
    http = str(found.get("scheme", "")).lower() if kind == "http" else ""
    if http == "basic":
        return Credential("header", "Authorization", f"Basic {b64encode(value.encode()).decode()}")
    if http == "bearer" or kind in {"oauth2", "openIdConnect"}:
        return Credential("header", "Authorization", f"Bearer {value}")
    raise OperationUnusable("SchemeUnknown", f"The scheme {scheme!r} is {kind} {http}: a secret is not enough for it.")


def with_credentials(
    credentials: Sequence[Credential], headers: dict[str, str], query: list[str], cookies: list[str]
) -> None:
    """Put them where they belong: they count more than what stands there."""
    for each in credentials:
        if each.place == "header":
            headers[each.name] = each.value
        elif each.place == "query":
            query.append(f"{quote(each.name, safe='')}={quote(each.value, safe='')}")
        else:
            cookies.append(f"{quote(each.name, safe='')}={quote(each.value, safe='')}")
