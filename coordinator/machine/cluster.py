"""The cluster itself: its first entry, its coordinators, and the view that every node follows.

Tested by tests/unit/coordinator/machine/test_instances.py.
"""

import json
import sqlite3
from typing import Final

from ca.errors import Conflict
from coordinator.machine import join_tokens, recounts
from coordinator.machine.execution.access import require_admin
from coordinator.machine.execution.change import Change, Question, rules_in_force
from coordinator.machine.nodes import NODE_COLUMNS, node_record
from coordinator.machine.people import invitations, providers
from metadata.model.records import (
    ADMIN_ROLE,
    DEFAULT_BUCKET_ID,
    REMOVED,
    ClusterView,
    CoordinatorRecord,
    TokenKeyRecord,
)
from metadata.protocol.commands import (
    AddIntermediate,
    AddTokenKey,
    Bootstrap,
    RaiseRules,
    RecordCoordinators,
    RecordRestore,
)
from metadata.protocol.queries import GetView

KEYS_MAX: Final = 16  # of user tokens, valid at once


def bootstrap(change: Change, command: Bootstrap) -> None:
    """Apply the first entry of every log: cluster row, members, keys, first admin, default bucket."""
    db, at_ms = change.db, change.at_ms
    assert change.log_index == 1, "a cluster begins once"
    db.execute(
        "INSERT INTO cluster (one, name, created_at_ms, root_pem, replicas, write_quorum, development)"
        " VALUES (1, ?, ?, ?, ?, ?, ?)",
        (
            command.cluster,
            at_ms,
            command.root_pem,
            command.replicas,
            command.write_quorum,
            int(command.development),
        ),
    )
    db.execute("INSERT INTO rules (one, version) VALUES (1, ?)", (command.rules,))
    record_coordinators(change, RecordCoordinators(coordinators=command.members))
    db.executemany(
        "INSERT INTO keys (kid, purpose, public, wrapped, created_at_ms) VALUES (?, ?, ?, ?, ?)",
        [
            ("intermediate-1", "intermediate", command.intermediate_pem, command.intermediate_wrapped, at_ms),
            (
                command.user_token_kid,
                "user_token",
                json.dumps(command.user_token_jwk, sort_keys=True),
                command.user_token_wrapped,
                at_ms,
            ),
        ],
    )
    db.execute(
        "INSERT INTO users (user_id, roles, groups, generation, disabled, created_at_ms, updated_at_ms)"
        " VALUES (?, ?, '[]', 1, 0, ?, ?)",
        (command.admin_user_id, json.dumps([ADMIN_ROLE]), at_ms, at_ms),
    )
    db.execute(
        "INSERT INTO buckets (bucket_id, name, owner_id, quota_bytes, used_bytes, file_count, created_at_ms,"
        " updated_at_ms) VALUES (?, 'default', ?, 0, 0, 0, ?, ?)",
        (DEFAULT_BUCKET_ID, command.admin_user_id, at_ms, at_ms),
    )
    change.touch_view()


def record_restore(change: Change, command: RecordRestore) -> None:
    """Begin another history: the first change of a restored cluster, which never passes through a log.

    The members of an upload reject epochs below the highest that they have seen. So the epochs of unfinished
    uploads now follow the clock, beyond any takeover that the restore forgot. A replica that was marked for
    deletion may be the only one by now. So all marks are removed, except those of garbage collection. What
    works once may have been used since the snapshot, or revoked: join tokens and invitations end.
    """
    db, at_ms = change.db, change.at_ms
    db.execute(
        "INSERT OR REPLACE INTO restores (one, history, restored_at_ms) VALUES (1, ?, ?)",
        (command.history, at_ms),
    )
    if command.intermediate_pem:
        _store_intermediate(change, command.intermediate_pem, command.intermediate_wrapped)
    join_tokens.revoke_after_restore(db)
    invitations.end_after_restore(db)
    # The snapshot that this state is a copy of was being made: it has all that there is now.
    db.execute("UPDATE kept_snapshots SET log_index = ? WHERE log_index IS NULL", (change.log_index,))
    db.execute("UPDATE uploads SET epoch = max(epoch + 1, ?)", (at_ms // 1000,))
    kept = "doomed_at IS NOT NULL AND sha256 IN (SELECT sha256 FROM blobs WHERE collected_at IS NULL)"
    for (node_id,) in db.execute(f"SELECT DISTINCT node_id FROM blob_replicas WHERE {kept}").fetchall():
        recounts.begin(db, node_id)
    db.execute(f"UPDATE blob_replicas SET doomed_at = NULL WHERE {kept}")
    change.touch_view()


def add_intermediate(change: Change, command: AddIntermediate) -> None:
    """Add an intermediate certificate. Admin only.

    It becomes the newest of its kind, independent of the clock: the newest one is in use.
    """
    require_admin(change.users, command.caller)
    _store_intermediate(change, command.pem, command.wrapped)


def add_token_key(change: Change, command: AddTokenKey) -> TokenKeyRecord:
    """Add a key that signs user tokens; the other keys end. Admin only.

    It becomes the newest of its kind, independent of the clock.
    """
    require_admin(change.users, command.caller)
    db, ends_at_ms = change.db, change.at_ms + command.grace_ms
    newest_ms, count = db.execute(
        "SELECT max(created_at_ms), SUM(retires_at_ms IS NULL OR retires_at_ms > ?) FROM keys"
        " WHERE purpose = 'user_token'",
        (change.at_ms,),
    ).fetchone()
    if count >= KEYS_MAX and command.grace_ms:
        raise Conflict(
            f"{count} keys of user tokens are valid: wait until some have ended, or give no grace."
        )
    db.execute(
        "UPDATE keys SET retires_at_ms = min(coalesce(retires_at_ms, ?), ?) WHERE purpose = 'user_token'",
        (ends_at_ms, ends_at_ms),
    )
    db.execute(
        "INSERT INTO keys (kid, purpose, public, wrapped, created_at_ms) VALUES (?, 'user_token', ?, ?, ?)",
        (
            command.kid,
            json.dumps(command.jwk, sort_keys=True),
            command.wrapped,
            max(change.at_ms, newest_ms + 1),
        ),
    )
    end_keys(change)
    change.touch_view()
    return TokenKeyRecord(kid=command.kid, others_end_at_ms=ends_at_ms)


def end_keys(change: Change) -> None:
    """Delete keys of user tokens whose time is over, with their private halves."""
    ended = change.db.execute("DELETE FROM keys WHERE retires_at_ms <= ?", (change.at_ms,)).rowcount
    if ended:
        change.touch_view()


def get_view(question: Question, query: GetView) -> ClusterView:
    """Return the view of the cluster: everything that a node must know to serve."""
    del query
    db = question.db
    name, root_pem, replicas, write_quorum, development = db.execute(
        "SELECT name, root_pem, replicas, write_quorum, development FROM cluster"
    ).fetchone()
    keys = db.execute(
        "SELECT public, kid, retires_at_ms FROM keys WHERE purpose = 'user_token' ORDER BY kid"
    ).fetchall()
    nodes = db.execute(f"SELECT {NODE_COLUMNS} FROM nodes ORDER BY node_id").fetchall()
    revoked = db.execute("SELECT serial FROM certificates WHERE revoked = 1 ORDER BY serial").fetchall()
    issued: dict[str, list[str]] = {}
    for node_id, serial in db.execute(
        "SELECT node_id, serial FROM certificates WHERE revoked = 0 ORDER BY node_id, serial"
    ):
        issued.setdefault(node_id, []).append(serial)
    return ClusterView(
        version=db.execute("SELECT view_version FROM applied").fetchone()[0],
        cluster=name,
        root_pem=root_pem,
        replicas=replicas,
        write_quorum=write_quorum,
        development=bool(development),
        user_token_keys=[json.loads(public) for public, _, _ in keys],
        coordinators=_members(db),
        nodes=[node_record(row) for row in nodes],
        revoked_serials=[serial for (serial,) in revoked],
        removed_coordinators=_removed_members(db),
        token_key_ends={kid: ends_at_ms for _, kid, ends_at_ms in keys if ends_at_ms is not None},
        node_serials=issued,
        providers=providers.names(db),
    )


def raise_rules(change: Change, command: RaiseRules) -> int:
    """Put these rules in force from the next command on, but never older ones; return those in force."""
    version = max(command.version, rules_in_force(change.db))
    change.db.execute("UPDATE rules SET version = ?", (version,))
    return version


def _store_intermediate(change: Change, pem: str, wrapped: bytes) -> None:
    (newest_ms,) = change.db.execute(
        "SELECT max(created_at_ms) FROM keys WHERE purpose = 'intermediate'"
    ).fetchone()
    change.db.execute(
        "INSERT INTO keys (kid, purpose, public, wrapped, created_at_ms) VALUES (?, 'intermediate', ?, ?, ?)",
        (f"intermediate-{change.log_index}", pem, wrapped, max(change.at_ms, newest_ms + 1)),
    )


def record_coordinators(change: Change, command: RecordCoordinators) -> None:
    """Replace the list of members of the Raft group; a member that is not in it becomes a tombstone for ever.

    A removed member that came back with its id would have forgotten its votes, and its certificate must stay
    rejected.
    """
    change.db.execute("UPDATE coordinators SET role = ?", (REMOVED,))
    change.db.executemany(
        "INSERT INTO coordinators (coordinator_id, address, peer_port, api_port, role) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (coordinator_id) DO UPDATE SET address = excluded.address,"
        " peer_port = excluded.peer_port, api_port = excluded.api_port, role = excluded.role",
        [(c.coordinator_id, c.address, c.peer_port, c.api_port, c.role) for c in command.coordinators],
    )
    change.touch_view()


def _members(db: sqlite3.Connection) -> list[CoordinatorRecord]:
    """Return voters and learners, by id."""
    rows = db.execute(
        "SELECT coordinator_id, address, peer_port, api_port, role FROM coordinators WHERE role <> ?"
        " ORDER BY coordinator_id",
        (REMOVED,),
    ).fetchall()
    return [
        CoordinatorRecord(coordinator_id=i, address=a, peer_port=p, api_port=q, role=r)
        for i, a, p, q, r in rows
    ]


def _removed_members(db: sqlite3.Connection) -> list[str]:
    """Return the ids of former members."""
    rows = db.execute(
        "SELECT coordinator_id FROM coordinators WHERE role = ? ORDER BY coordinator_id", (REMOVED,)
    ).fetchall()
    return [coordinator_id for (coordinator_id,) in rows]
