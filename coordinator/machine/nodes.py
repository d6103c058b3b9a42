"""Filestore nodes: joining, their certificates, their addresses, and how they leave."""

import sqlite3
from typing import Any

from msgspec import UNSET

from ca.errors import Conflict, NotFound, Unauthorized
from coordinator.machine import damaged, join_tokens, recounts, upload_places
from coordinator.machine.execution.access import require_admin
from coordinator.machine.execution.change import Change, Question
from metadata.model.instance import contradiction
from metadata.model.records import DOWN, HEALTHY, RETURNING, CertificateRecord, NodeRecord
from metadata.model.replica_records import NodeRemoval
from metadata.protocol.commands import (
    AdmitCertificate,
    AnnounceNode,
    DrainNode,
    ForgetInstance,
    JoinNode,
    MarkNode,
    MoveNode,
    RemoveNode,
    RenewCertificate,
    RevokeNode,
)
from metadata.protocol.queries import ListNodes

NODE_COLUMNS = (
    "node_id, address, api_port, peer_port, zone, weight, joined_at_ms, draining, state, instance, revoked"
)
# After a restore: an old coordinator may still run, or a clock may be slow.
ISSUED_LATER_MS = 24 * 3600 * 1000
LAST_SOURCES_SHOWN = 10
COUNTED_MAX = 10_000  # of the replicas of a node; an answer need not count a million


def join(change: Change, command: JoinNode) -> CertificateRecord:
    """Check the token, consume one use, register node and certificate: all or nothing."""
    db, at_ms, certificate = change.db, change.at_ms, command.certificate
    join_tokens.require_secret(db, command.token_id, command.secret_sha256)
    serial = join_tokens.earlier_serial(
        db, at_ms, command.token_id, command.node_id, certificate.public_key_sha256
    )
    if serial is not None:
        return _certificate(db, serial)
    join_tokens.require_admitting(db, at_ms, command.token_id, command.node_id)
    join_tokens.require_free_id(db, command.node_id, command.proved_serial, command.token_id)
    if recounts.is_removed(db, command.node_id):
        raise Conflict(f"What a removed node {command.node_id} held is being cleared away. Try again later.")
    db.execute("UPDATE join_tokens SET uses = uses + 1 WHERE token_id = ?", (command.token_id,))
    db.execute(
        "INSERT INTO nodes (node_id, address, api_port, peer_port, zone, weight, joined_at_ms)"
        " VALUES (?, ?, ?, 0, '', 1, ?)"
        " ON CONFLICT (node_id) DO UPDATE SET address = excluded.address, api_port = excluded.api_port,"
        " instance = iif(revoked, '', instance), revoked = 0",
        (command.node_id, command.address, command.api_port, at_ms),
    )
    _store_certificate(change, command.node_id, certificate)
    db.execute(
        "INSERT OR REPLACE INTO joins (token_id, node_id, public_key_sha256, serial, joined_at_ms)"
        " VALUES (?, ?, ?, ?, ?)",
        (command.token_id, command.node_id, certificate.public_key_sha256, certificate.serial, at_ms),
    )
    change.touch_view()
    return certificate


def renew_certificate(change: Change, command: RenewCertificate) -> CertificateRecord:
    """Register a new certificate for a node that has a live one.

    The certificate that proved the request stays, even if it has expired: the reply may be lost, and the node
    repeats the request then.
    """
    live = change.db.execute(
        "SELECT 1 FROM certificates WHERE serial = ? AND node_id = ? AND revoked = 0",
        (command.proved_serial, command.node_id),
    ).fetchone()
    if live is None:
        raise Unauthorized("renewal without a live certificate")
    change.db.execute(
        "DELETE FROM certificates WHERE node_id = ? AND revoked = 0 AND not_after_ms < ? AND serial != ?",
        (command.node_id, change.at_ms, command.proved_serial),
    )
    _store_certificate(change, command.node_id, command.certificate)
    change.touch_view()  # members admit the certificates that they know
    return command.certificate


def admit_certificate(change: Change, command: AdmitCertificate) -> None:
    """Record a certificate of a node that a restore has forgotten; the older ones of the node end.

    Raises Unauthorized for any other certificate that is not live.
    """
    db, certificate = change.db, command.certificate
    live = "SELECT 1 FROM certificates WHERE serial = ? AND node_id = ? AND revoked = 0"
    if db.execute(live, (certificate.serial, command.node_id)).fetchone():
        return
    if not is_forgotten(db, command.node_id, certificate.not_before_ms):
        raise Unauthorized("the certificate is revoked, or is none that a restore has forgotten")
    db.execute("UPDATE certificates SET revoked = 1 WHERE node_id = ?", (command.node_id,))
    _store_certificate(change, command.node_id, certificate)
    change.touch_view()


def is_forgotten(db: sqlite3.Connection, node_id: str, not_before_ms: int) -> bool:
    """Return whether an unknown certificate of the cluster's CA may be one that a restore has forgotten.

    It must be issued before the restore, for a known node that is not revoked, and after every known
    certificate of that node. Three kinds of certificates are rejected: those replaced or revoked before the
    snapshot, those of an earlier node of the same name, and those older than one that was issued or admitted
    since.
    """
    row = db.execute(
        "SELECT restored_at_ms, (SELECT max(not_before_ms) FROM certificates WHERE node_id = :node)"
        " FROM restores JOIN nodes ON node_id = :node WHERE revoked = 0",
        {"node": node_id},
    ).fetchone()
    if row is None or row[1] is None:
        return False
    restored_at_ms, newest_ms = row
    return bool(newest_ms < not_before_ms <= restored_at_ms + ISSUED_LATER_MS)


def announce(change: Change, command: AnnounceNode) -> NodeRecord:
    """Record the peer address of a node, its zone and its weight, and its active process.

    Raises Conflict for another directory than the known one, or an earlier copy of it.
    """
    node = _find(change.db, command.node_id)
    if why := contradiction(node.speaker, command.instance):
        raise Conflict(f"The process is not taken for the node {node.node_id}: {why}.")
    change.db.execute(
        "UPDATE nodes SET peer_port = ?, zone = ?, weight = ?, instance = ? WHERE node_id = ?",
        (command.peer_port, command.zone, command.weight, command.instance or node.speaker, command.node_id),
    )
    change.touch_view()
    return _find(change.db, command.node_id)


def forget_instance(change: Change, command: ForgetInstance) -> NodeRecord:
    """Let the process that announces itself next become the active one of the node. Admin only.

    Its disk is compared before its replicas count.
    """
    require_admin(change.users, command.caller)
    node = _find(change.db, command.node_id)
    state = RETURNING if node.state == HEALTHY else node.state
    change.db.execute("UPDATE nodes SET instance = '', state = ? WHERE node_id = ?", (state, command.node_id))
    if node.state == HEALTHY and not node.draining:
        recounts.begin(change.db, command.node_id)
    change.touch_view()
    return _find(change.db, command.node_id)


def revoke(change: Change, command: RevokeNode) -> NodeRemoval:
    """Revoke a node: its certificates are invalid from now on, and its replicas do not count. Admin only."""
    require_admin(change.users, command.caller)
    db, node = change.db, _find(change.db, command.node_id)
    _end_certificates(db, node.node_id)
    db.execute("UPDATE nodes SET revoked = 1, state = ? WHERE node_id = ?", (DOWN, node.node_id))
    if node.state == HEALTHY and not node.draining:
        recounts.begin(db, node.node_id)
    change.touch_view()
    return NodeRemoval(
        replicas=_count(db, "blob_replicas WHERE node_id = ?", node.node_id),
        uploads=upload_places.count_of_node(change, node.node_id),
    )


def move(change: Change, command: MoveNode) -> NodeRecord:
    """Record the new address of a node. Admin only."""
    require_admin(change.users, command.caller)
    node = _find(change.db, command.node_id)
    if node.address != command.address:
        change.db.execute("UPDATE nodes SET address = ? WHERE node_id = ?", (command.address, node.node_id))
        change.touch_view()
    return _find(change.db, command.node_id)


def drain(change: Change, command: DrainNode) -> NodeRecord:
    """Place no new content on a node, or (`draining` false) place content there again. Admin only."""
    require_admin(change.users, command.caller)
    node = _find(change.db, command.node_id)
    if node.draining == command.draining:
        return node
    if command.draining and not command.force:
        _require_no_last_source(change.db, command.node_id, "--force, force=1")
    change.db.execute(
        "UPDATE nodes SET draining = ? WHERE node_id = ?", (int(command.draining), command.node_id)
    )
    if node.state == HEALTHY:
        recounts.begin(change.db, command.node_id)
    change.touch_view()
    return _find(change.db, command.node_id)


def mark(change: Change, command: MarkNode) -> NodeRecord:
    """Record the state of a node as the leader sees it. Its replicas count while it is healthy."""
    node = _find(change.db, command.node_id)
    if node.state == command.state:
        return node
    if node.is_revoked:
        raise Conflict(f"The node {command.node_id} is revoked.")
    if command.state == HEALTHY and node.state != RETURNING:
        raise Conflict(f"The node {command.node_id} is {node.state}: it returns first.")
    change.db.execute("UPDATE nodes SET state = ? WHERE node_id = ?", (command.state, command.node_id))
    if not node.draining and HEALTHY in (node.state, command.state):
        recounts.begin(change.db, command.node_id)
    change.touch_view()
    return _find(change.db, command.node_id)


def remove(change: Change, command: RemoveNode) -> NodeRemoval | None:
    """Remove a node for good: its certificates are invalid from now on, its id is free. Admin only.

    Raises Conflict unless it is draining and empty, without replicas and placed uploads. With `force`, raises
    Conflict unless the node is down; the id is free when the replicas are cleared away.
    """
    require_admin(change.users, command.caller)
    db, node_id = change.db, command.node_id
    node = _find(db, node_id)
    replicas = _count(db, "blob_replicas WHERE node_id = ?", node_id)
    if not command.give_up:
        _require_no_last_source(db, node_id, "--give-up, give_up=1")
    uploads = upload_places.count_of_node(change, node_id)
    if command.force:
        if not command.is_gone:
            _require_down(node)
        recounts.begin(db, node_id, removed=True)
        # Observations of this node must not count for a later node with its id.
        db.execute("UPDATE cluster SET burial_floor = ?", (change.log_index,))
    else:
        _require_empty(change, node, replicas, uploads)
        if damaged.has_copies(db, node_id):
            recounts.begin(db, node_id, removed=True)
    db.execute("DELETE FROM nodes WHERE node_id = ?", (node_id,))
    _end_certificates(db, node_id)
    change.touch_view()
    return NodeRemoval(replicas=replicas, uploads=uploads) if command.force else None


def list_all(question: Question, query: ListNodes) -> list[NodeRecord]:
    """Return every node by id. Admin only."""
    require_admin(question.users, query.caller)
    rows = question.db.execute(f"SELECT {NODE_COLUMNS} FROM nodes ORDER BY node_id").fetchall()
    return [node_record(row) for row in rows]


def node_record(row: tuple[Any, ...]) -> NodeRecord:
    """Return a row of NODE_COLUMNS as a record."""
    return NodeRecord(
        node_id=row[0],
        address=row[1],
        api_port=row[2],
        peer_port=row[3],
        zone=row[4],
        weight=row[5],
        joined_at_ms=row[6],
        draining=bool(row[7]),
        state=row[8],
        instance=row[9] or UNSET,
        revoked=True if row[10] else UNSET,
    )


def _require_down(node: NodeRecord) -> None:
    if node.state != DOWN:
        raise Conflict(
            f"The node {node.node_id} is not down: drain it; where it is gone for good, say so (--is-gone,"
            " is_gone=1), or wait until that is known. Where another has its certificate, revoke it first."
        )


def _end_certificates(db: sqlite3.Connection, node_id: str) -> None:
    db.execute("UPDATE certificates SET revoked = 1 WHERE node_id = ?", (node_id,))
    # A repeated join would get its earlier certificate, which is invalid now.
    db.execute("DELETE FROM joins WHERE node_id = ?", (node_id,))


def _require_empty(change: Change, node: NodeRecord, replicas: int, uploads: int) -> None:
    node_id = node.node_id
    if not node.draining:
        raise Conflict(f"The node {node_id} is not draining: drain it first.")
    named = f" Unfinished: {upload_places.named_of_node(change, node_id)}." if uploads else ""
    if replicas or uploads:
        raise Conflict(
            f"The node {node_id} holds {_counted(replicas)} replicas, {_counted(uploads)} uploads.{named}"
        )


def _require_no_last_source(db: sqlite3.Connection, node_id: str, option: str) -> None:
    """Raise Conflict if a node has damaged copies with bytes that are sound there and nowhere else.

    The error names the files that would lose bytes.
    """
    blobs = damaged.last_sources(db, node_id, LAST_SOURCES_SHOWN + 1)
    if not blobs:
        return
    names = [file.filename for blob in blobs for file in blob.files][:LAST_SOURCES_SHOWN]
    more = " and more" if len(blobs) > LAST_SOURCES_SHOWN else ""
    raise Conflict(
        f"The node {node_id} keeps damaged copies with bytes that no other node has, of"
        f" {', '.join(names)}{more}. To go on without these bytes: {option}."
    )


def _find(db: sqlite3.Connection, node_id: str) -> NodeRecord:
    row = db.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE node_id = ?", (node_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no node {node_id}.")
    return node_record(row)


def _count(db: sqlite3.Connection, of: str, node_id: str) -> int:
    """Return how many rows there are; COUNTED_MAX for as many and more."""
    row = db.execute(f"SELECT COUNT(*) FROM (SELECT 1 FROM {of} LIMIT {COUNTED_MAX})", (node_id,)).fetchone()
    return int(row[0])


def _counted(count: int) -> str:
    return f"{count} or more" if count == COUNTED_MAX else str(count)


def _store_certificate(change: Change, node_id: str, certificate: CertificateRecord) -> None:
    change.db.execute(
        "INSERT INTO certificates (serial, node_id, pem, public_key_sha256, not_before_ms,"
        " not_after_ms, revoked) VALUES (?, ?, ?, ?, ?, ?, 0)",
        (
            certificate.serial,
            node_id,
            certificate.pem,
            certificate.public_key_sha256,
            certificate.not_before_ms,
            certificate.not_after_ms,
        ),
    )


def _certificate(db: sqlite3.Connection, serial: str) -> CertificateRecord:
    row = db.execute(
        "SELECT serial, pem, public_key_sha256, not_before_ms, not_after_ms FROM certificates"
        " WHERE serial = ?",
        (serial,),
    ).fetchone()
    if row is None:
        raise Unauthorized("the certificate of this join has ended")
    return CertificateRecord(
        serial=row[0], pem=row[1], public_key_sha256=row[2], not_before_ms=row[3], not_after_ms=row[4]
    )
