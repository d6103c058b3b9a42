"""The first requests of a machine to a cluster: its root, by its digest, and then what only it may answer.

Until the root is known to be the one that a token names, nothing secret is sent.

Tested by tests/cluster/test_join.py.
"""

import asyncio
import ssl
from typing import TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from ca.certificates import UntrustedCertificate, trusted_root
from ca.errors import CATALOGUE, FilestoreError, Internal, InvalidRequest, Unavailable
from ca.tls import client_context, first_contact_context
from metadata.model.records import CoordinatorRecord
from metadata.rpc.connector import Connector
from runtime.json_files import decode_foreign
from runtime.wording import connection_trouble, distrust

TRIES_MAX = 8  # an election takes less than two seconds
PAUSE_S = 0.5
TIMEOUT_S = 15.0
ANSWER_BYTES_MAX = 256 * 1024

_T = TypeVar("_T")
_ERRORS = {
    error.code: error for error in CATALOGUE if error.code not in ("offset_mismatch", "range_not_satisfiable")
}


class Cluster(Struct, frozen=True):
    """The response of `/api/v1/cluster/ca`."""

    ca_cert: str
    cluster: str
    coordinators: list[CoordinatorRecord]


class _Refused(Struct, frozen=True):
    """The body of every error."""

    code: str
    details: str


def base_url(url: str) -> str:
    """The URL of a coordinator without a slash at its end. Raises InvalidRequest."""
    if not url.startswith("https://"):
        raise InvalidRequest(f"coordinator: {url} is not a URL such as https://HOST:PORT.")
    return url.rstrip("/")


async def first_contact(url: str, ca_digest: str, *, server_name: str = "") -> Cluster:
    """Fetch the cluster's root and members.

    The root is verified by its digest. The rest is fetched again from a server with a certificate of this
    root; everything else from the unverified server is discarded. `server_name`: the name of the one member
    that may answer, "" for any certificate for the address. Raises UntrustedCertificate, Unavailable,
    InvalidRequest.
    """
    path = f"{url}/api/v1/cluster/ca"
    unverified = await ask("GET", path, first_contact_context(), Cluster)
    root_pem = trusted_root(unverified.ca_cert, ca_digest)
    verified = await ask("GET", path, client_context(root_pem), Cluster, server_name=server_name)
    return msgspec.structs.replace(verified, ca_cert=trusted_root(verified.ca_cert, ca_digest))


async def ask(
    method: str,
    url: str,
    context: ssl.SSLContext,
    answer_type: type[_T],
    *,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    server_name: str = "",
) -> _T:
    """Send a request, and repeat it while there is no leader; repeating a join with the same key is safe.

    `server_name`: the name of the one member that may answer. Raises the error of the response; Unavailable,
    UntrustedCertificate, InvalidRequest for an invalid URL, Internal for an unknown response.
    """
    for attempt in range(TRIES_MAX):
        try:
            return await _try(method, url, context, answer_type, headers, body, server_name or None)
        except Unavailable:
            if attempt == TRIES_MAX - 1:
                raise
        await asyncio.sleep(PAUSE_S)
    raise AssertionError("unreachable")


async def _try(
    method: str,
    url: str,
    context: ssl.SSLContext,
    answer_type: type[_T],
    headers: dict[str, str] | None,
    body: bytes | None,
    server_name: str | None,
) -> _T:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=Connector(), timeout=timeout, auto_decompress=False) as session,
            session.request(
                method,
                url,
                ssl=context,
                server_hostname=server_name,
                headers=headers,
                data=body,
                allow_redirects=False,
            ) as answer,
        ):
            content = await answer.content.read(ANSWER_BYTES_MAX)
            while not answer.content.at_eof() and len(content) < ANSWER_BYTES_MAX:
                content += await answer.content.read(ANSWER_BYTES_MAX - len(content))
            status = answer.status
    except aiohttp.ClientConnectorCertificateError as error:
        why = f"{url}: the certificate {distrust(error.certificate_error)}."
        raise UntrustedCertificate(why) from error
    except aiohttp.InvalidURL as error:
        raise InvalidRequest(f"coordinator: {url} is not a URL such as https://HOST:PORT.") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"{url} cannot be reached: {connection_trouble(error)}.") from error
    except ValueError as error:
        raise InvalidRequest("coordinator: is not an address.") from error
    return _decode(status, content, answer_type)


def _decode(status: int, content: bytes, answer_type: type[_T]) -> _T:
    try:
        if status == 200:
            return decode_foreign(content, answer_type)
        refused = decode_foreign(content, _Refused)
    except msgspec.MsgspecError as error:
        raise Internal(f"The coordinator sent an unexpected response {status}.") from error
    raise _error(refused)


def _error(refused: _Refused) -> FilestoreError:
    return _ERRORS.get(refused.code, Internal)(refused.details)
