"""How numbers, failures and failed connections are worded for people. No I/O here."""

import errno
import os
import ssl

import aiohttp

from ca.errors import FilestoreError

_NOT_YET_VALID, _HAS_EXPIRED = 9, 10  # of X509_STORE_CTX_get_error(3), which Python has no names for


def counted(count: int, one: str, many: str) -> str:
    """`1 node takes`, `2 nodes take`: a number with the words that go with it."""
    return f"{count} {one if count == 1 else many}"


def duration(seconds: float) -> str:
    """For people: 90 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def reason_of(error: Exception) -> str:
    """Why something failed, without the name of a file, which is another each time."""
    if isinstance(error, FilestoreError):
        return error.details or type(error).__name__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def distrust(error: Exception) -> str:
    """Explain what is wrong with a server's certificate: text that follows "the certificate".

    `error` is the error of its handshake.
    """
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    if code == _NOT_YET_VALID:
        return "is not valid yet (is the clock here behind, or the cluster's clock ahead?)"
    if code == _HAS_EXPIRED:
        return "has expired (is the clock here ahead?)"
    return "was not issued by this cluster, or not for this address"


def connection_trouble(error: Exception) -> str:
    """Why a connection failed, with the address where it is known, and without how a library shows it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{error.host}:{error.port}: the certificate {distrust(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{error.host}:{error.port}: {_of_system(error.os_error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError):
        return _of_system(error)
    return str(error) or type(error).__name__


def _of_system(error: OSError) -> str:
    """The kernel's words; asyncio puts others of its own, with tuples, into what it raises."""
    if error.errno is not None and error.errno in errno.errorcode and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
