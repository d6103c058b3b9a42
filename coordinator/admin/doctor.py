"""An offline check of a coordinator's data directory: log, database, snapshots, secrets, markers.

It uses the code that reads the files at a start, and changes nothing: the log's directory rejects writes
here, and the database is read from a copy, as SQLite writes files next to a database even to read it.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ca.errors import InvalidRequest
from ca.keys import WrongClusterKey, unwrap
from ca.secretfiles import UnsafeSecretFile, systemd_credential
from coordinator.admin.authority import INTERMEDIATE_PURPOSE
from coordinator.admin.setup import read_genesis
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.database import newest_key
from coordinator.storage.log_directory import OsDirectory, OsFile
from coordinator.storage.raft_log import SEGMENT_BYTES
from coordinator.storage.raft_log_index import LogIndex
from coordinator.storage.recovery import recover
from coordinator.storage.segment import LogDamaged
from coordinator.storage.snapshot_store import damage_of
from metadata.rpc.findings import (
    Findings,
    check_credential,
    check_known,
    check_private_directory,
    check_secret,
    copied_database,
)
from runtime.disk import while_stopped
from runtime.sqlite import DATABASE_ERRORS
from runtime.wording import counted

_REBUILD: Final = (
    "Do not repair it by hand and do not start it: set this member up again from its peers with"
    " `filestore coordinator rebuild`, under a new name."
)
_DATABASE_MESSAGES_MAX: Final = 10


def examine(files: CoordinatorFiles, *, deep: bool) -> Findings:
    """Check everything that needs no other coordinators. `deep` reads snapshots whole, too.

    Raises NotInitialised, Conflict while the coordinator runs.
    """
    config = files.read_config()
    findings = Findings()
    findings.fact(f"coordinator {config.id} of the cluster {config.cluster}")
    _check_secrets(findings, files)
    check_credential(findings, files, config.identity, config.own.address)
    check_known(findings, files.known)
    if files.diverged.exists():
        findings.problem(files.diverged, "this member's state differed from that of the majority", _REBUILD)
    if not files.log.is_dir():
        findings.problem(files.log, "is missing: the log was lost", _REBUILD)
        return findings
    with while_stopped(files.log):
        known = _check_log(findings, files.log)
        applied = _check_database(findings, files)
        if known is not None and applied is not None:
            _compare(findings, files, *known, applied)
    _check_snapshots(findings, files.snapshots, deep=deep)
    return findings


def _check_secrets(findings: Findings, files: CoordinatorFiles) -> None:
    check_private_directory(findings, files.data.resolve())
    handed_over = systemd_credential(files.cluster_key.name)
    if handed_over is not None:
        check_secret(findings, handed_over, required=True)
        if files.cluster_key.exists():
            findings.fact(f"{files.cluster_key} is not used: systemd provides the key")
    elif not files.cluster_key.is_symlink():  # systemd provides it, and may have removed it again
        check_secret(findings, files.cluster_key, required=True)
    for path in (files.root_key, files.bundle, files.admin_token, files.genesis):
        check_secret(findings, path, required=False)
    if files.genesis.exists():
        _check_genesis(findings, files)
    if files.root_key.exists():
        findings.fact(f"{files.root_key} is here: keep it offline, and only there")


def _check_genesis(findings: Findings, files: CoordinatorFiles) -> None:
    """Check the genesis, which only bundles need. Its permissions were reported before."""
    try:
        with suppress(UnsafeSecretFile):
            read_genesis(files)
    except InvalidRequest:
        advice = "Copy it from another coordinator of this cluster, where it is the same. Delete its .sha256."
        findings.problem(
            files.genesis, "is damaged, or belongs to another cluster: no bundle can be created", advice
        )


class _ReadOnlyDirectory(OsDirectory):
    """A log's directory for `recover`, which would repair it: here nothing is changed."""

    def open(self, name: str) -> OsFile:
        descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return _ReadOnlyFile(descriptor, lambda _: None)

    def create(self, name: str) -> OsFile:
        raise AssertionError(f"a check makes no {name}")

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"a check does not rename {source} to {target}")

    def remove(self, name: str) -> None:
        """Keep a file that a start would remove."""

    def sync(self) -> None:
        """Do nothing, as nothing was changed."""

    def lock(self) -> None:
        """Do nothing, as `while_stopped` locks."""


class _ReadOnlyFile(OsFile):
    """A segment that is only read."""

    __slots__ = ()

    def write(self, offset: int, data: bytes) -> None:
        """Skip the write: a start would write its end once more."""

    def allocate(self, size_bytes: int) -> None:
        """Skip the allocation that a start would do."""

    def truncate(self, size_bytes: int) -> None:
        """Skip the cut: a start would cut a torn tail."""

    def sync(self) -> None:
        """Do nothing, as nothing was changed."""


def _check_log(findings: Findings, path: Path) -> tuple[LogIndex, int] | None:
    """Return the index of the log, and its latest term."""
    index = LogIndex()
    try:
        with closing(_ReadOnlyDirectory(path)) as directory:
            recovered = recover(directory, index, SEGMENT_BYTES)
    except LogDamaged as damage:
        findings.problem(damage.path, damage.details, _REBUILD)
        return None
    except OSError as error:
        findings.problem(path, f"cannot be read: {error.strerror}", "Check the disk, and who owns the files.")
        return None
    for each in index.segments:
        each.file.close()
    if not index.segments:
        findings.problem(path, "has no segment: the log was lost", _REBUILD)
        return None
    findings.fact(
        f"log: {counted(len(index.segments), 'segment', 'segments')}, entries {index.first} to {index.last},"
        f" term {recovered.hard_state.term}, committed {recovered.hard_state.commit}"
    )
    if recovered.hard_state.commit > index.last:
        findings.problem(path, "entries that were committed are missing", _REBUILD)
    return index, recovered.hard_state.term


def _check_database(findings: Findings, files: CoordinatorFiles) -> tuple[int, int] | None:
    """Return (index, term) of the last entry in a sound database; (0, 0) if there is none."""
    if not files.state.exists():
        findings.fact("database: none; the next start creates it from the log")
        return 0, 0
    with copied_database(findings, files.state) as copy:
        if copy is None:
            return None
        found = _examine_database(findings, files.state, copy)
        if found is not None and found[0]:
            _check_cluster_key(findings, files, copy)
        return found


def _check_cluster_key(findings: Findings, files: CoordinatorFiles, copy: Path) -> None:
    """Check that the key decrypts the state's secrets. An unreadable key was reported before."""
    with suppress(UnsafeSecretFile), closing(sqlite3.connect(copy)) as db:
        key, newest = files.read_cluster_key(), newest_key(db, INTERMEDIATE_PURPOSE)
        if newest is None:
            return
        try:
            unwrap(key, newest[2], purpose=INTERMEDIATE_PURPOSE)
        except WrongClusterKey as error:
            advice = "Copy it from another coordinator of this cluster: it is the same on all."
            findings.problem(files.cluster_key, error.details, advice)


def _examine_database(findings: Findings, shown: Path, copy: Path) -> tuple[int, int] | None:
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            rows = db.execute(f"PRAGMA integrity_check({_DATABASE_MESSAGES_MAX})").fetchall()
            messages = [str(row[0]) for row in rows if row[0] != "ok"]
            strays = db.execute("PRAGMA foreign_key_check").fetchmany(_DATABASE_MESSAGES_MAX)
            messages += [f"a row of {row[0]} refers to a missing row of {row[2]}" for row in strays]
            index, term = db.execute("SELECT log_index, term FROM applied").fetchone()
    except (*DATABASE_ERRORS, TypeError) as error:  # TypeError: no row
        findings.problem(shown, f"cannot be read: {error}", _REBUILD)
        return None
    for message in messages:
        findings.problem(shown, message, _REBUILD)
    findings.fact(f"database: holds entries up to {index}, of term {term}; {shown.stat().st_size} bytes")
    return None if messages else (index, term)


def _compare(
    findings: Findings, files: CoordinatorFiles, index: LogIndex, known_term: int, applied: tuple[int, int]
) -> None:
    """Compare log and database, as `coordinator.storage.reopening.recover` does at a start."""
    at, term = applied
    if at < index.first - 1:
        what = f"ends at entry {at}, and the log begins at {index.first}: it was lost or replaced"
        findings.problem(files.state, what, _REBUILD)
    elif at and index.last == 0:
        findings.problem(files.log, "is empty, and the database is not: the log was lost", _REBUILD)
    elif known_term < term:
        what = f"knows no term after {known_term}, but the database is of term {term}: its end was lost"
        findings.problem(files.log, what, _REBUILD)
    elif at > index.last or index.term(at) != term:
        findings.fact(
            f"the log ends at {index.last}. The next start continues after the snapshot in the "
            "database. If no snapshot was being installed, it starts without a vote until a leader of "
            "a later term has sent it the missing entries"
        )


def _check_snapshots(findings: Findings, directory: Path, *, deep: bool) -> None:
    if not directory.is_dir():
        return
    paths = sorted(directory.glob("*.snapshot"))
    for path in paths:
        if what := damage_of(path, deep=deep):
            advice = "Delete it, and the .json with the same name. A new one is created when it is needed."
            findings.problem(path, what, advice)
    findings.fact(f"snapshots: {len(paths)}")
