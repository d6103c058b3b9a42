"""Create coordinators: `init` creates a cluster, a bundle creates its other members.

All functions block, and use no network.

The first entry of every member's log is the same Bootstrap command, so that they agree from the start. The
bundle contains it together with the cluster key, which decrypts the private keys of the CA and the token
signer: with the bundle, a machine can act as a coordinator. The operator copies it over a trusted channel,
and deletes it. A later coordinator starts with the same entry, which does not make it a member, and waits to
be added.
"""

import functools
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uuid_utils
from msgspec import Struct

from ca import keys, usertoken
from ca.certificates import Authority, LeafCertificate, new_root
from ca.certificates import new_intermediate as sign_intermediate
from ca.errors import Conflict, InvalidRequest
from ca.identity import Identity, check_address, check_cluster_name, check_member_id
from ca.secretfiles import create_secret, make_directory, read_secret, write_durable, write_secret
from ca.tls import read_roots
from coordinator.admin.authority import (
    INTERMEDIATE_PURPOSE,
    USER_TOKEN_PURPOSE,
    IntermediateCredential,
    SigningAuthority,
    check_intermediate,
    decrypt_authority,
    make_intermediate,
)
from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.storage.config import COORDINATORS_MAX, CoordinatorConfig, CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_store import Store
from metadata.model.records import CoordinatorRecord
from metadata.model.rules import RULES
from metadata.protocol.commands import Bootstrap, Envelope, decode_envelope, encode_envelope
from metadata.rpc.roster import write_known
from runtime.clock import now_ms
from runtime.disk import while_stopped
from runtime.file_digests import digest_beside, matches_digest, write_digest
from runtime.kept_time import read_saved

ADMIN_USER_ID = "admin"
REPLICAS_MAX = 7
COPY_GENESIS = "copy it from another coordinator of this cluster"
SETUP_BEGUN = "setup.begun"  # of `filestore setup`, which continues with it
_EMPTY = {"lost+found", SETUP_BEGUN}  # a separate file system has the first; systemd's key is elsewhere


class Bundle(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data that another coordinator starts with. `genesis` is the encoded Bootstrap envelope.

    `members` are the coordinators at the time of a bundle that was written after the cluster was created.
    `intermediate` is the current signer, if it is not that of the first entry.
    """

    cluster_key: bytes
    genesis: bytes
    members: list[CoordinatorRecord] | None = None
    intermediate: IntermediateCredential | None = None


def init_cluster(
    data: Path,
    *,
    coordinator_id: str,
    cluster: str,
    members: Sequence[CoordinatorRecord],
    replicas: int = 3,
    write_quorum: int = 2,
    development: bool = False,
) -> Path:
    """Create a cluster with this coordinator as one of `members`; return the path of the first admin token.

    Raises Conflict if the directory contains a coordinator already, InvalidRequest for a bad argument.
    """
    files = CoordinatorFiles(data)
    _check_arguments(cluster, coordinator_id, members, replicas, write_quorum, development=development)
    check_empty(files)
    cluster_key = keys.new_cluster_key()
    genesis, root_key_pem = _genesis(
        cluster, members, cluster_key, replicas, write_quorum, development=development
    )
    bundle = Bundle(cluster_key=cluster_key, genesis=genesis)
    prepare(files)
    create_secret(files.root_key, root_key_pem)
    if len(members) > 1:
        create_secret(files.bundle, msgspec.msgpack.encode(bundle))
    begin(files, config_of(bundle, coordinator_id), bundle)
    write_secret(files.admin_token, mint_admin_token(data).encode("ascii") + b"\n")
    return files.admin_token


def init_from_bundle(
    data: Path, bundle_path: Path, coordinator_id: str, own: CoordinatorRecord | None = None
) -> None:
    """Create another coordinator of the cluster that wrote the bundle.

    `own` has its address, if it is added after `init`. Raises Conflict if the directory contains a
    coordinator already, InvalidRequest if the bundle does not fit. A member that lost its disk must not begin
    again with its old id: it would forget its votes.
    """
    check_empty(CoordinatorFiles(data))
    init_with(data, read_bundle(bundle_path), coordinator_id, own)


def init_with(data: Path, bundle: Bundle, coordinator_id: str, own: CoordinatorRecord | None) -> None:
    """Create the directory with a bundle that is not in a file."""
    files = CoordinatorFiles(data)
    check_empty(files)
    config = config_of(bundle, coordinator_id, own)
    check_signs(bundle)
    prepare(files)
    begin(files, config, bundle)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises InvalidRequest for anything else, UnsafeSecretFile if others could read it."""
    return bundle_in(read_secret(path), str(path))


def bundle_in(data: bytes, source: str) -> Bundle:
    """Decode a bundle. Raises InvalidRequest, naming its source."""
    try:
        bundle = msgspec.msgpack.decode(data, type=Bundle)
        bootstrap_of(bundle.genesis)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidRequest(f"bundle: {source} is not a bundle of `filestore coordinator`") from error
    return bundle


def read_genesis(files: CoordinatorFiles) -> bytes:
    """Return the first entry, as every coordinator stores it.

    Raises InvalidRequest if it is damaged, or another cluster's; UnsafeSecretFile if others could read it.
    """
    genesis = read_secret(files.genesis)
    try:
        root = bootstrap_of(genesis).root_pem.encode("ascii")
    except (msgspec.MsgspecError, UnicodeError, InvalidRequest) as error:
        raise InvalidRequest(f"{files.genesis} is damaged: {COPY_GENESIS}") from error
    if files.root.exists() and files.root.read_bytes().split() != root.split():
        raise InvalidRequest(
            f"{files.genesis} does not belong to the cluster of {files.root}: {COPY_GENESIS}"
        )
    if not matches_digest(files.genesis):
        noted = digest_beside(files.genesis)
        raise InvalidRequest(f"{files.genesis} does not match {noted}: {COPY_GENESIS}, without the latter")
    return genesis


def bootstrap_of(genesis: bytes) -> Bootstrap:
    """Return the command that began the cluster. Raises InvalidRequest, msgspec.MsgspecError."""
    command = decode_envelope(genesis).command
    if not isinstance(command, Bootstrap):
        raise InvalidRequest("bundle: its first entry does not create a cluster")
    return command


def config_of(bundle: Bundle, coordinator_id: str, own: CoordinatorRecord | None = None) -> CoordinatorConfig:
    """Return the coordinator.json. Raises InvalidRequest if this id cannot start with this bundle."""
    command = bootstrap_of(bundle.genesis)
    known = {member.coordinator_id for member in (*command.members, *(bundle.members or []))}
    if own is None:
        if bundle.members is not None:
            raise InvalidRequest("address: is required for an additional coordinator")
        if coordinator_id not in known:
            raise InvalidRequest(f"id: {coordinator_id} is not a member of the cluster {command.cluster}")
    else:
        if coordinator_id in known:
            raise InvalidRequest(f"id: {coordinator_id} is or was another coordinator of this cluster")
        check_member_id(coordinator_id)
        check_address(own.address, development=command.development, field="address")
    return CoordinatorConfig(
        id=coordinator_id, cluster=command.cluster, members=command.members, own_record=own
    )


def check_signs(bundle: Bundle) -> None:
    """Raise InvalidRequest if this bundle cannot sign a certificate: it may be older than a year.

    Also if its keys cannot be decrypted: it, or the cluster key, is damaged.
    """
    command = bootstrap_of(bundle.genesis)
    wrapped = {
        INTERMEDIATE_PURPOSE: command.intermediate_wrapped,
        USER_TOKEN_PURPOSE: command.user_token_wrapped,
    }
    for purpose, key in wrapped.items():
        try:
            keys.unwrap(bundle.cluster_key, key, purpose=purpose)
        except keys.WrongClusterKey as error:
            raise InvalidRequest(f"bundle: {error.details}") from error
    check_intermediate(
        _intermediate_of(bundle),
        root_pem=command.root_pem,
        cluster=command.cluster,
        cluster_key=bundle.cluster_key,
        now=datetime.now(UTC),
    )


def _intermediate_of(bundle: Bundle) -> IntermediateCredential:
    """Return the signer of this bundle, from the first entry unless there is a newer one."""
    command = bootstrap_of(bundle.genesis)
    return bundle.intermediate or IntermediateCredential(
        command.intermediate_pem, command.intermediate_wrapped
    )


def new_intermediate(data: Path, root_key: Path) -> IntermediateCredential:
    """Create a signer of leaves for another year, which the coordinators must still accept.

    `root_key` is the file that `init` created. Raises NotInitialised, UnsafeSecretFile, UnreadableKey;
    UntrustedCertificate for the key of another root.
    """
    files = CoordinatorFiles(data)
    cluster, cluster_key = files.read_config().cluster, files.read_cluster_key()
    key = keys.key_from_pem(read_secret(root_key))
    return make_intermediate(read_roots(files.root), key, cluster, cluster_key, now=datetime.now(UTC))


def renew_certificate(data: Path, root_key: Path) -> None:
    """Give this coordinator another certificate by an intermediate that is used for nothing else.

    Without a certificate, no coordinator accepts the entry with a new intermediate. Raises as
    `new_intermediate` does, and Conflict while the coordinator runs, which would not notice it.
    """
    files, now = CoordinatorFiles(data), datetime.now(UTC)
    config = files.read_config()
    with while_stopped(files.log):
        root_pem = read_roots(files.root)
        key = keys.key_from_pem(read_secret(root_key))
        authority = Authority(root_pem, *sign_intermediate(root_pem, key, config.cluster, now=now))
        new_leaf(files, config, functools.partial(authority.sign_leaf, now=now))


class AdminDisabled(Conflict):
    """The first admin was removed or disabled, by another admin."""


def mint_admin_token(data: Path, *, ttl_seconds: int = usertoken.TTL_SECONDS_MAX) -> str:
    """Return a token for the first admin, signed with this coordinator's key, without a running process.

    Raises AdminDisabled.
    """
    files = CoordinatorFiles(data)
    config = files.read_config()
    saved = read_saved(files.time, config.id)
    at_ms = max(now_ms(), saved.kept_ms if saved else 0)  # the cluster's time, if all clocks are behind
    store = Store(files.state)
    try:
        authority = SigningAuthority(store, files.read_cluster_key(), config.cluster, read_roots(files.root))
        generation = store.token_generation(ADMIN_USER_ID)
        if generation is None:
            raise AdminDisabled(
                f"the user {ADMIN_USER_ID} does not exist or is disabled: take the token of another admin"
            )
        return authority.sign_user_token(
            subject=ADMIN_USER_ID,
            generation=generation,
            roles=("admin",),
            groups=(),
            at_ms=at_ms,
            ttl_seconds=ttl_seconds,
            token_id=str(uuid_utils.uuid7()),
        )
    finally:
        store.close()


def admin_generation(data: Path) -> int | None:
    """Return the generation of valid admin tokens, according to the log applied here."""
    store = Store(CoordinatorFiles(data).state)
    try:
        return store.token_generation(ADMIN_USER_ID)
    finally:
        store.close()


def new_leaf(
    files: CoordinatorFiles,
    config: CoordinatorConfig,
    sign_leaf: Callable[[keys.PublicKey, Identity, str], LeafCertificate],
) -> None:
    """Give this coordinator a new key and certificate."""
    key = keys.new_key()
    leaf = sign_leaf(key.public_key(), config.identity, config.own.address)
    files.credential().write(key, leaf.pem)


def _check_arguments(
    cluster: str,
    coordinator_id: str,
    members: Sequence[CoordinatorRecord],
    replicas: int,
    write_quorum: int,
    *,
    development: bool,
) -> None:
    check_cluster_name(cluster)
    ids = [check_member_id(member.coordinator_id, "member") for member in members]
    if coordinator_id not in ids:
        raise InvalidRequest(f"member: {coordinator_id} is not among the members {', '.join(ids)}")
    if len(set(ids)) != len(ids) or not 1 <= len(ids) <= COORDINATORS_MAX:
        raise InvalidRequest(f"member: 1 to {COORDINATORS_MAX} different ids are needed")
    places = [(m.address, port) for m in members for port in (m.peer_port, m.api_port)]
    if len(set(places)) != len(places):
        raise InvalidRequest("member: two of them have the same address and port")
    for member in members:
        check_address(member.address, development=development, field="member")
    if not 1 <= write_quorum <= replicas <= REPLICAS_MAX:
        raise InvalidRequest(f"write_quorum: 1 <= write quorum <= replicas <= {REPLICAS_MAX} must hold")
    if 2 * write_quorum <= replicas:
        raise InvalidRequest("write_quorum: must be a majority of the replicas")


def check_empty(files: CoordinatorFiles) -> None:
    """Raise Conflict if the directory has a coordinator or other files: a coordinator needs its own."""
    if files.config.exists() or files.log.exists():
        raise Conflict(f"{files.data} already contains a coordinator, or the remains of a failed `init`")
    if files.data.is_dir() and set(os.listdir(files.data)) - _EMPTY:
        raise Conflict(f"{files.data} is not empty: a coordinator needs its own directory")


def prepare(files: CoordinatorFiles) -> None:
    """Create the directory, for its owner alone."""
    make_directory(files.data)
    files.data.chmod(0o700)


def _genesis(
    cluster: str,
    members: Sequence[CoordinatorRecord],
    cluster_key: bytes,
    replicas: int,
    write_quorum: int,
    *,
    development: bool,
) -> tuple[bytes, bytes]:
    """Return the encoded first entry, and the root key in PEM."""
    now = datetime.now(UTC)
    root_pem, root_key = new_root(cluster, now=now)
    intermediate = make_intermediate(root_pem, root_key, cluster, cluster_key, now=now)
    signing_key = usertoken.new_signing_key()
    command = Bootstrap(
        rules=RULES,
        cluster=cluster,
        root_pem=root_pem,
        members=list(members),
        replicas=replicas,
        write_quorum=write_quorum,
        development=development,
        intermediate_pem=intermediate.pem,
        intermediate_wrapped=intermediate.wrapped,
        user_token_kid=signing_key.kid,
        user_token_jwk=usertoken.public_jwk(signing_key),
        user_token_wrapped=keys.wrap(cluster_key, signing_key.private_pem, purpose=USER_TOKEN_PURPOSE),
        admin_user_id=ADMIN_USER_ID,
    )
    return encode_envelope(Envelope(0, 0, 0, now_ms(), command)), keys.key_to_pem(root_key)


def begin(files: CoordinatorFiles, config: CoordinatorConfig, bundle: Bundle) -> None:
    """Write key, certificate, log and state, and coordinator.json last of all.

    That file makes the directory a coordinator. There must be no log yet.
    """
    write_identity(files, bundle)
    if bundle.members is not None:
        write_known(files.known, bundle.members)
    first = Entry(1, 1, EntryKind.COMMAND, bundle.genesis)
    SegmentLog.bootstrap(files.log, HardState(1, "", 1), [first])
    store = Store(files.state)
    try:
        store.apply([first])
    finally:
        store.close()
    command = bootstrap_of(bundle.genesis)
    authority = decrypt_authority(_intermediate_of(bundle), bundle.cluster_key, command.root_pem)
    new_leaf(files, config, functools.partial(authority.sign_leaf, now=datetime.now(UTC)))
    files.write_config(config)


def write_identity(files: CoordinatorFiles, bundle: Bundle) -> None:
    """Write the files that all coordinators of the cluster share: key, root, first entry."""
    write_secret(files.cluster_key, bundle.cluster_key)
    write_secret(files.genesis, bundle.genesis)
    write_digest(files.genesis)
    write_durable(files.root, bootstrap_of(bundle.genesis).root_pem.encode("ascii"))
