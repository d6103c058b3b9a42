"""The findings of an offline check of a data directory, and the checks that every role shares.

Everything here only reads.

Tested by tests/cluster/test_doctor.py.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ca.certificates import UntrustedCertificate, certificates_in, check_leaf_matches
from ca.identity import Identity
from ca.keys import UnreadableKey, key_from_pem
from ca.secretfiles import UnsafeSecretFile, read_secret
from ca.tls import Credential, UnusableCredential
from metadata.rpc.roster import read_roster
from runtime.timestamps import rfc3339

PROBLEMS_MAX: Final = 1000  # that are kept; further ones are counted
OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what the operator does about it."""

    where: Path
    what: str
    advice: str


class KeepsCredential(Protocol):
    """The paths of a member's files, of either role."""

    root: Path
    credential_path: Path

    def credential(self) -> Credential:
        """Raises UnusableCredential when the root cannot be used."""


@dataclass(slots=True)
class Findings:
    """Problems, in the order in which they were found, and facts: what was examined, a line each."""

    problems: list[Problem] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    problem_count: int = 0

    def problem(self, where: Path, what: str, advice: str) -> None:
        """Something is wrong. Beyond PROBLEMS_MAX it is counted alone."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(where, what, advice))

    def fact(self, line: str) -> None:
        """Record a fact that was checked."""
        self.facts.append(line)


@contextmanager
def copied_database(findings: Findings, path: Path) -> Iterator[Path | None]:
    """Yield a copy of an SQLite database, as SQLite writes files next to a database even to read it.

    None if there is no room for a copy, which is reported. Raises OSError.
    """
    parts = [part for suffix in ("", "-wal") if (part := path.with_name(f"{path.name}{suffix}")).exists()]
    needed_bytes = sum(part.stat().st_size for part in parts)
    with tempfile.TemporaryDirectory(prefix="filestore-doctor-") as directory:
        if shutil.disk_usage(directory).free < needed_bytes:
            advice = f"Set TMPDIR to a directory with {needed_bytes} free bytes, and run this again."
            findings.problem(path, "was not checked: there is no room for a copy", advice)
            yield None
            return
        for part in parts:
            shutil.copyfile(part, Path(directory) / part.name)
        yield Path(directory) / path.name


def entries_of(findings: Findings, directory: Path) -> "list[os.DirEntry[str]]":
    """Return the entries by name; none if the directory is missing, which was reported before."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        advice = "Check the disk and its file system."
        findings.problem(directory, f"cannot be read: {error.strerror}", advice)
        return []


def check_secret(findings: Findings, path: Path, *, required: bool) -> None:
    """A file that its owner alone may read; one that is not required may be missing."""
    if not path.exists() and not path.is_symlink():
        if required:
            findings.problem(
                path, "is missing", "Restore it from a backup. Nothing can start here without it."
            )
        return
    try:
        read_secret(path)
    except UnsafeSecretFile as error:
        findings.problem(path, error.details, f"chmod 600 {path}, owned by the user that runs Filestore.")


def check_private_directory(findings: Findings, path: Path, *, others: int = OTHERS) -> None:
    """Check a directory whose `others` mode bits must not be set. It may not be a link."""
    if not path.is_symlink() and not path.exists():
        advice = "Is the right disk mounted? Starting creates an empty directory."
        findings.problem(path, "is missing", advice)
        return
    if path.is_symlink() or not path.is_dir():
        findings.problem(
            path, "is not a directory", "Put the directory itself there. Links are not followed."
        )
        return
    mode = path.stat().st_mode
    if mode & others:
        findings.problem(
            path, f"has mode {mode & 0o7777:04o}, which lets other users access it", f"chmod 700 {path}"
        )


def check_known(findings: Findings, path: Path) -> None:
    """The list of coordinators that a process keeps for its next start; it may be missing."""
    try:
        read_roster(path)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        advice = (
            "Remove it. The next start then uses the coordinators from when this member joined, as it "
            "does now."
        )
        findings.problem(path, f"cannot be read: {error}", advice)


def check_credential(findings: Findings, files: KeepsCredential, identity: Identity, address: str) -> None:
    """Key and certificate belong together, name this member and its address, and can be used.

    The certificate chains up to the root and has not ended.
    """
    path, pem = files.credential_path, ""
    check_secret(findings, path, required=True)
    try:
        credential = files.credential()
    except UnusableCredential as error:
        advice = "Copy it from another member. It is the same on every member."
        findings.problem(files.root, error.details, advice)
        return
    try:
        content = path.read_bytes()
        pem = content.decode("ascii", "replace")
        check_leaf_matches(pem, key_from_pem(content), credential.root_pem, identity=identity)
        ends_at = certificates_in(pem)[0].not_valid_after_utc
    except FileNotFoundError:
        return  # already reported
    except (OSError, UnreadableKey, UntrustedCertificate) as error:
        reason = getattr(error, "details", "") or str(error)
        findings.problem(path, f"cannot be used: {reason}", _advice_on_certificate(pem))
        return
    try:
        credential.require_address(address)
    except UnusableCredential as error:
        advice = (
            "Restore that address. To change the address of a node, use `filestore node set-address`; "
            "of a coordinator, `filestore coordinator rebuild --address`."
        )
        findings.problem(path, error.details, advice)
    left_s = int((ends_at - datetime.now(UTC)).total_seconds())
    ends_at_ms = int(ends_at.timestamp() * 1000)
    findings.fact(
        f"certificate of {identity.uri}: expires {rfc3339(ends_at_ms)}, {left_s // 3600} hours left"
    )


def _advice_on_certificate(pem: str) -> str:
    """Return advice for a leaf that cannot be used, and other advice if its intermediate has expired too."""
    with suppress(UntrustedCertificate, IndexError):
        ended_at = certificates_in(pem)[1].not_valid_after_utc
        if ended_at < datetime.now(UTC):
            shown = rfc3339(int(ended_at.timestamp() * 1000))
            return (
                "Check the clock of this machine. The intermediate certificate that signed it expired "
                f"at {shown}. Unless the coordinators have a newer one, certificates are not renewed "
                "automatically. The runbook says what to do, under FilestoreAuthorityExpires."
            )
    return (
        "Check the clock of this machine. The running process renews an expired certificate for up to "
        "90 days. If the certificate is lost or older than that, join this member again."
    )
