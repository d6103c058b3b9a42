"""How every simulated cluster begins: the first entries of the log, and the state that they make.

Sessions for the clients and a few files are there from the start, so that no run is spent on creating them.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.state_store import Store
from metadata.model.records import Caller, CoordinatorRecord
from metadata.model.rules import RULES
from metadata.protocol.commands import (
    AnyCommand,
    Bootstrap,
    CreateProjectFile,
    Envelope,
    OpenSession,
    encode_envelope,
)
from tests.unit import state

ADMIN = Caller("admin", 1)
CLIENTS_MAX = 8
KEYS = ("k0", "k1", "k2", "k3")
PROBE_KEY = "probe"  # written in the calm at the end, read by nobody
AT_MS = 1_000_000
_MEMBER_NUMBERS = {f"m{number}": number for number in range(100)}


@dataclass(frozen=True, slots=True)
class Genesis:
    """The log's first entries, all of term 1 and committed, and the database that holds them."""

    entries: tuple[Entry, ...]
    sessions: tuple[int, ...]
    image: bytes


@lru_cache(maxsize=16)
def begin(voters: tuple[str, ...]) -> Genesis:
    """The beginning of a cluster with these voters."""
    commands: list[AnyCommand] = [
        _bootstrap(voters),
        *(OpenSession(nonce=f"client-{number}") for number in range(CLIENTS_MAX)),
        *(create(key, "") for key in (*KEYS, PROBE_KEY)),
    ]
    entries = tuple(
        Entry(index, 1, EntryKind.COMMAND, encode_envelope(Envelope(0, 0, 0, AT_MS, command)))
        for index, command in enumerate(commands, 1)
    )
    sessions = tuple(range(2, 2 + CLIENTS_MAX))  # a session's number is the index of the entry that opened it
    with closing(connect(b"")) as connection:
        Store.over(connection, connection).apply(entries)
        return Genesis(entries, sessions, connection.serialize())


@lru_cache(maxsize=1)
def empty_image() -> bytes:
    """The database of a member that knows nothing yet."""
    with closing(connect(b"")) as connection:
        Store.over(connection, connection)
        return connection.serialize()


def connect(image: bytes) -> sqlite3.Connection:
    """A database in memory with this content."""
    # What a dropped world had open is closed in the thread where the collector happens to run.
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, cached_statements=512, check_same_thread=False
    )
    if image:
        connection.deserialize(image)
    return connection


def record_of(member: str, role: str = "voter") -> CoordinatorRecord:
    """A member as the state lists it."""
    number = _MEMBER_NUMBERS.get(member, 0)
    return CoordinatorRecord(
        coordinator_id=member, address="127.0.0.1", peer_port=1000 + number, api_port=2000 + number, role=role
    )


def create(key: str, value: str) -> CreateProjectFile:
    """The register `key` comes into being with `value`."""
    return state.create(ADMIN, key, project_name=value, placement=["n1"])


def _bootstrap(voters: Sequence[str]) -> Bootstrap:
    return Bootstrap(
        rules=RULES,
        cluster="simulated",
        root_pem="root",
        members=[record_of(voter) for voter in voters],
        replicas=1,
        write_quorum=1,
        development=True,
        intermediate_pem="intermediate",
        intermediate_wrapped=b"wrapped",
        user_token_kid="kid",
        user_token_jwk={"kid": "kid"},
        user_token_wrapped=b"wrapped",
        admin_user_id=ADMIN.subject,
    )
