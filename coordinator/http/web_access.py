"""How browsers reach this process: what is configured for them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from ca.errors import InvalidRequest
from ca.webcertificate import CERTIFICATE_OPTION, KEY_OPTION, WebCertificateFiles
from coordinator.http.web_options import WebOptions

URL_OPTION: Final = "--public-url"
PORT_MAX: Final = (1 << 16) - 1
# A name or an address, and maybe a port, as they stand in a URL or in the header Host.
HOST: Final = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z](?:[0-9A-Za-z.-]{0,251}[0-9A-Za-z])?)(?::[0-9]{1,5})?"
_URL: Final = re.compile(rf"(https?)://({HOST})/?", re.IGNORECASE)
_PORT: Final = re.compile(r":([0-9]+)$")


@dataclass(frozen=True, slots=True)
class WebAccess:
    """What the options say.

    `certificate`: what clients get that ask for one of its names. `public_url`: by which people reach the
    cluster, without a slash at its end, "" where nobody has said it.
    """

    certificate: WebCertificateFiles | None = None
    public_url: str = ""

    def shared_url(self, _request: web.BaseRequest) -> str:
        """By which address others reach what the sender of a request reaches; "" where nobody has said it."""
        return self.public_url


def understood(options: WebOptions) -> WebAccess:
    """What the options say. Raises InvalidRequest, whose text names the option."""
    if bool(options.certificate) != bool(options.key):
        given, missing = CERTIFICATE_OPTION, KEY_OPTION
        if options.key:
            given, missing = missing, given
        raise InvalidRequest(f"{given}: {missing} is needed with it.")
    pair = WebCertificateFiles(Path(options.certificate), Path(options.key)) if options.certificate else None
    url = _public_url(options.public_url) if options.public_url else ""
    return WebAccess(certificate=pair, public_url=url)


def _public_url(text: str) -> str:
    found = _URL.fullmatch(text)
    port = _PORT.search(found[2]) if found is not None else None
    if found is None or not 0 < int(port[1] if port else 1) <= PORT_MAX:
        raise InvalidRequest(
            f"{URL_OPTION}: https://HOST or https://HOST:PORT is wanted, without a path or a user name; names"
            " beyond ASCII in their xn-- form."
        )
    return f"{found[1]}://{found[2]}".lower()
