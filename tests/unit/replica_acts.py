"""Steps in the life of replicas, for tests of the state machine."""

import sqlite3
from contextlib import closing
from typing import Any, Literal

import msgspec

from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, complete, create


def put(state: State, file_uuid: str, sha256: str, *node_ids: str, as_of: int = 0) -> Any:
    """A file with this content on these nodes; what its completion came to."""
    state.done(create(ADMIN, file_uuid))
    command = complete(ADMIN, file_uuid, sha256, list(node_ids or ("n1", "n2", "n3")))
    return state.apply(msgspec.structs.replace(command, as_of=as_of))


def delete(state: State, file_uuid: str) -> None:
    """Delete a file."""
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind=""))


def collect(state: State, *, grace_ms: int = 0, rows_max: int = 1000) -> Any:
    """What a Collect does, by default without a grace."""
    return state.done(commands.Collect(grace_ms=grace_ms, rows_max=rows_max))


def mark(state: State, node_id: str, *states: Literal["healthy", "down", "returning"]) -> Any:
    """Record one state of a node after the other; the last answer."""
    answer = None
    for name in states:
        answer = state.apply(commands.MarkNode(node_id=node_id, state=name))
    return answer


def add(state: State, sha256: str, node_id: str, *, as_of: int | None = None) -> Any:
    """A node says, by default now, that it holds a blob."""
    at = state.log_index if as_of is None else as_of
    return state.apply(commands.AddReplica(sha256=sha256, node_id=node_id, as_of=at))


def release(state: State, sha256: str, node_id: str, *, others_min: int = 2) -> Any:
    """Doom one replica."""
    command = commands.ReleaseReplica(sha256=sha256, node_id=node_id, others_min=others_min)
    return state.apply(command)


def dropped(state: State, node_id: str, *sha256s: str, as_of: int | None = None) -> Any:
    """A node says what it has dropped, by default of the present list."""
    at = state.log_index if as_of is None else as_of
    return state.apply(commands.ReportDropped(node_id=node_id, as_of=at, dropped=list(sha256s)))


def spared(state: State, node_id: str, *sha256s: str, as_of: int | None = None) -> Any:
    """The same of what it has spared."""
    at = state.log_index if as_of is None else as_of
    return state.apply(commands.ReportDropped(node_id=node_id, as_of=at, spared=list(sha256s)))


def lost(state: State, node_id: str, *sha256s: str) -> Any:
    """A node says what it does not hold."""
    return state.apply(commands.ReportLost(node_id=node_id, sha256s=list(sha256s), reason="missing"))


def doomed(state: State, node_id: str) -> list[str]:
    """What a node shall drop."""
    page = state.ask(queries.ListReplicasToDelete(node_id=node_id))
    return [replica["sha256"] for replica in page["replicas"]]


def holders(state: State, sha256: str) -> list[str]:
    """Who holds a blob and shall keep it."""
    found = state.ask(queries.FindBlob(sha256=sha256))
    return list(found["replicas"])


def short(state: State, **changes: Any) -> list[tuple[str, int]]:
    """Blobs that are short, with how many replicas they lack."""
    page = state.ask(queries.ListShortBlobs(**changes))
    return [(blob["sha256"], blob["missing"]) for blob in page["blobs"]]


def recount(state: State, rows_max: int = 1000) -> int:
    """Until nothing is queued; how many steps."""
    for steps in range(1, 100):
        if not state.done(commands.RecountReplicas(rows_max=rows_max))["more"]:
            return steps
    raise AssertionError("the steps have no end")


def blob_count(state: State) -> int:
    """How many blobs the log knows."""
    with closing(sqlite3.connect(state.path)) as db:
        return int(db.execute("SELECT COUNT(*) FROM blobs").fetchone()[0])
