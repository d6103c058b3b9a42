"""How a machine becomes a node.

Fetch the root, trust it only by the token's digest, then ask for a certificate.

Until the root is known to be the one that the token names, nothing secret is sent. The
key is made once and kept until the join is complete, so that a repeated attempt gets the certificate
whose answer was lost.
"""

import ssl
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from ca.certificates import check_leaf_matches
from ca.csr import new_csr
from ca.errors import Conflict, FilestoreError, InvalidRequest, Unauthorized
from ca.identity import Identity, Role, check_address, check_cluster_name, check_member_id, check_port
from ca.jointoken import JoinToken
from ca.keys import key_from_pem, key_to_pem, new_key
from ca.secretfiles import create_secret, make_directory, read_secret, write_durable
from ca.tls import Credential, client_context, read_roots
from metadata.model.records import CoordinatorRecord
from metadata.rpc.roster import write_known
from node.base.config import OTHERS_WRITE, NodeConfig, NodeFiles
from node.membership.first_contact import Cluster, ask, base_url, first_contact


class _Joined(Struct, frozen=True):
    """The response of the join endpoint."""

    ca_cert: str
    node_cert: str


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
    server_name: str = "",
) -> None:
    """Make `data` the directory of a node: credential.pem and key (0600), ca.pem, and node.json last.

    `server_name`: the name of the one member that may see the token, "" for any certificate for the address.
    Raises Conflict if it already contains a node, UntrustedCertificate if the coordinator is not of the
    token's cluster, TokenNotTaken, and other errors of the coordinator.
    """
    join_token = JoinToken.parse(token)
    check_member_id(node_id)
    address = check_address(
        address, development=True
    )  # whether loopback is allowed is for the cluster to say
    check_port(api_port)
    check_port(peer_port, "peer_port")
    if api_port == peer_port:
        raise InvalidRequest(f"peer_port: must differ from the port for clients, {api_port}.")
    files = _own_directory(data)
    url = base_url(coordinator_url)
    cluster = await first_contact(url, join_token.ca_digest, server_name=server_name)
    identity = Identity(check_cluster_name(cluster.cluster), Role.NODE, node_id)
    key_path = data / "joining.key"
    key = _joining_key(key_path)
    body = {
        "api_port": api_port,
        "csr": new_csr(key, identity, address),
        "id": node_id,
        "ip_address": address,
    }
    joined = await _asked(url, client_context(cluster.ca_cert), join_token, body, server_name)
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


def _own_directory(data: Path) -> NodeFiles:
    """Made, if it is not there. Raises Conflict, InvalidRequest."""
    files = NodeFiles(data)
    if files.config.exists():
        raise Conflict(f"{data} already contains a node.")
    make_directory(data)
    if data.stat().st_mode & OTHERS_WRITE:
        raise InvalidRequest(f"data: other users may write to {data}. Run: chmod go-w {data}")
    return files


async def reconnect(data: Path, coordinator_url: str) -> list[CoordinatorRecord]:
    """Tell a node that knows none of the present coordinators where they are; who they are.

    Only a server that the node's own root vouches for is believed. Raises NotJoined, InvalidRequest,
    Unavailable, Internal.
    """
    files = NodeFiles(data)
    config = files.read_config()
    context = client_context(read_roots(files.root))
    url = f"{base_url(coordinator_url)}/api/v1/cluster/ca"
    cluster = await ask("GET", url, context, Cluster)
    if cluster.cluster != config.cluster:
        raise InvalidRequest(
            f"coordinator: belongs to the cluster {cluster.cluster}, not to {config.cluster}."
        )
    write_known(files.known, cluster.coordinators)
    return cluster.coordinators


async def _asked(
    url: str, context: ssl.SSLContext, token: JoinToken, body: object, server_name: str
) -> _Joined:
    try:
        return await ask(
            "POST",
            f"{url}/api/v1/cluster/join/filestore",
            context,
            _Joined,
            headers={"Authorization": f"Bearer {token.bearer}", "Content-Type": "application/json"},
            body=msgspec.json.encode(body),
            server_name=server_name,
        )
    except Unauthorized as error:  # the response does not tell the reason
        raise TokenNotTaken(
            "The join token was rejected: it has expired, was used or revoked, or is for another name. "
            "`filestore token join` creates a new one."
        ) from error


def _joining_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key of an attempt that was broken off, or a new one that is kept for the next."""
    if path.exists():
        return key_from_pem(read_secret(path))
    key = new_key()
    create_secret(path, key_to_pem(key))
    return key
