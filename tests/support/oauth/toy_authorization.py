"""An OAuth authorization server on the loopback interface: it registers clients, logs anybody in, and gives tokens that a test can take back."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from support.oauth.loopback_app import served

SECRET = "planted/Qx7.4401882366"
CLIENT = "owl-client"


@dataclass
class ToyAuthorization:
    """`issuer` is its address. `tokens`: those that count, with their scopes; `refreshes`: refresh tokens that do, each for once.

    `asked` has the grant of each request for a token, or its path; `forms` what came with it, and `heads` its `Authorization`.
    `status`: the token endpoint's answer, if it is not to do its work; `open` is cleared to have it wait. `metadata` is added to
    what it publishes. `is_reused`: a refresh token came twice. `key`: what verifies clients that sign.
    """

    issuer: str = ""
    seconds: int = 3600
    tokens: dict[str, set[str]] = field(default_factory=dict)
    refreshes: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    open: asyncio.Event = field(default_factory=asyncio.Event)
    is_reused: bool = False
    refused: str = ""
    key: ec.EllipticCurvePublicKey | None = None
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _spent: set[str] = field(default_factory=set)
    _count: int = 0

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    def forget_tokens(self, *, refreshes: bool = False) -> None:
        """Have no token count any more."""
        self.tokens.clear()
        if refreshes:
            self.refreshes.clear()

    async def _metadata(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        own = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return JSONResponse({**own, **self.metadata})

    async def _register(self, request: Request) -> Response:
        self.asked.append("register")
        wanted = await request.json()
        answer = {
            **wanted,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "token_endpoint_auth_method": "client_secret_post",
        }
        return JSONResponse(answer, 201)

    async def _authorize(self, request: Request) -> Response:
        self.asked.append("authorize")
        query = dict(request.query_params)
        answer = {"state": query["state"], "iss": self.issuer}
        if self.refused:
            answer["error"] = self.refused
        else:
            self._count += 1
            answer["code"] = f"code-{self._count}"
            self._codes[answer["code"]] = query
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.asked.append(form["grant_type"])
        self.forms.append(form)
        self.heads.append(request.headers.get("authorization", ""))
        await self.open.wait()
        if self.status != 200:
            return JSONResponse({"error": "invalid_client", "error_description": f"not {SECRET}"}, self.status)
        match form["grant_type"]:
            case "authorization_code":
                return self._for_code(form)
            case "refresh_token":
                return self._for_refresh(form)
            case _:
                return self._for_client(form)

    def _for_code(self, form: dict[str, str]) -> Response:
        query = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if query is None or query["code_challenge"] != challenge:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return self._given(query.get("scope", ""), refreshes=True)

    def _for_refresh(self, form: dict[str, str]) -> Response:
        token = form["refresh_token"]
        scope = self.refreshes.pop(token, None)
        if scope is None:
            if token in self._spent:  # a thief has it, or the client has lost the other one
                self.is_reused = True
                self.forget_tokens(refreshes=True)
            return JSONResponse({"error": "invalid_grant"}, 400)
        self._spent.add(token)
        return self._given(scope, refreshes=True)

    def _for_client(self, form: dict[str, str]) -> Response:
        head = base64.b64decode(self.heads[-1].partition(" ")[2]).decode()
        if self.key is not None:
            claims = jwt.decode(form["client_assertion"], self.key, ["ES256"], audience=self.issuer)
            is_known = claims["sub"] == claims["iss"] == CLIENT
        else:
            is_known = head == f"{CLIENT}:{SECRET.replace('/', '%2F')}"
        return self._given(form.get("scope", "")) if is_known else JSONResponse({"error": "invalid_client"}, 401)

    def _given(self, scope: str, *, refreshes: bool = False) -> Response:
        self._count += 1
        token, refresh = f"access-token-{self._count}-planted", f"refresh-token-{self._count}-planted"
        self.tokens[token] = set(scope.split())
        answer: dict[str, Any] = {
            "access_token": token,
            "token_type": "bearer",
            "expires_in": self.seconds,
            "scope": scope,
        }
        if refreshes:
            self.refreshes[refresh] = scope
            answer["refresh_token"] = refresh
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})


@asynccontextmanager
async def toy_authorization() -> AsyncGenerator[ToyAuthorization]:
    toy = ToyAuthorization()
    toy.open.set()
    async with served(toy.app) as url:
        toy.issuer = url
        yield toy
