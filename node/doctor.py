"""An offline check of a node's data directory: blobs, sidecars, packs, uploads, secrets, permissions.

It changes nothing, follows no link, and holds one directory's names at a time. Facts that need the
coordinators (whether the log knows a blob) are checked by the node itself, once it runs.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.model.identifiers import is_sha256, is_uuid
from metadata.rpc.findings import (
    Findings,
    check_credential,
    check_known,
    check_private_directory,
    entries_of,
)
from node.base.config import OTHERS_WRITE, NodeFiles
from node.diskio.durable import SLOT_BYTES, SLOT_SPACING_BYTES, decode_offset
from node.diskio.fs import READ_FLAGS
from node.pack_doctor import check_packs
from node.storage.blob_files import INCOMING, SIDECAR
from node.storage.segments import FINISHED_BYTES, SidecarInvalid, decode_finished, decode_sidecar
from runtime.disk import while_stopped
from runtime.wording import counted

_PREFIX: Final = re.compile(r"[0-9a-f]{2}", re.ASCII)
_WRITABLE: Final = 0o222
_LEAVE: Final = (
    "Leave it where it is, start the node and run the job scrub. The node takes the blob out of "
    "service, and serves the bytes of another node. Do not replace the file by hand."
)
_STRAY: Final = "This file does not belong to Filestore. Move it out of the data directory."


@dataclass(slots=True)
class _Count:
    """The counts of a check."""

    blobs: int = 0
    blob_bytes: int = 0
    sidecars_alone: int = 0


def examine(files: NodeFiles, *, deep: bool) -> Findings:
    """Check everything that needs no coordinators. `deep` reads every blob and compares its sha256.

    Raises NotJoined, Conflict while the node runs.
    """
    config = files.read_config()
    findings = Findings()
    findings.fact(f"node {config.id} of the cluster {config.cluster}")
    check_private_directory(findings, files.data.resolve(), others=OTHERS_WRITE)
    check_credential(findings, files, config.identity, config.address)
    check_known(findings, files.known)
    if not files.lock.exists():
        findings.fact("this node has never run")
        return findings
    with while_stopped(files.lock):
        for name in ("blobs", "uploads", "quarantine"):
            check_private_directory(findings, files.data / name)
        _check_blobs(findings, files.data / "blobs", deep=deep)
        check_packs(findings, files.data / "packs", deep=deep)
        _check_uploads(findings, files.data / "uploads")
        _describe_quarantine(findings, files.data / "quarantine")
    return findings


def _check_blobs(findings: Findings, blobs: Path, *, deep: bool) -> None:
    count = _Count()
    for leaf in _leaves(findings, blobs):
        names = {entry.name for entry in entries_of(findings, leaf)}
        for name in sorted(names):
            _check_name(findings, leaf, name, names, count, deep=deep)
    how = "every byte" if deep else "names, sizes and sidecars; --deep reads every byte"
    findings.fact(f"blobs: {count.blobs}, {count.blob_bytes} bytes ({how})")
    if count.sidecars_alone:
        findings.fact(f"{count.sidecars_alone} sidecars without a blob, as crashes leave them: harmless")


def _leaves(findings: Findings, blobs: Path) -> Iterator[Path]:
    """Yield the directories blobs/ab/cd."""
    for upper in entries_of(findings, blobs):
        if not (_PREFIX.fullmatch(upper.name) and upper.is_dir(follow_symlinks=False)):
            findings.problem(Path(upper.path), "does not belong among the blobs", _STRAY)
            continue
        for leaf in entries_of(findings, Path(upper.path)):
            if _PREFIX.fullmatch(leaf.name) and leaf.is_dir(follow_symlinks=False):
                yield Path(leaf.path)
            else:
                findings.problem(Path(leaf.path), "does not belong among the blobs", _STRAY)


def _check_name(
    findings: Findings, leaf: Path, name: str, names: set[str], count: _Count, *, deep: bool
) -> None:
    path, sha256 = leaf / name, name.removesuffix(SIDECAR)
    if not is_sha256(sha256) or sha256[:4] != leaf.parent.name + leaf.name:
        findings.problem(path, "does not belong among the blobs", _STRAY)
    elif name == sha256:
        count.blobs += 1
        try:
            count.blob_bytes += _check_blob(findings, path, deep=deep)
        except OSError as error:
            findings.problem(path, f"cannot be read: {error.strerror}", _LEAVE)
    elif sha256 not in names:
        count.sidecars_alone += 1


def _check_blob(findings: Findings, path: Path, *, deep: bool) -> int:
    """Check a blob and return its size. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    with open(descriptor, "rb", buffering=0) as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            findings.problem(path, "is not a regular file", _LEAVE)
            return 0
        if facts.st_mode & _WRITABLE:
            mode = stat.S_IMODE(facts.st_mode)
            findings.problem(path, f"has mode {mode:04o}, but blobs never change", f"chmod 400 {path}")
        if what := _sidecar_fault(path, facts.st_size):
            findings.problem(path, what, _LEAVE)
        elif deep and hashlib.file_digest(file, "sha256").hexdigest() != path.name:
            findings.problem(path, "its content does not match its name", _LEAVE)
        return facts.st_size


def _sidecar_fault(path: Path, size_bytes: int) -> str:
    """Return the fault in the sidecar of a blob of this size; "" for none."""
    sidecar = path.with_name(path.name + SIDECAR)
    try:
        decode_sidecar(sidecar.read_bytes(), size_bytes)
    except FileNotFoundError:
        return "has no sidecar"
    except SidecarInvalid as error:
        return str(error)
    return ""


def _check_uploads(findings: Findings, uploads: Path) -> None:
    found = 0
    for entry in entries_of(findings, uploads):
        path = Path(entry.path)
        if is_uuid(entry.name) and entry.is_dir(follow_symlinks=False):
            found += 1
            try:
                _check_upload(findings, path)
            except OSError as error:
                findings.problem(path, f"cannot be read: {error.strerror}", "Check the disk.")
        elif not entry.name.startswith(INCOMING):  # those are removed at the next start
            findings.problem(path, "does not belong among the uploads", _STRAY)
    findings.fact(f"uploads: {found}")


def _check_upload(findings: Findings, path: Path) -> None:
    """Check an upload. Raises OSError.

    A finished one has a sound record, another at least its durable bytes.
    """
    finished, offset_path, data = path / "finished", path / "offset", path / "data"
    if finished.exists():
        if decode_finished(finished.read_bytes()[: FINISHED_BYTES + 1], path.name) is None:
            advice = "Start the node. The upload continues from its durable bytes, or starts again."
            findings.problem(finished, "is not a valid record of a finished upload", advice)
        return
    if not offset_path.exists():
        return  # a crash just after its creation
    raw = offset_path.read_bytes()
    slots = [decode_offset(raw[at : at + SLOT_BYTES]) for at in (0, SLOT_SPACING_BYTES)]
    _, offset = max(slots)
    data_bytes = data.stat().st_size if data.exists() else 0
    if data_bytes < offset:
        advice = "Acknowledged bytes are lost: check the disk. The client uploads the file again."
        findings.problem(data, f"has {data_bytes} bytes, but {offset} were durable", advice)


def _describe_quarantine(findings: Findings, quarantine: Path) -> None:
    names = [entry.name for entry in entries_of(findings, quarantine) if is_sha256(entry.name)]
    if names:
        found = counted(len(names), "blob that was", "blobs that were")
        findings.fact(f"quarantine: {found} damaged or unknown to the log")
