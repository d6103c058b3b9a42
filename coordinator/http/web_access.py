"""How browsers reach this process: what is configured for them."""

from dataclasses import dataclass
from pathlib import Path

from ca.errors import InvalidRequest
from ca.webcertificate import CERTIFICATE_OPTION, KEY_OPTION, WebCertificateFiles
from coordinator.http.web_options import WebOptions


@dataclass(frozen=True, slots=True)
class WebAccess:
    """`certificate`: what clients get that ask for one of its names."""

    certificate: WebCertificateFiles | None = None


def understood(options: WebOptions) -> WebAccess:
    """What the options say. Raises InvalidRequest, whose text names the option."""
    if bool(options.certificate) != bool(options.key):
        given, missing = CERTIFICATE_OPTION, KEY_OPTION
        if options.key:
            given, missing = missing, given
        raise InvalidRequest(f"{given}: {missing} is needed with it.")
    pair = WebCertificateFiles(Path(options.certificate), Path(options.key)) if options.certificate else None
    return WebAccess(certificate=pair)
