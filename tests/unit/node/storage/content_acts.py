"""Content as it comes to a node's disk: what a process does with it while the disk is recorded."""

import hashlib
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from node.staging.upload_file import UploadFile
from node.staging.upload_store import UploadStore
from node.storage import partial_blob, segments
from node.storage.blobs import BlobStore
from node.storage.partial_store import PartialStore
from node.storage.segments import FinishedBlob, SegmentHasher, SegmentSums

SEGMENT_BYTES: Final = 2048
SEGMENTS: Final = 4  # of each content; the last one is short
ROUNDS: Final = 2
RIGHT_BYTES: Final = 1500  # of an upload, before a piece that is wrong
Note = Callable[[str], None]


def content_of(what: str, number: int) -> bytes:
    size_bytes = (SEGMENTS - 1) * SEGMENT_BYTES + 700
    return random.Random(f"{what} {number}").randbytes(size_bytes)


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number))


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def described(content: bytes) -> tuple[FinishedBlob, SegmentSums]:
    hasher = SegmentHasher()
    hasher.update(content)
    return FinishedBlob(hasher.sha256(), len(content)), hasher.sums()


@contextmanager
def opened(root: Path) -> Iterator[tuple[BlobStore, PartialStore, UploadStore]]:
    with closing(BlobStore(root)) as blobs, closing(UploadStore(blobs)) as uploads:
        yield blobs, PartialStore(blobs), uploads


def use_small_segments() -> None:
    """In this process, for good."""
    for module in (segments, partial_blob):
        vars(module)["SEGMENT_BYTES"] = SEGMENT_BYTES


def receive_content(root: Path, note: Note) -> None:
    """Replicas that are pushed, and pulled, and uploads, all in turns."""
    use_small_segments()
    with opened(root) as (blobs, partials, uploads):
        for number in range(ROUNDS):
            push(blobs, number, note)
            pull(partials, number, note)
            with uploads.open(uuid_of(number), None) as upload:
                go_on(upload, number, note)


def find_content(root: Path, note: Note) -> None:
    """Tell what another process has left, as a node tells others, and go on with it."""
    with opened(root) as (blobs, partials, uploads):
        for number in range(ROUNDS):
            for what in ("pushed", "pulled"):
                if blobs.affirm(name_of(content_of(what, number))):
                    note(f"stored {what} {number}")
            pull(partials, number, note)
            with uploads.open(uuid_of(number), None) as upload:
                if upload.sha256 != name_of(content_of("uploaded", number)[: upload.offset]):
                    note(f"dropping {number} {RIGHT_BYTES}")
                    upload.rollback_to(RIGHT_BYTES)
                note(f"durable {number} {upload.durable_offset}")
                go_on(upload, number, note)


def push(blobs: BlobStore, number: int, note: Note) -> None:
    content = content_of("pushed", number)
    with blobs.receive(name_of(content), len(content)) as incoming:
        incoming.write(content[:1000])
        incoming.write(content[1000:])
        incoming.finish()
    note(f"stored pushed {number}")


def pull(partials: PartialStore, number: int, note: Note) -> None:
    content = content_of("pulled", number)
    with closing(partials.open(*described(content))) as partial:
        lacking = [index for first, stop in partial.missing_segments() for index in range(first, stop)]
        for index in sorted(lacking, key=lambda index: index ^ 2):
            start = index * SEGMENT_BYTES
            partial.writer(index, index + 1).write(content[start : start + SEGMENT_BYTES])
            partial.keep(index, index + 1)
            note(f"kept {number} {index}")
        hasher = SegmentHasher()
        partial.hash_until(hasher, len(content))
        note(f"placing {number}")
        partial.install(hasher)
    note(f"stored pulled {number}")


def go_on(upload: UploadFile, number: int, note: Note) -> None:
    """In pieces; one is wrong, and is dropped once it is durable."""
    content = content_of("uploaded", number)
    while upload.finished is None and upload.offset < len(content):
        if upload.offset == RIGHT_BYTES:
            note(f"dropping {number} {RIGHT_BYTES}")
            upload.append(b"wrong" * 100)
            upload.sync()
            upload.rollback_to(RIGHT_BYTES)
        upload.append(content[upload.offset : upload.offset + RIGHT_BYTES])
        note(f"durable {number} {upload.sync()}")
    upload.finish(name_of(content))
    note(f"stored uploaded {number}")
