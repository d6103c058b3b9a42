"""When an attempt is made again, after which pause, and when it is given up.

Tested by tests/cluster/test_client_failures.py.
"""

import asyncio
import errno
import os
import random
import ssl
import time

import aiohttp

from filestore_client.base.errors import (
    FilestoreError,
    RateLimited,
    Unavailable,
    UntrustedServer,
    UploadLocked,
)
from filestore_client.base.tls import distrust
from filestore_client.base.token import TokenRenewed

DEADLINE_S = 30.0
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 2.0
FOR_LATER_S = 3.0  # until it is believed that waiting is of no use: a starting cluster is whole by then
# What another node, or the same one a moment later, may answer better.
TRY_AGAIN = (Unavailable, UploadLocked, RateLimited, TokenRenewed, aiohttp.ClientError, TimeoutError)

_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    UploadLocked,
    RateLimited,
    TokenRenewed,
)


class RetryLimits:
    """Pauses between attempts, and the moment to give up.

    That comes `deadline_s` after the last progress, or when none of `node_count` nodes is one to trust, which
    no waiting changes.
    """

    def __init__(self, deadline_s: float, node_count: int = 1) -> None:
        self._deadline_s = deadline_s
        self._node_count = node_count
        self.note_progress()

    def note_progress(self) -> None:
        """Restart the deadline and the pauses, as there was progress."""
        self._started_at = time.monotonic()
        self._give_up_at = self._started_at + self._deadline_s
        self._pause_s = PAUSE_S_MIN
        self._refusal: FilestoreError | None = None  # the last answer, while other nodes give none
        self._for_later = 0  # answers that say so
        self._untrusted: set[tuple[str, int | None]] = set()

    async def pause(self, reason: Exception) -> None:
        """Wait before the next attempt.

        Raises the reason, as a FilestoreError, once the deadline has passed.
        """
        self.check(reason, after_s=self._pause_s)
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def check(self, reason: Exception, *, after_s: float = 0.0) -> None:
        """Raises the reason, as a FilestoreError, if an attempt `after_s` from now is past the deadline.

        Sooner if as many answers as there are nodes, and two at least, say that it is of no use, for
        `FOR_LATER_S`: a cluster that has just started does not know yet what all of its members support.
        """
        is_over = time.monotonic() + after_s > self._give_up_at
        if isinstance(reason, Unavailable) and reason.is_for_later:
            self._for_later += 1
            is_believed = time.monotonic() + after_s > self._started_at + FOR_LATER_S
            is_over = is_over or (is_believed and self._for_later >= max(2, self._node_count))
        if isinstance(reason, aiohttp.ClientConnectorCertificateError):
            self._untrusted.add((reason.host, reason.port))
            why = connection_trouble(reason)
            if len(self._untrusted) >= self._node_count or (is_over and self._refusal is None):
                raise UntrustedServer(f"{why}.") from reason
        elif isinstance(reason, FilestoreError):
            self._refusal, why = reason, ""
        else:
            why = connection_trouble(reason)
        if is_over:
            if isinstance(reason, FilestoreError):
                raise reason
            if self._refusal is None:
                raise Unavailable(f"No node answered within {self._deadline_s:g} s: {why}") from reason
            raise Unavailable(f"{self._refusal.details} Some nodes do not answer: {why}") from reason


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


def trouble_of(error: Exception) -> str:
    """Why an attempt failed: what the server says, or what is wrong with the connection."""
    return error.details if isinstance(error, FilestoreError) else connection_trouble(error)


def was_not_sent(error: Exception) -> bool:
    """Whether a request that failed so cannot have been carried out: it was refused, or never went out."""
    return isinstance(error, _NOT_SENT) or (isinstance(error, Unavailable) and error.is_for_later)


def _of_system(error: OSError) -> str:
    """The kernel's words; asyncio puts others of its own, with tuples, into what it raises."""
    if error.errno is not None and error.errno in errno.errorcode and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
