"""Requests to an identity provider: JSON answers over TLS, each with a deadline and a bound on its size.

No redirect is followed, no proxy of the environment is used, and nothing but https is spoken (loopback http
in a development cluster). No answer is believed before its caller has checked it. Nothing that is sent or
received here is logged.
"""

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from ca.errors import InvalidRequest
from metadata.model.providers import ProviderUnavailable, check_provider_url
from metadata.rpc.connector import Connector
from runtime.wording import connection_trouble

REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=4.0, sock_connect=2.0)
ANSWER_BYTES_MAX: Final = 512 << 10  # a key set with certificates has some 20 KiB
_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")  # Debian, Fedora
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "filestore"}


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The status of an answer, and its JSON object; empty if it is none. It may hold secrets."""

    status: int
    fields: Mapping[str, Any] = field(repr=False)

    def text(self, name: str) -> str:
        """Return a field that is text, "" for anything else."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class ClientCredential:
    """A client of the provider, with its secret; "" for a public client, which PKCE alone protects."""

    client_id: str
    secret: str = field(repr=False)
    in_body: bool = False  # the provider wants the secret in the form

    def headers(self) -> dict[str, str]:
        """Return the header of HTTP Basic, whose parts are form-encoded first (RFC 6749, 2.3.1)."""
        if not self.secret or self.in_body:
            return {}
        pair = f"{quote(self.client_id, safe='')}:{quote(self.secret, safe='')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    def form(self) -> dict[str, str]:
        """Return the fields of the form that name the client."""
        if not self.secret:
            return {"client_id": self.client_id}
        return {"client_id": self.client_id, "client_secret": self.secret} if self.in_body else {}


class ProviderHttp:
    """Requests to one provider."""

    def __init__(self, context: ssl.SSLContext, *, is_development: bool) -> None:
        self._context = context
        self._is_development = is_development

    async def get(self, url: str, *, bearer: str = "") -> ProviderAnswer:
        """Return the answer to a GET. Raises ProviderUnavailable."""
        return await self._answer("GET", url, {"Authorization": f"Bearer {bearer}"} if bearer else {}, None)

    async def post(self, url: str, form: Mapping[str, str], client: ClientCredential) -> ProviderAnswer:
        """Return the answer to a form that a client sends. Raises ProviderUnavailable."""
        return await self._answer("POST", url, client.headers(), {**form, **client.form()})

    async def _answer(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> ProviderAnswer:
        try:
            check_provider_url(url, "url", is_development=self._is_development)
        except InvalidRequest as error:
            raise ProviderUnavailable("The provider names an address that is not https.") from error
        host = urlsplit(url).hostname or ""
        try:
            async with (
                aiohttp.ClientSession(
                    connector=Connector(context=self._context), timeout=REQUEST_TIMEOUT, auto_decompress=False
                ) as http,
                http.request(
                    method, url, headers={**_HEADERS, **headers}, data=form, allow_redirects=False
                ) as answer,
            ):
                body = await _bounded(answer)
                return ProviderAnswer(answer.status, _object(body))
        except aiohttp.ClientConnectorCertificateError as error:
            raise ProviderUnavailable(_untrusted(host, error.certificate_error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = connection_trouble(error)
            raise ProviderUnavailable(f"The provider at {host} cannot be reached: {why}.") from error


def provider_context(ca_pem: str) -> ssl.SSLContext:
    """Return a context that trusts this authority, or without one those of the machine. It reads files.

    Raises InvalidRequest for a text that holds no certificate.
    """
    try:
        context = ssl.create_default_context(cadata=ca_pem or None)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest("ca_pem: certificates in PEM are required") from error
    bundle = system_bundle()
    if not ca_pem and os.environ.get("SSL_CERT_FILE") == os.devnull and bundle:
        context.load_verify_locations(bundle)
    return context


def system_bundle() -> str:
    """Return the file with the authorities that this machine trusts, "" if there is none.

    The container and development clusters set SSL_CERT_FILE to /dev/null, so that no library loads them.
    """
    known = (ssl.get_default_verify_paths().openssl_cafile, *_BUNDLES)
    return next((path for path in known if os.path.isfile(path)), "")  # noqa: PTH113 (texts)


def _untrusted(host: str, error: Exception) -> str:
    """Say why a certificate is not trusted, and what authorities are."""
    why = getattr(error, "verify_message", "") or type(error).__name__
    place = system_bundle()
    known = f"this coordinator trusts those in {place}" if place else "this coordinator knows no authorities"
    return f"The certificate of {host} is not trusted: {why}. Without --ca-file, {known}."


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body. Raises ProviderUnavailable if it is too large or compressed."""
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ProviderUnavailable("The provider compressed its answer, which was not asked for.")
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise ProviderUnavailable(f"The provider answered with more than {ANSWER_BYTES_MAX} bytes.")
    return bytes(body)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
