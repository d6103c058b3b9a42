"""How browsers reach this process: the options for them, and their effect on a single request.

For a single request, this module determines the original client, and the address at which others reach the
cluster.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from ca.errors import InvalidRequest
from ca.webcertificate import CERTIFICATE_OPTION, KEY_OPTION, WebCertificateFiles
from web.cors import ConsoleMembers, CorsPolicy, parse_origins
from web.forwarded import HOST, ForwardedClient, Headers, TrustedProxies, address_in, parse_networks
from web.web_options import WebOptions

URL_OPTION: Final = "--public-url"
PORT_MAX: Final = (1 << 16) - 1
# Whose request it is that a member passes on. It counts on connections of members only.
CLIENT_ADDRESS: Final = "Filestore-Client-Address"
_FORWARDED: Final = web.RequestKey("forwarded", ForwardedClient)
_HOST: Final = re.compile(HOST)
_URL: Final = re.compile(rf"(https?)://({HOST})/?", re.IGNORECASE)
_PORT: Final = re.compile(r":([0-9]+)$")


@dataclass(frozen=True, slots=True)
class WebAccess:
    """The parsed options.

    `certificate` is for clients that ask for one of its names. `public_url` is the address at which people
    reach the cluster, without a slash at its end, or "" if it is not set. `proxies` are the trusted proxies.
    `cors`: which pages of other origins may read responses.
    """

    certificate: WebCertificateFiles | None = None
    public_url: str = ""
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    cors: CorsPolicy = field(default_factory=CorsPolicy)

    def original_client(self, peer: str, headers: Headers, *, is_member: bool) -> ForwardedClient | None:
        """Determine the original client of a request, if a trusted proxy reports another than `peer`."""
        if not is_member:
            return self.proxies.read(peer, headers)
        client = address_in(headers.get(CLIENT_ADDRESS, ""))
        return ForwardedClient(client) if client else None

    def with_members(self, members: Callable[[], ConsoleMembers]) -> "WebAccess":
        """Return these options, with the members' pages allowed to read responses too."""
        return replace(self, cors=self.cors.with_members(members))

    def shared_url(self, request: web.BaseRequest) -> str:
        """Return the address at which others reach what the sender of a request reaches; "" if unknown."""
        known = request.get(_FORWARDED)
        if self.public_url or known is None or not known.scheme:
            return self.public_url
        host = known.host or request.headers.get(hdrs.HOST, "").lower()
        return f"{known.scheme}://{host}" if _HOST.fullmatch(host) else ""


WEB: Final = web.AppKey("web", WebAccess)


def parse_web_access(options: WebOptions) -> WebAccess:
    """Parse the options. Raises InvalidRequest, whose text names the option."""
    if bool(options.certificate) != bool(options.key):
        given, missing = CERTIFICATE_OPTION, KEY_OPTION
        if options.key:
            given, missing = missing, given
        raise InvalidRequest(f"{given}: {missing} is required with it.")
    pair = WebCertificateFiles(Path(options.certificate), Path(options.key)) if options.certificate else None
    url = _public_url(options.public_url) if options.public_url else ""
    return WebAccess(
        certificate=pair,
        public_url=url,
        proxies=parse_networks(options.trusted_proxies),
        cors=parse_origins(options.cors_origins),
    )


def note_forwarded(request: web.BaseRequest, known: ForwardedClient) -> None:
    """Keep whom a request is from, for who asks later."""
    request[_FORWARDED] = known


def client_address(request: web.BaseRequest) -> str:
    """The address of who sent a request, by the word of trusted proxies where it came through them."""
    known = request.get(_FORWARDED)
    return (request.remote or "") if known is None else known.client


def is_from_proxy(request: web.BaseRequest) -> bool:
    """Whether a proxy that is trusted passed a request on."""
    return request.get(_FORWARDED) is not None


def _public_url(text: str) -> str:
    found = _URL.fullmatch(text)
    port = _PORT.search(found[2]) if found is not None else None
    if found is None or not 0 < int(port[1] if port else 1) <= PORT_MAX:
        raise InvalidRequest(
            f"{URL_OPTION}: expected https://HOST or https://HOST:PORT without a path or a user name, "
            "and names beyond ASCII in their xn-- form."
        )
    return f"{found[1]}://{found[2]}".lower()
