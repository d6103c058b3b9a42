"""An identity provider of our own, on loopback, which lies as a test says."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from deploy.processes import LOOPBACK
from runtime.clock import now_ms

CODE = "the-code"
SECRET = "s3cret-of-the-hostile-client"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class HostileProvider:
    """Use as an asynchronous context manager. What it tells is in its attributes, which a test changes."""

    def __init__(self) -> None:
        self.key, self.kid = new_key(), "k1"
        self.published: dict[str, rsa.RSAPrivateKey] = {self.kid: self.key}
        self.claims: dict[str, Any] = {}  # in place of those of a good token; ... for none
        self.groups: list[str] = ["netlab"]
        self.metadata: dict[str, Any] = {}
        self.answers: dict[str, tuple[int, bytes]] = {}  # in place of those of a path
        self.userinfo: dict[str, Any] = {}
        self.headers: dict[str, Any] = {}
        self.forms: list[dict[str, str]] = []  # what came to the token endpoint
        self.authorizations: list[str] = []
        self.asked: list[str] = []
        self.nonce = ""
        self.subject = "7f3a"
        self.refreshes: list[str] = []  # refresh tokens that were used, each good once
        self.has_id_token = True

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.issuer = f"http://{LOOPBACK}:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def note(self, authorization_url: str) -> Mapping[str, str]:
        """Visit the page: the query, whose nonce will be in the next token."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(authorization_url).query).items()}
        self.nonce = query["nonce"]
        return query

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if (told := self.answers.get(request.path)) is not None:
            return web.Response(status=told[0], body=told[1], content_type="application/json")
        match request.path:
            case "/.well-known/openid-configuration":
                return web.json_response(self._metadata() | self.metadata)
            case "/jwks":
                return web.json_response({"keys": [_jwk(key, kid) for kid, key in self.published.items()]})
            case "/userinfo":
                return web.json_response({"sub": self.subject, "groups": self.groups} | self.userinfo)
            case "/token":
                self.authorizations.append(request.headers.get("Authorization", ""))
                return self._token({name: str(value) for name, value in (await request.post()).items()})
        return web.json_response({}, status=404)

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "authorization_response_iss_parameter_supported": True,
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
        }

    def _token(self, form: dict[str, str]) -> web.Response:
        self.forms.append(form)
        refresh = form.get("refresh_token")
        is_good = form.get("code") == CODE if refresh is None else refresh not in self.refreshes
        if not is_good:
            return web.json_response({"error": "invalid_grant"}, status=400)
        if refresh is not None:
            self.refreshes.append(refresh)
        told = {"access_token": "the-access-token", "refresh_token": f"refresh-{len(self.refreshes)}"}
        if self.has_id_token:
            told["id_token"] = self.id_token(is_first=refresh is None)
        return web.json_response(told)

    def id_token(self, *, is_first: bool = True) -> str:
        now_s = now_ms() // 1000
        claims = {
            "iss": self.issuer,
            "aud": "filestore",
            "sub": self.subject,
            "iat": now_s,
            "exp": now_s + 600,
            "preferred_username": "alice",
            "groups": self.groups,
            **({"nonce": self.nonce} if is_first else {}),
            **self.claims,
        }
        kept = {name: value for name, value in claims.items() if value is not ...}
        return jwt.encode(kept, self.key, algorithm="RS256", headers={"kid": self.kid, **self.headers})


def _jwk(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}
