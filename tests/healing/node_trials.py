"""Trials of a node's data directory: its storage and its custody, with the real state machine in place of the
coordinators, over files of which some were harmed.

A node starts two or three times on them, as an index that is found damaged is rebuilt at the next start.
Whatever it hands out hashes to its name. What it cannot hand out in the end it has reported to the log. Each
blob of which no byte was touched must be there. An upload goes on at no later offset than was promised.
"""

import asyncio
import hashlib
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ca.certificates import Authority, new_intermediate, new_root
from ca.errors import FilestoreError
from ca.identity import Identity, Role
from ca.secretfiles import write_durable
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from metadata.model.records import CoordinatorRecord
from metadata.rpc.roster import read_known, write_known
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeConfig, NodeFiles
from node.base.instance import begin
from node.custody.chunk_repair import TRIES
from node.custody.context import Pass, Stopped
from node.doctor import examine
from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES
from node.staging.upload_store import UploadStore
from node.storage.damage import miss, remove_from_service, verify_blob
from node.storage.loss_notes import note_lost
from node.storage.out_of_service import Loss
from node.storage.partial_store import PartialStore
from node.storage.quarantine import Quarantine
from node.storage.segments import SEGMENT_BYTES, BlobDamaged, BlobMissing, FinishedBlob, SegmentHasher
from tests.blobs_on_disk import change_byte
from tests.healing.harms import WHOLE, Harm
from tests.healing.trial_outcomes import Outcome
from tests.unit import cold_store
from tests.unit.custody_node import Keeper, Log
from tests.unit.peer_nodes import CLUSTER, signed_in
from tests.unit.state import ADMIN, State, complete, create

SMALL_BLOBS: Final = 150  # that come before the earlier state is copied, and as many after
SMALL_BYTES_MAX: Final = 4_000
COLD_BYTES: Final = 700_000
COLD_VERSIONS: Final = 3  # of one disk, before the earlier state is copied, and as many after
LARGE_BYTES: Final = SEGMENT_BYTES + 300_000
UPLOAD_BYTES: Final = 400_000
DATA, STATE = "data", "state"
STARTS: Final = ("first start", "second start", "third start")  # the last one if it takes that long
SHOWN_MAX: Final = 3
_COORDINATORS = [CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)]


class Upload(Struct):
    """What was promised of an upload. Its content follows from `seed`."""

    seed: int
    acknowledged: int
    is_finished: bool = False

    def content(self) -> bytes:
        """All of it."""
        return random.Random(self.seed).randbytes(UPLOAD_BYTES)


class Model(Struct):
    """What the node was left with. `blobs`: the bytes on its disk that each needs."""

    blobs: dict[str, list[tuple[str, int, int]]] = {}
    uploads: dict[str, Upload] = {}
    quarantined: str = ""
    partial: str = ""
    large_seed: int = 0
    since_ms: list[int] = []


def prepare(directory: Path, seed: int) -> None:
    """`older` and `newer` states of a node, and what is true of the newer one."""
    dice, model = random.Random(f"{seed} node"), Model()
    made = directory / "made"
    made.mkdir(parents=True)
    keeper = Keeper(made, packed=True)
    try:
        _sign_in(keeper.directory)
        first = [_store(keeper, dice) for _ in range(SMALL_BLOBS)]
        _make_files(keeper, dice)
        _freeze_versions(keeper, 0)
        _begin_uploads(keeper, model, dice)
        asyncio.run(_scrub(keeper, Outcome()))
        _note_scrubbed(keeper, model)
        keeper.restart()  # so that the index lies in its file, and not in its WAL alone
        _store(keeper, dice)
        _keep(keeper, directory / "older")
        keeper.doom(*dice.sample(first, SMALL_BLOBS // 4))
        asyncio.run(keeper.collect(yes_really=True))
        for _ in range(SMALL_BLOBS):
            _store(keeper, dice)
        keeper.restart()
        _make_files(keeper, dice)
        _freeze_versions(keeper, COLD_VERSIONS)
        for _ in range(SMALL_BLOBS // 10):
            _store(keeper, dice)
        model.quarantined = _quarantine(keeper, dice)
        model.large_seed = dice.randrange(1 << 30)
        model.partial = _begin_partial(keeper, model)
        for upload_id in sorted(model.uploads):
            _go_on(keeper, upload_id, model.uploads[upload_id])
        _finish_uploads(keeper, model, dice)
        keeper.later_s = 60.0
        asyncio.run(_scrub(keeper, Outcome()))
        keeper.blobs.unclaimed.forget_all(first[0])
        note_lost(keeper.blobs, Loss(first[0], "missing"))
        _note_scrubbed(keeper, model)
        _sign_in_again(keeper.directory)
        model.blobs = {name: _bytes_of(keeper, name) for name in keeper.held()}
        _keep(keeper, directory / "newer")
    finally:
        keeper.close()
    (directory / "model.json").write_bytes(msgspec.json.encode(model))
    shutil.rmtree(made)


def try_it(directory: Path, model_path: Path, harms: Sequence[Harm]) -> Outcome:
    """What comes of the node in this directory, of which some files were harmed."""
    outcome = Outcome()
    model = msgspec.json.decode(model_path.read_bytes(), type=Model)
    data = directory / DATA
    _start(outcome, NodeFiles(data))
    with outcome.refusing("doctor"):
        examine(NodeFiles(data), deep=True)
    lacking, named = set(model.blobs), set[str]()
    for life in STARTS:
        with outcome.refusing(life):
            keeper = _Revived(directory)
            try:
                served = asyncio.run(_live(keeper, model, outcome, life))
                _look_at_uploads(keeper, model, harms, outcome)
                lacking, named = set(model.blobs) - served, set(keeper.held())
            finally:
                keeper.close()
        untouched = {name for name in lacking if not _is_touched(model.blobs[name], harms)}
        if life != STARTS[0] and not untouched:
            break
    if untouched:
        told = ", ".join(sorted(untouched)[:SHOWN_MAX])
        outcome.faults.append(f"{len(untouched)} blobs of which no byte was touched are not served: {told}")
    is_refused = any(told.startswith(STARTS) for told in outcome.refusals)
    if (silent := lacking & named) and not is_refused:
        told = ", ".join(sorted(silent)[:SHOWN_MAX])
        outcome.faults.append(f"{len(silent)} blobs are not served, and the log counts on them: {told}")
    return outcome


def _is_touched(spans: Sequence[tuple[str, int, int]], harms: Sequence[Harm]) -> bool:
    return any(hit.touches(*span) for hit in harms for span in spans)


class _Revived(Keeper):
    """A node that begins on a directory that others have left."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.packed = directory / DATA, True
        store = Store(directory / STATE)
        self.state = State.over_store(directory / STATE, store)
        self.log = Log(self.state)
        self.dice = random.Random(7)
        self.later_s = 120.0
        try:
            self.start()
        except BaseException:
            store.close()
            raise


def _start(outcome: Outcome, files: NodeFiles) -> None:
    """What a process of a node reads before it opens its disk."""
    with outcome.refusing("node.json"):
        config = files.read_config()
        with outcome.refusing("credential"):
            contexts = MemberContexts(files.credential(), config.identity)
            contexts.credential.require_address(config.address)
        read_known(files.known, config.coordinators)
    with outcome.refusing("instance"), files.lock_directory() as lock:
        begin(files.instance, "n1", lock)


async def _live(keeper: Keeper, model: Model, outcome: Outcome, life: str) -> set[str]:
    """One life of a process: it serves, it looks after its disk, it serves again."""
    await _serve(keeper, model, outcome, life)
    cycle = keeper.custody.scrubber._load()
    if life == STARTS[0] and cycle.since_ms not in (0, *model.since_ms):
        outcome.faults.append(f"{life}: all was read since {cycle.since_ms}, of {model.since_ms}")
    with outcome.refusing(f"{life}, scrub"):
        await _scrub(keeper, outcome)
    for name in ("compare", "collect"):
        with outcome.refusing(f"{life}, {name}"):
            try:
                await getattr(keeper.custody, name)(Pass(yes_really=True))
            except Stopped as why:
                outcome.refusals.append(str(why))
    for _ in range(TRIES):
        with outcome.refusing(f"{life}, chunks"):
            await _repair_chunks(keeper)
    for work in (
        keeper.custody.settle_losses,
        keeper.custody.packing.do_due,
        keeper.custody.orphans.delete_orphans,
    ):
        with outcome.refusing(f"{life}, {work.__qualname__}"):
            await work()
    _look_at_quarantine(keeper, model, outcome)
    _finish_partial(keeper, model, outcome)
    served = await _serve(keeper, model, outcome, life)
    await keeper.custody.close()
    return served


async def _repair_chunks(keeper: Keeper) -> None:
    """Look after damaged chunks, which no other node can send here, and collect the others."""
    keeper.custody.cold._repair._rests_until_s = 0.0
    await keeper.custody.cold.do_due()


async def _serve(keeper: Keeper, model: Model, outcome: Outcome, life: str) -> set[str]:
    """Which of the blobs are handed out; whatever is handed out hashes to its name."""
    served = set()
    for name in model.blobs:
        try:
            content = await keeper.disk.run(_read, keeper, name)
        except BlobDamaged as damage:
            await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, damage)
        except BlobMissing:
            await miss(keeper.disk, keeper.blobs, name)
        except (FilestoreError, OSError) as error:
            outcome.refusals.append(f"{life}: {error}")
        else:
            served.add(name)
            if _name(content) != name:
                outcome.faults.append(f"{life}: other bytes are served as {name}")
    return served


def _read(keeper: Keeper, name: str) -> bytes:
    """As a download reads it."""
    return cold_store.read(keeper.blobs, name)


async def _scrub(keeper: Keeper, outcome: Outcome) -> None:
    """A whole cycle, by order."""
    order = keeper.custody.orders["scrub"]
    order.give(f"order-{keeper.log.asked}", yes_really=True)
    cycle = await keeper.custody.scrubber.do_due(keeper.cycle())
    if not cycle.is_over:
        outcome.refusals.append("the scrub did not get to its end")


def _look_at_quarantine(keeper: Keeper, model: Model, outcome: Outcome) -> None:
    """A segment that salvage would take is right, or none is given."""
    with outcome.refusing("quarantine"):
        found = Quarantine(keeper.blobs).open(model.quarantined)
        if found is None:
            return
        with found:
            found.read(found.size_bytes)
            if found._whole.hexdigest() != model.quarantined and found.put_back():
                outcome.faults.append("a damaged blob was put back from quarantine")


def _finish_partial(keeper: Keeper, model: Model, outcome: Outcome) -> None:
    """Fetch what is missing of a partial replica: it comes into place as its name says, or not at all."""
    content = random.Random(model.large_seed).randbytes(LARGE_BYTES)
    blob, hasher = FinishedBlob(model.partial, len(content)), SegmentHasher()
    hasher.update(content)
    with outcome.refusing("partial"):
        partial = PartialStore(keeper.blobs).open(blob, hasher.sums())
        try:
            for first, stop in partial.missing_segments():
                _fill(partial, content, first, stop)
            whole = SegmentHasher()
            partial.hash_until(whole, len(content))
            partial.install(whole)
        finally:
            partial.close()
        if _read(keeper, model.partial) != content:
            outcome.faults.append("a partial replica became another content")


def _look_at_uploads(keeper: Keeper, model: Model, harms: Sequence[Harm], outcome: Outcome) -> None:
    """Each goes on where it was promised to, or before that; a finished one is the content that came."""
    uploads = UploadStore(keeper.blobs)
    try:
        for upload_id, promised in model.uploads.items():
            with outcome.refusing(f"upload {upload_id}"), uploads.open(upload_id, UPLOAD_BYTES) as upload:
                _judge_upload(keeper, upload_id, promised, harms, outcome, upload.offset)
                if upload.finished is not None and upload.finished.sha256 != _name(promised.content()):
                    outcome.faults.append(f"upload {upload_id} is finished with the content of another one")
    finally:
        uploads.close()


def _judge_upload(
    keeper: Keeper, upload_id: str, promised: Upload, harms: Sequence[Harm], outcome: Outcome, offset: int
) -> None:
    area = f"uploads/{upload_id}"
    if offset > promised.acknowledged:
        outcome.faults.append(f"upload {upload_id} goes on at {offset}, {promised.acknowledged} bytes came")
    is_harmed = any(name.startswith(area) for hit in harms for name, _, _ in hit.spans)
    is_placed = promised.is_finished and any(_name(promised.content()) in str(hit) for hit in harms)
    if offset < promised.acknowledged and not is_harmed and not is_placed:
        outcome.faults.append(f"upload {upload_id} goes on at {offset} though nothing of it was touched")
    if not any(hit.touches(f"{area}/data") for hit in harms) and not promised.is_finished:
        lying = (keeper.directory / area / "data").read_bytes()[:offset]
        if lying != promised.content()[:offset]:
            outcome.faults.append(f"upload {upload_id} has other bytes below its offset {offset}")


def _sign_in(data: Path) -> None:
    """The small files of a node that has joined."""
    now = datetime.now(UTC)
    root_pem, root_key = new_root(CLUSTER, now=now)
    authority = Authority(root_pem, *new_intermediate(root_pem, root_key, CLUSTER, now=now))
    files, identity = NodeFiles(data), Identity(CLUSTER, Role.NODE, "n1")
    write_durable(files.root, root_pem.encode())
    signed_in(identity, data, authority)
    files.write_config(
        NodeConfig(
            id="n1",
            cluster=CLUSTER,
            address="127.0.0.1",
            api_port=7001,
            peer_port=7002,
            coordinators=_COORDINATORS,
        )
    )
    write_known(files.known, _COORDINATORS)
    _sign_in_again(data)


def _sign_in_again(data: Path) -> None:
    """One more start."""
    files = NodeFiles(data)
    with files.lock_directory() as lock:
        begin(files.instance, "n1", lock)


def _store(keeper: Keeper, dice: random.Random, size_bytes: int = 0, content: bytes = b"") -> str:
    content = content or dice.randbytes(size_bytes or dice.randrange(50, SMALL_BYTES_MAX))
    name = keeper.put(content)
    keeper.state.done(create(ADMIN, f"file-{name}"))
    keeper.state.done(complete(ADMIN, f"file-{name}", name, ["n1", "n2", "n3"], size_bytes=len(content)))
    return name


def _make_files(keeper: Keeper, dice: random.Random) -> None:
    """Blobs that are files: large ones, and small ones of an older release."""
    _store(keeper, dice, LARGE_BYTES)
    keeper.packed = False
    for _ in range(2):
        _store(keeper, dice)
    keeper.packed = True


def _begin_uploads(keeper: Keeper, model: Model, dice: random.Random) -> None:
    for number in range(2):
        upload_id = f"0191e0a0-0000-7000-8000-00000000000{number}"
        model.uploads[upload_id] = Upload(dice.randrange(1 << 30), 0)
        _go_on(keeper, upload_id, model.uploads[upload_id])


def _go_on(keeper: Keeper, upload_id: str, promised: Upload) -> None:
    """Some more bytes of an upload come, and are promised."""
    uploads = UploadStore(keeper.blobs)
    with uploads.open(upload_id, UPLOAD_BYTES) as upload:
        upload.enter_epoch(3)
        content = promised.content()
        upload.append(content[upload.offset : upload.offset + 100_000 + promised.seed % 50_000])
        promised.acknowledged = upload.sync()
    uploads.close()


def _finish_uploads(keeper: Keeper, model: Model, dice: random.Random) -> None:
    """Two of which all has come, and the log has not been told yet."""
    for number in range(2, 4):
        upload_id = f"0191e0a0-0000-7000-8000-00000000000{number}"
        promised = model.uploads[upload_id] = Upload(dice.randrange(1 << 30), UPLOAD_BYTES, is_finished=True)
        uploads = UploadStore(keeper.blobs)
        with uploads.open(upload_id, UPLOAD_BYTES) as upload:
            upload.append(promised.content())
            upload.sync()
            upload.finish()
        uploads.close()


def _quarantine(keeper: Keeper, dice: random.Random) -> str:
    """A blob that was found damaged."""
    name = _store(keeper, dice, LARGE_BYTES)
    change_byte(keeper.path(name), 17)

    async def find() -> None:
        try:
            await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name)
        except BlobDamaged:
            await keeper.custody.settle_losses()

    asyncio.run(find())
    return name


def _begin_partial(keeper: Keeper, model: Model) -> str:
    """The first segment of a replica has come."""
    content = random.Random(model.large_seed).randbytes(LARGE_BYTES)
    hasher, name = SegmentHasher(), _name(content)
    hasher.update(content)
    partial = PartialStore(keeper.blobs).open(FinishedBlob(name, len(content)), hasher.sums())
    _fill(partial, content, 0, 1)
    partial.close()
    return name


def _fill(partial: object, content: bytes, first: int, stop: int) -> None:
    """Segments of a partial replica come, and are kept."""
    writer = partial.writer(first, stop)  # type: ignore[attr-defined]
    writer.write(content[first * SEGMENT_BYTES : stop * SEGMENT_BYTES])
    partial.keep(first, stop)  # type: ignore[attr-defined]


def _note_scrubbed(keeper: Keeper, model: Model) -> None:
    model.since_ms.append(keeper.custody.scrubber._load().since_ms)


def _bytes_of(keeper: Keeper, name: str) -> list[tuple[str, int, int]]:
    """What on the disk a blob cannot do without."""
    found = keeper.blobs.packed.find(name)
    if found is None and cold_store.is_cold(keeper.blobs, name):
        return _bytes_of_cold(keeper, name)
    if found is None:
        path = keeper.path(name).relative_to(keeper.directory).as_posix()
        return [(path, 0, WHOLE), (f"{path}.sums", 0, WHOLE)]
    start = found.place.offset
    return [(f"packs/{pack_name(found.place.pack)}", start, start + HEAD_BYTES + found.length)]


def _bytes_of_cold(keeper: Keeper, name: str) -> list[tuple[str, int, int]]:
    """The manifest, and a record for each chunk."""
    found = [(f"cold/{name[:2]}/{name}", 0, WHOLE)]
    with keeper.blobs.cold.open(name) as blob:
        for chunk_id in blob.manifest.ids():
            (row, *_) = keeper.blobs.cold.chunks.packs.index.copies(chunk_id)
            start = row.place.offset
            found.append((f"chunks/{pack_name(row.place.pack)}", start, start + HEAD_BYTES + row.length))
    return found


def _freeze_versions(keeper: Keeper, first: int) -> None:
    """Versions of one disk turn cold; each has chunks of the one before."""
    for number in range(first, first + COLD_VERSIONS):
        content = cold_store.version(number, size_bytes=COLD_BYTES)
        cold_store.freeze(keeper.blobs, _store(keeper, random.Random(number), content=content))


def _keep(keeper: Keeper, target: Path) -> None:
    """A copy of the directory as it lies there, as if the process were killed now."""
    target.mkdir(parents=True)
    shutil.copytree(keeper.directory, target / DATA, symlinks=True)
    keeper.state.store.checkpoint()
    copy_database(keeper.state.path, target / STATE)


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
