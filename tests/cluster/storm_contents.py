"""What a storm uploads: contents in variants, and what was told of each upload.

Each request of an upload sends another variant of its content, unless that is fixed; every block names its
own, so that what is stored tells which request brought it.
"""

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Final

from deploy.dev_cluster import Member

BLOCK_BYTES: Final = 4096
DIGEST_BYTES: Final = 32


def block(name: str, variant: int, number: int) -> bytes:
    """One block of a content."""
    return hashlib.sha256(f"{name}/{variant}/{number}".encode()).digest() * (BLOCK_BYTES // DIGEST_BYTES)


def content(name: str, variant: int, start: int, stop: int) -> bytes:
    """A stretch of one variant of a content."""
    first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
    whole = b"".join(block(name, variant, number) for number in range(first, last))
    return whole[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]


@dataclass
class Upload:
    """One upload, and what was told of it.

    `told`: the highest offset that anybody was told; none may be told a lower one by a request that begins
    later, unless it is loose, as a request may have dropped all of it. `sure`: stretches of which one request
    was told that they are durable, with its variant. `whole_stored`: the variant of a whole PUT that was
    answered with 200.
    """

    file_uuid: str
    name: str
    size: int
    is_fixed: bool
    first_holder: Member
    is_writers: bool
    told: int = 0
    variants: int = 0
    sure: list[tuple[int, int, int]] = field(default_factory=list)
    is_loose: bool = False
    is_complete: bool = False
    is_deleted: bool = False
    may_be_deleted: bool = False
    whole_stored: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def path(self) -> str:
        return f"/api/v1/files/{self.file_uuid}/content"

    def next_variant(self) -> int:
        with self.lock:
            if self.is_fixed:
                return 0
            self.variants += 1
            return self.variants

    def explained(self, found: bytes) -> str:
        """Why this cannot be what was uploaded, "" if it can."""
        if len(found) != self.size:
            return f"has {len(found)} of {self.size} bytes"
        if self.whole_stored is not None:
            is_right = found == content(self.name, self.whole_stored, 0, self.size)
            return "" if is_right else f"is not variant {self.whole_stored}, which was answered with 200"
        for start, stop, variant in self.sure:
            if found[start:stop] != content(self.name, variant, start, stop):
                return f"lacks bytes {start} to {stop} of variant {variant}, which were acknowledged"
        return self._explained_freely(found)

    def _explained_freely(self, found: bytes) -> str:
        variants = range(self.variants + 1)
        for start in range(0, self.size, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, self.size)
            blocks = [content(self.name, variant, start, stop) for variant in variants]
            part = found[start:stop]
            if (
                part not in blocks
                and not all(
                    any(part[at : at + DIGEST_BYTES] == each[at : at + DIGEST_BYTES] for each in blocks)
                    or any(  # two requests meet within these
                        _is_joined(
                            part[at : at + DIGEST_BYTES],
                            one[at : at + DIGEST_BYTES],
                            two[at : at + DIGEST_BYTES],
                        )
                        for one in blocks
                        for two in blocks
                    )
                    for at in range(0, len(part), DIGEST_BYTES)
                )
            ):
                return f"has bytes at {start} that nobody sent there"
        return ""


def _is_joined(part: bytes, one: bytes, two: bytes) -> bool:
    return any(part == one[:cut] + two[cut:] for cut in range(len(part)))
