"""What tests do with the trash of a state machine."""

from typing import Any

from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, State, complete, create_backup

DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


def rows(state: State, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """What the state has, as far as it was applied."""
    return state.store.read_with(lambda db: db.execute(sql, values).fetchall())


def store(state: State, command: commands.CreateFile, sha256: str = "", size_bytes: int = 5) -> None:
    """A file with content, by default its own."""
    state.done(command)
    content = sha256 or f"sha of {command.file_uuid}"
    state.done(complete(command.caller, command.file_uuid, content, ["n1", "n2"], size_bytes=size_bytes))


def delete(state: State, file_uuid: str, caller: Caller = ADMIN, **changes: Any) -> Any:
    fields: dict[str, Any] = {"kind": "", "trash_ms": WEEK_MS} | changes
    return state.apply(commands.DeleteFile(caller=caller, file_uuid=file_uuid, **fields))


def restore(state: State, file_uuid: str, caller: Caller = ADMIN, bucket_id: str = "") -> Any:
    return state.apply(commands.RestoreFile(caller=caller, file_uuid=file_uuid, bucket_id=bucket_id))


def purge(state: State, file_uuid: str, caller: Caller = ADMIN) -> Any:
    return state.apply(commands.PurgeFile(caller=caller, file_uuid=file_uuid))


def trashed(state: State, caller: Caller = ADMIN, bucket_id: str = "") -> list[str]:
    page = state.ask(queries.ListTrash(caller=caller, bucket_id=bucket_id))
    return [file["file_uuid"] for file in page["files"]]


def bucket(state: State, bucket_id: str = DEFAULT_BUCKET_ID) -> dict[str, Any]:
    found: dict[str, Any] = state.ask(queries.GetBucket(caller=ADMIN, bucket_id=bucket_id))
    return found


def references(state: State, sha256: str) -> int | None:
    found = rows(state, "SELECT reference_count FROM blobs WHERE sha256 = ?", sha256)
    return found[0][0] if found else None


def safety(bucket_id: str, **changes: Any) -> commands.UpdateBucket:
    return commands.UpdateBucket(caller=ADMIN, bucket_id=bucket_id, name=None, quota_bytes=None, **changes)


def chain(state: State, count: int, **changes: Any) -> None:
    """f0 is full, each next one builds on the one before."""
    for number in range(count):
        parent = {"backup_type": "incremental", "parent_backup_uuid": f"f{number - 1}"} if number else {}
        store(state, create_backup(ADMIN, f"f{number}", **parent, **changes))
