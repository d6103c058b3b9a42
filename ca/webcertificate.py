"""A certificate that browsers trust, in addition to that of the cluster: its names, and whether it is usable.

An operator, or an ACME client, writes the certificate and its key to two files. Both are read completely
before they are used: a context is created, the pair, the names and the dates are checked, and only then do
handshakes use it.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from ca.certificates import validity_ms
from ca.errors import Internal
from ca.identity import X509_FAILURES
from ca.secretfiles import UnsafeSecretFile, read_secret
from ca.tls import UnusableCredential, server_context

CERTIFICATE_OPTION: Final = "--web-certificate"
KEY_OPTION: Final = "--web-key"
CERTIFICATE_BYTES_MAX: Final = 256 << 10  # a chain has 3 to 10 KiB


class UnusableWebCertificate(Internal):
    """The certificate for browsers, or its key, cannot be used; `details` names the option and what to do."""


@dataclass(frozen=True, slots=True)
class WebCertificateFiles:
    """The paths of the certificate for browsers (PEM, followed by its intermediates) and of its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class _LoadedPair:
    """One pair that was read: its context, the names that it is for in lower case, and when it ends."""

    context: ssl.SSLContext
    names: frozenset[str]
    not_after_ms: int


class WebCertificate:
    """The certificate for browsers that handshakes get now: none until the first `reload`."""

    def __init__(self, files: WebCertificateFiles, *, clock_ms: Callable[[], int]) -> None:
        self._files = files
        self._clock_ms = clock_ms
        self._loaded: _LoadedPair | None = None

    @property
    def names(self) -> frozenset[str]:
        """The DNS names that it is for, `*.` at the front of some."""
        return frozenset() if self._loaded is None else self._loaded.names

    @property
    def not_after_ms(self) -> int:
        """When it ends, in ms since 1970; 0 while there is none."""
        return 0 if self._loaded is None else self._loaded.not_after_ms

    def reload(self) -> None:
        """Use the pair on disk. Raises UnusableWebCertificate, and the old one stays in use."""
        self._loaded = _load(self._files, self._clock_ms())

    def context_for(self, name: str) -> ssl.SSLContext | None:
        """The context for a client that asks for `name`; None when the certificate is not for it.

        A wildcard stands for one label (RFC 6125, section 6.4.3).
        """
        loaded, wanted = self._loaded, name.lower()
        if loaded is None:
            return None
        label, _, rest = wanted.partition(".")
        is_covered = wanted in loaded.names or bool(label and rest and f"*.{rest}" in loaded.names)
        return loaded.context if is_covered else None


def _load(files: WebCertificateFiles, now_ms: int) -> _LoadedPair:
    """Both files, read and compared with each other, with the clock, and with what browsers ask for."""
    data = _read(files.certificate)
    try:
        leaf = x509.load_pem_x509_certificates(data)[0]
    except X509_FAILURES as error:
        why = f"{files.certificate} contains no certificate"
        raise _unusable(CERTIFICATE_OPTION, why, "Give the PEM file with the whole chain.") from error
    names = _names_of(files.certificate, leaf)
    not_after_ms = _require_current(files.certificate, leaf, now_ms)
    _require_private(files.key)
    context = _context_of(files)
    if _read(files.certificate) != data:  # replaced between the two reads: the checked file is not used
        why = f"{files.certificate} was replaced while it was being read"
        raise _unusable(CERTIFICATE_OPTION, why, "Reload again when both files are in place.")
    return _LoadedPair(context, names, not_after_ms)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(CERTIFICATE_BYTES_MAX)
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror}"
        raise _unusable(
            CERTIFICATE_OPTION, why, "Check the path, and let this user read the file."
        ) from error


def _names_of(path: Path, leaf: x509.Certificate) -> frozenset[str]:
    """Return the DNS names. A client that connects by address sends none and looks like a member."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset(name.lower().rstrip(".") for name in found.get_values_for_type(x509.DNSName))
        addresses = found.get_values_for_type(x509.IPAddress)
    except x509.ExtensionNotFound:
        names, addresses = frozenset(), []
    except X509_FAILURES as error:
        raise _unusable(CERTIFICATE_OPTION, f"{path} cannot be parsed", "Create it again.") from error
    if not names:
        only = "is valid for IP addresses only" if addresses else "is valid for no DNS name"
        advice = "Browsers send DNS names. Create a certificate with a DNS name in its subjectAltName."
        raise _unusable(CERTIFICATE_OPTION, f"{path} {only}", advice)
    return names


def _require_current(path: Path, leaf: x509.Certificate, now_ms: int) -> int:
    """When it ends, in ms since 1970."""
    begins_ms, ends_ms = validity_ms(leaf)
    if ends_ms <= now_ms:
        why = f"{path} has expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise _unusable(CERTIFICATE_OPTION, why, "Renew it, or omit the option.")
    if begins_ms > now_ms:
        why = f"{path} is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise _unusable(CERTIFICATE_OPTION, why, "Check the clock of this machine.")
    return ends_ms


def _require_private(path: Path) -> None:
    try:
        read_secret(path)
    except UnsafeSecretFile as error:
        raise UnusableWebCertificate(f"{KEY_OPTION}: {error.details}.") from error


def _context_of(files: WebCertificateFiles) -> ssl.SSLContext:
    try:
        return server_context(files.certificate, files.key)
    except UnusableCredential as error:
        reason = error.details.rpartition(": ")[2]
        if reason == "KEY_VALUES_MISMATCH":
            why = f"{files.key} does not belong to {files.certificate}"
            raise _unusable(KEY_OPTION, why, "Give a key and its own certificate.") from error
        why = f"{files.key} and {files.certificate} cannot be used: {reason}"
        advice = "The key must be PEM without a password. The certificate must be PEM, followed by its chain."
        raise _unusable(KEY_OPTION, why, advice) from error


def _unusable(option: str, why: str, advice: str) -> UnusableWebCertificate:
    return UnusableWebCertificate(f"{option}: {why}. {advice}")
