"""Join tokens: created by an admin, consumed by a node that joins, never stored in the clear.

Tested by tests/unit/coordinator/machine/test_members.py.
"""

import hmac
import sqlite3
from typing import Any

from ca.errors import Conflict, NotFound, Unauthorized
from coordinator.machine.execution.access import is_enabled_admin, require_admin
from coordinator.machine.execution.change import Change, Question, rules_in_force
from metadata.model import rules
from metadata.model.records import JoinTokenPage, JoinTokenRecord
from metadata.protocol.commands import AdmitCoordinator, CreateJoinToken, DeleteJoinToken
from metadata.protocol.queries import CheckJoinSecret, CheckJoinToken, ListJoinTokens

REPEAT_MS = 10 * 60 * 1000  # a client may repeat its request for this long if the reply was lost
# In place of a digest. The row stays until a day after the end of the token, like that of a used one: a setup
# token is made outside of the cluster, so its bearer could register its id again.
_REVOKED = ""

_COLUMNS = "token_id, node_id, uses_max, uses, created_by, created_at_ms, expires_at_ms"


def create(change: Change, command: CreateJoinToken) -> JoinTokenRecord:
    """Store the digest of a new token's secret. Admin only."""
    user = require_admin(change.users, command.caller)
    record = JoinTokenRecord(
        token_id=command.token_id,
        node_id=command.node_id,
        uses_max=command.uses_max,
        uses=0,
        created_by=user.user_id,
        created_at_ms=change.at_ms,
        expires_at_ms=change.at_ms + command.ttl_seconds * 1000,
    )
    taken = change.db.execute("SELECT 1 FROM join_tokens WHERE token_id = ?", (command.token_id,)).fetchone()
    if taken:
        raise Conflict("A join token with this id exists.")
    change.db.execute(
        "INSERT INTO join_tokens (sequence, token_id, secret_sha256, node_id, uses_max, uses, created_by,"
        " created_at_ms, expires_at_ms) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)",
        (
            change.log_index,
            record.token_id,
            command.secret_sha256,
            record.node_id,
            record.uses_max,
            record.created_by,
            record.created_at_ms,
            record.expires_at_ms,
        ),
    )
    return record


def delete(change: Change, command: DeleteJoinToken) -> None:
    """Revoke a token. Admin only."""
    require_admin(change.users, command.caller)
    known = "SELECT 1 FROM join_tokens WHERE token_id = ? AND secret_sha256 <> ?"
    if not change.db.execute(known, (command.token_id, _REVOKED)).fetchone():
        raise NotFound("There is no join token with this id.")
    if rules_in_force(change.db) >= rules.REVOKED_TOKENS_STAY_KNOWN:
        change.db.execute(
            "UPDATE join_tokens SET secret_sha256 = ? WHERE token_id = ?", (_REVOKED, command.token_id)
        )
    else:
        change.db.execute("DELETE FROM join_tokens WHERE token_id = ?", (command.token_id,))
    change.db.execute("DELETE FROM joins WHERE token_id = ?", (command.token_id,))


def admit_coordinator(change: Change, command: AdmitCoordinator) -> None:
    """Consume one use for a machine that becomes a coordinator; a repeated attempt consumes none.

    A token that is bound to the name of a node admits no coordinator.
    """
    db, at_ms, holder = change.db, change.at_ms, f"coordinator/{command.coordinator_id}"
    require_secret(db, command.token_id, command.secret_sha256)
    if earlier_serial(db, at_ms, command.token_id, holder, command.attempt_sha256) is not None:
        return
    require_admitting(db, at_ms, command.token_id, holder)
    db.execute("UPDATE join_tokens SET uses = uses + 1 WHERE token_id = ?", (command.token_id,))
    db.execute(
        "INSERT OR REPLACE INTO joins (token_id, node_id, public_key_sha256, serial, joined_at_ms)"
        " VALUES (?, ?, ?, '', ?)",
        (command.token_id, holder, command.attempt_sha256, at_ms),
    )


def delete_all(change: Change, user_id: str) -> None:
    """Revoke the tokens of this user. Used tokens remain visible, and admit no further node."""
    if rules_in_force(change.db) >= rules.REVOKED_TOKENS_STAY_KNOWN:
        change.db.execute(
            "UPDATE join_tokens SET secret_sha256 = ? WHERE created_by = ? AND uses = 0", (_REVOKED, user_id)
        )
    else:
        change.db.execute("DELETE FROM join_tokens WHERE created_by = ? AND uses = 0", (user_id,))
    change.db.execute(
        "UPDATE join_tokens SET uses_max = uses WHERE created_by = ? AND uses < uses_max", (user_id,)
    )


def revoke_after_restore(db: sqlite3.Connection) -> None:
    """Revoke each token that admits somebody: since the snapshot, it may have been used or revoked."""
    db.execute("UPDATE join_tokens SET secret_sha256 = ? WHERE uses < uses_max", (_REVOKED,))
    revoked = "SELECT token_id FROM join_tokens WHERE secret_sha256 = ?"
    db.execute(f"DELETE FROM joins WHERE token_id IN ({revoked})", (_REVOKED,))


def list_page(question: Question, query: ListJoinTokens) -> JoinTokenPage:
    """Return one page of all tokens, including used and expired but no revoked ones, oldest first.

    Admin only.
    """
    require_admin(question.users, query.caller)
    rows = question.db.execute(
        f"SELECT {_COLUMNS}, sequence FROM join_tokens WHERE sequence > ? AND secret_sha256 <> ?"
        " ORDER BY sequence LIMIT ?",
        (query.cursor, _REVOKED, query.limit + 1),
    ).fetchall()
    page = rows[: query.limit]
    return JoinTokenPage([_from_row(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def check_secret(question: Question, query: CheckJoinSecret) -> None:
    """Check that the token exists and this is its secret, before anything else of a join."""
    require_secret(question.db, query.token_id, query.secret_sha256)


def check(question: Question, query: CheckJoinToken) -> None:
    """Check that the token would admit the node now; consume nothing."""
    db, at_ms = question.db, question.at_ms
    require_secret(db, query.token_id, query.secret_sha256)
    if earlier_serial(db, at_ms, query.token_id, query.node_id, query.public_key_sha256) is None:
        require_admitting(db, at_ms, query.token_id, query.node_id)
        require_free_id(db, query.node_id, query.proved_serial, query.token_id)


def require_secret(db: sqlite3.Connection, token_id: str, secret_sha256: str) -> None:
    """Raise Unauthorized unless the token exists and this is the digest of its secret."""
    row = db.execute("SELECT secret_sha256 FROM join_tokens WHERE token_id = ?", (token_id,)).fetchone()
    if row is None or row[0] == _REVOKED or not hmac.compare_digest(row[0].encode(), secret_sha256.encode()):
        raise Unauthorized("unknown join token or wrong secret")


def require_admitting(db: sqlite3.Connection, at_ms: int, token_id: str, node_id: str) -> None:
    """Raise Unauthorized unless the token admits this node.

    It does not if it is expired, used up or bound to another node, or if its creator is no longer an admin.
    """
    bound_to, uses_max, uses, expires_at_ms, created_by = db.execute(
        "SELECT node_id, uses_max, uses, expires_at_ms, created_by FROM join_tokens WHERE token_id = ?",
        (token_id,),
    ).fetchone()
    if not is_enabled_admin(db, created_by):
        raise Unauthorized("join token of somebody who is no admin any more")
    if at_ms >= expires_at_ms:
        raise Unauthorized("expired join token")
    if uses >= uses_max:
        raise Unauthorized("used join token")
    if bound_to not in ("", node_id):
        raise Unauthorized("join token of another node")


def require_free_id(db: sqlite3.Connection, node_id: str, proved_serial: str, token_id: str) -> None:
    """Raise Conflict if the node id exists and no live certificate of that node was proved.

    A revoked node joins again with a token for its name.
    """
    row = db.execute("SELECT revoked FROM nodes WHERE node_id = ?", (node_id,)).fetchone()
    if row is None:
        return
    if row[0]:
        bound = "SELECT 1 FROM join_tokens WHERE token_id = ? AND node_id = ?"
        if db.execute(bound, (token_id, node_id)).fetchone() is None:
            raise Conflict(
                f"id: the node {node_id} was revoked: it joins anew with a token of its name only."
            )
        return
    live = db.execute(
        "SELECT 1 FROM certificates WHERE serial = ? AND node_id = ? AND revoked = 0",
        (proved_serial, node_id),
    ).fetchone()
    if live is None:
        raise Conflict(f"id: a node named {node_id} has joined already.")


def earlier_serial(
    db: sqlite3.Connection, at_ms: int, token_id: str, node_id: str, public_key_sha256: str
) -> str | None:
    """Return the certificate that this token, id and key got within the last ten minutes, or None."""
    row = db.execute(
        "SELECT serial, joined_at_ms FROM joins WHERE token_id = ? AND node_id = ? AND public_key_sha256 = ?",
        (token_id, node_id, public_key_sha256),
    ).fetchone()
    if row is None or at_ms - row[1] >= REPEAT_MS:
        return None
    return str(row[0])


def _from_row(row: tuple[Any, ...]) -> JoinTokenRecord:
    return JoinTokenRecord(
        token_id=row[0],
        node_id=row[1],
        uses_max=row[2],
        uses=row[3],
        created_by=row[4],
        created_at_ms=row[5],
        expires_at_ms=row[6],
    )
