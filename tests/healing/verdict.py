"""When all is quiet: is every file there, on every node, and does each disk hold what the log names it for?

What of a disk is not compared: what lies in quarantine, which is kept for a week whatever becomes of it, and
sidecars whose blob is gone, which are harmless and tiny. The sum of all bytes has a bound.
"""

import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from deploy.dev_cluster import Member
from node.packs.store import BLOB_BYTES_MAX
from tests.blobs_on_disk import is_sound_on
from tests.cluster.test_doctor import doctor
from tests.file_ledger import SIZE_BYTES_MAX, File
from tests.healing.stage import REPLICAS, Stage
from tests.packed_blobs import packed_sizes, packs_of

READERS: Final = 4
SHOWN_MAX: Final = 20
AREAS: Final = ("blobs", "uploads", "partials", "quarantine", "unclaimed", "lost")
SMALL_FILES_BYTES: Final = 1 << 20  # of one node: checksums are 8 bytes for each 4 MiB of a replica
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def judge(stage: Stage) -> list[str]:
    """Everything that is wrong, what clients met included."""
    faults = list(stage.ledger.faults)
    for found in (_files(stage), _blobs(stage), _disks(stage), _packs(stage), _space(stage)):
        faults += itertools.islice(found, SHOWN_MAX)
    return faults


def examine(stage: Stage) -> list[str]:
    """What `filestore doctor` finds in the directories, once the processes have ended."""
    faults = []
    for member in stage.cluster.members:
        if member.id not in stage.removed:
            done = doctor(stage.cluster.data(member), "--deep")
            if done.exception is not None or done.return_value != 0:
                faults.append(f"doctor of {member.id}: {done.exception or done.output[-2000:]}")
    return faults


def _files(stage: Stage) -> Iterator[str]:
    """Every available file reads identical on every node; what was acknowledged is available."""
    status = dict(stage.logged("SELECT file_uuid, status FROM files"))
    for file in stage.ledger.files.values():
        found = status.get(file.file_uuid, "")
        if file.is_deleted and found:
            yield f"{file.file_uuid} is {found}, and its deletion was acknowledged"
        if file.is_stored and not file.is_deletion_asked and found != "available":
            yield f"{file.file_uuid} is {found or 'gone'}, and its upload was acknowledged"
    if strangers := set(status) - set(stage.ledger.files):
        yield f"nobody knows the files {sorted(strangers)}"
    available = [file for file in stage.ledger.files.values() if status.get(file.file_uuid) == "available"]
    with ThreadPoolExecutor(READERS) as readers:
        for wrong in readers.map(lambda file: _misread(stage, file), available):
            yield from wrong


def _misread(stage: Stage, file: File) -> list[str]:
    expected, faults = file.content.bytes(), []
    for node in stage.nodes:
        answer = stage.cluster.get(f"/files/{file.file_uuid}", node=node)
        if (answer.status, answer.body) != (200, expected):
            faults.append(f"{file.file_uuid} ({file.content.sha256}) at {node.id}: {answer.status}")
    return faults


def _blobs(stage: Stage) -> Iterator[str]:
    """No blob without a file, none without its replicas, by word of the log."""
    counted = "SELECT sha256, reference_count, missing FROM blobs ORDER BY sha256"
    files = dict(stage.logged("SELECT blob_sha256, COUNT(*) FROM files GROUP BY blob_sha256"))
    files.pop(None, None)
    replicas = dict(stage.logged("SELECT sha256, COUNT(*) FROM blob_replicas GROUP BY sha256"))
    for sha256, reference_count, missing in stage.logged(counted):
        if reference_count != files.pop(sha256, 0) or reference_count == 0:
            yield f"blob {sha256} has the reference count {reference_count}, which is wrong"
        if replicas.get(sha256, 0) != REPLICAS or missing:
            yield f"blob {sha256} has {replicas.get(sha256, 0)} replicas, {missing} missing"
    for sha256 in files:
        yield f"files name the blob {sha256}, which the log does not know"


def _disks(stage: Stage) -> Iterator[str]:
    """Each node has what the log names it for, and nothing else."""
    sql = (
        "SELECT r.sha256, b.size_bytes FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
        " WHERE r.node_id = ?"
    )
    for node in stage.nodes:
        named: dict[str, int] = dict(stage.logged(sql, node.id))
        lying, packed = _lying(stage, node), packed_sizes(stage.cluster.data(node))
        files = {name for name in lying if _SHA256.fullmatch(name)}
        names = files | packed.keys()
        yield from (f"{node.id} lacks {name}" for name in sorted(set(named) - names))
        yield from (f"{node.id} has {name}, and should not" for name in sorted(names - set(named)))
        for name in sorted(names & set(named)):
            if not is_sound_on(stage.cluster.data(node), name):
                yield f"{node.id} has other bytes as {name}"
        if lacking := {f"{name}.sums" for name in files} - set(lying):
            yield f"{node.id} lacks {sorted(lacking)}"
        if stray := {name for name in lying if not _SHA256.fullmatch(name.removesuffix(".sums"))}:
            yield f"{node.id} has files that belong to no blob: {sorted(stray)}"
        used_bytes = sum((packed | lying)[name] for name in names)
        if used_bytes != sum(named.values()):
            yield f"{node.id} uses {used_bytes} bytes for blobs, the log says {sum(named.values())}"


def _packs(stage: Stage) -> Iterator[str]:
    """Every pack is one that its node knows, else its room would never be given back; and small blobs do lie
    in packs. How much of packs is dead was looked at before (`tests/healing/quiet.py`).
    """
    for node in stage.nodes:
        data = stage.cluster.data(node)
        lying, known = {path.name for path in data.glob("packs/*.pack")}, {p.name for p in packs_of(data)}
        if lying != known:
            yield f"{node.id} has the packs {sorted(lying)}, and knows {sorted(known)}"
    asked = "SELECT COUNT(*) FROM blobs WHERE reference_count > 0 AND size_bytes <= ?"
    ((small,),) = stage.logged(asked, BLOB_BYTES_MAX)
    packed = packed_blobs(stage)
    stage.note(f"packs: {packed} of {small} small blobs lie there")
    if small and not packed:
        yield f"none of {small} small blobs lies in a pack"


def packed_blobs(stage: Stage) -> int:
    """How many blobs lie in packs, on one node or more."""
    return len({name for node in stage.nodes for name in packed_sizes(stage.cluster.data(node))})


def _space(stage: Stage) -> Iterator[str]:
    """All disks together hold the replicas of what files refer to, and little else: checksums, small files,
    and in quarantine what was damaged, or was put aside as unknown because its time was said to be over.
    """
    (referenced,) = stage.logged("SELECT IFNULL(SUM(size_bytes), 0) FROM blobs WHERE reference_count > 0")[0]
    found_damaged = sum(text.count("moved to quarantine") for text in stage.cluster.logs().values())
    put_aside = sum(_put_aside(stage.cluster.data(node)) for node in stage.nodes)
    aside = max(stage.damaged, found_damaged) + put_aside
    bound = REPLICAS * referenced + len(stage.nodes) * SMALL_FILES_BYTES + aside * SIZE_BYTES_MAX
    held = sum(_size_of(stage.cluster.data(node) / area) for node in stage.nodes for area in AREAS)
    stage.note(f"space: {held} bytes, at most {bound}, {referenced} are referred to, {aside} put aside")
    if held > bound:
        yield f"the disks hold {held} bytes; at most {bound} may be for {referenced} that files refer to"
    sql = "SELECT reserved_bytes FROM buckets WHERE bucket_id = ?"
    if reserved := stage.logged(sql, stage.bucket_id)[0][0]:
        yield f"{reserved} bytes of the quota are reserved, and no upload is under way"


def _put_aside(data: Path) -> int:
    """How many blobs that the log did not know this node has put into quarantine."""
    return sum(log.read_text().count('"blob.quarantine"') for log in data.glob("housekeeping.log*"))


def _size_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


def _lying(stage: Stage, node: Member) -> dict[str, int]:
    """The size of every file below a node's blobs, by its name."""
    found = {}
    for directory, _, names in os.walk(stage.cluster.data(node) / "blobs"):
        for name in names:
            found[name] = os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118
    return found
