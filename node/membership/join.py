"""How a machine becomes a node.

Fetch the root, trust it only by the token's digest, then ask for a certificate.

Until the root is known to be the one that the token names, nothing secret is sent (security.md, "Join
token"). The key is made once and kept until the join is through, so that a repeated attempt gets the
certificate whose answer was lost.
"""

import asyncio
import ssl
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from ca.certificates import UntrustedCertificate, check_leaf_matches, trusted_root
from ca.csr import new_csr
from ca.errors import CATALOGUE, Conflict, FilestoreError, Internal, InvalidRequest, Unauthorized, Unavailable
from ca.identity import Identity, Role, check_address, check_cluster_name, check_member_id, check_port
from ca.jointoken import JoinToken
from ca.keys import key_from_pem, key_to_pem, new_key
from ca.secretfiles import create_secret, make_directory, read_secret, write_durable
from ca.tls import Credential, client_context, distrust, first_contact_context, read_roots
from coordinator.model.records import CoordinatorRecord
from coordinator.rpc.connector import Connector
from coordinator.rpc.roster import write_known
from coordinator.runtime.json_files import decode_foreign
from coordinator.runtime.wording import connection_trouble
from node.base.config import OTHERS_WRITE, NodeConfig, NodeFiles

TRIES_MAX = 8  # an election takes less than two seconds
PAUSE_S = 0.5
TIMEOUT_S = 15.0
ANSWER_BYTES_MAX = 256 * 1024

_T = TypeVar("_T")
_ERRORS = {
    error.code: error for error in CATALOGUE if error.code not in ("offset_mismatch", "range_not_satisfiable")
}


class _Cluster(Struct, frozen=True):
    """What `/api/v1/cluster/ca` answers."""

    ca_cert: str
    cluster: str
    coordinators: list[CoordinatorRecord]


class _Joined(Struct, frozen=True):
    """What the join endpoint answers."""

    ca_cert: str
    node_cert: str


class _Refused(Struct, frozen=True):
    """The body of every error."""

    code: str
    details: str


class TokenNotTaken(FilestoreError):
    """The coordinators refuse the join token; they do not say why."""

    code = Unauthorized.code
    status = Unauthorized.status
    title = Unauthorized.title


async def join(
    data: Path,
    *,
    token: str,
    node_id: str,
    coordinator_url: str,
    address: str,
    api_port: int,
    peer_port: int,
    zone: str = "",
    weight: int = 100,
) -> None:
    """Make `data` the directory of a node: credential.pem and key (0600), ca.pem, and node.json last.

    Raises Conflict when it holds a node already, UntrustedCertificate when the coordinator is not of the
    token's cluster, TokenNotTaken, and what else the coordinator refuses with.
    """
    join_token = JoinToken.parse(token)
    check_member_id(node_id)
    address = check_address(
        address, development=True
    )  # whether loopback is allowed is for the cluster to say
    check_port(api_port)
    check_port(peer_port, "peer_port")
    if api_port == peer_port:
        raise InvalidRequest(f"peer_port: clients come to {api_port} already.")
    files = _own_directory(data)
    base_url = _base_url(coordinator_url)
    cluster = await _first_contact(base_url, join_token)
    identity = Identity(check_cluster_name(cluster.cluster), Role.NODE, node_id)
    key_path = data / "joining.key"
    key = _joining_key(key_path)
    body = {
        "api_port": api_port,
        "csr": new_csr(key, identity, address),
        "id": node_id,
        "ip_address": address,
    }
    joined = await _ask(base_url, client_context(cluster.ca_cert), join_token, body)
    check_leaf_matches(joined.node_cert, key, cluster.ca_cert, identity=identity)
    write_durable(files.root, cluster.ca_cert.encode("ascii"))
    Credential(files.credential_path, cluster.ca_cert).write(key, joined.node_cert)
    files.write_config(
        NodeConfig(
            id=node_id,
            cluster=cluster.cluster,
            address=address,
            api_port=api_port,
            peer_port=peer_port,
            coordinators=cluster.coordinators,
            zone=zone,
            weight=weight,
        )
    )
    key_path.unlink()


def _base_url(url: str) -> str:
    if not url.startswith("https://"):
        raise InvalidRequest(f"coordinator: {url} is no URL: https://HOST:PORT is wanted.")
    return url.rstrip("/")


def _own_directory(data: Path) -> NodeFiles:
    """Made, if it is not there. Raises Conflict, InvalidRequest."""
    files = NodeFiles(data)
    if files.config.exists():
        raise Conflict(f"{data} holds a node already.")
    make_directory(data)
    if data.stat().st_mode & OTHERS_WRITE:
        raise InvalidRequest(f"data: others may write to {data}: chmod go-w it.")
    return files


async def reconnect(data: Path, coordinator_url: str) -> list[CoordinatorRecord]:
    """Tell a node that knows none of the present coordinators where they are; who they are.

    Only a server that the node's own root vouches for is believed. Raises NotJoined, InvalidRequest,
    Unavailable, Internal.
    """
    files = NodeFiles(data)
    config = files.read_config()
    context = client_context(read_roots(files.root))
    url = f"{_base_url(coordinator_url)}/api/v1/cluster/ca"
    cluster = await _call("GET", url, context, _Cluster)
    if cluster.cluster != config.cluster:
        raise InvalidRequest(f"coordinator: it is of the cluster {cluster.cluster}, not of {config.cluster}.")
    write_known(files.known, cluster.coordinators)
    return cluster.coordinators


async def _first_contact(base_url: str, token: JoinToken) -> _Cluster:
    """The cluster's root and members.

    The root by its digest, the rest again from a server that the root vouches for.

    What an unverified server says beside the root is thrown away.
    """
    url = f"{base_url}/api/v1/cluster/ca"
    unverified = await _call("GET", url, first_contact_context(), _Cluster)
    root_pem = trusted_root(unverified.ca_cert, token.ca_digest)
    verified = await _call("GET", url, client_context(root_pem), _Cluster)
    return msgspec.structs.replace(verified, ca_cert=trusted_root(verified.ca_cert, token.ca_digest))


async def _ask(base_url: str, context: ssl.SSLContext, token: JoinToken, body: object) -> _Joined:
    try:
        return await _call(
            "POST",
            f"{base_url}/api/v1/cluster/join/filestore",
            context,
            _Joined,
            headers={"Authorization": f"Bearer {token.bearer}", "Content-Type": "application/json"},
            body=msgspec.json.encode(body),
        )
    except Unauthorized as error:  # the answer is the same whatever the reason
        raise TokenNotTaken(
            "The join token is not taken: it has ended, was used or revoked, or admits another name."
            " `filestore token join` makes another."
        ) from error


async def _call(
    method: str,
    url: str,
    context: ssl.SSLContext,
    answer_type: type[_T],
    *,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> _T:
    """One request, tried again while nobody leads; repeating a join with the same key is safe."""
    for attempt in range(TRIES_MAX):
        try:
            return await _try(method, url, context, answer_type, headers, body)
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
) -> _T:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=Connector(), timeout=timeout, auto_decompress=False) as session,
            session.request(
                method, url, ssl=context, headers=headers, data=body, allow_redirects=False
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
        raise InvalidRequest(f"coordinator: {url} is no URL: https://HOST:PORT is wanted.") from error
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
        raise Internal(f"The coordinator answered {status} with something else than expected.") from error
    raise _error(refused)


def _error(refused: _Refused) -> FilestoreError:
    return _ERRORS.get(refused.code, Internal)(refused.details)


def _joining_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key of an attempt that was broken off, or a new one that is kept for the next."""
    if path.exists():
        return key_from_pem(read_secret(path))
    key = new_key()
    create_secret(path, key_to_pem(key))
    return key
