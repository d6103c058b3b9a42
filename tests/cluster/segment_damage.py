"""Damage done to segments of replicas, and a model of which bytes of a content that leaves."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.storage.segments import SEGMENT_BYTES
from tests.blobs_on_disk import change_byte

KINDS = ("flip", "zero", "cut")
Range = tuple[int, int]  # the first byte, and the one after the last


def zero(path: Path, start: int, stop: int) -> None:
    """Write zeros over these bytes."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))
    path.chmod(0o400)


def cut(path: Path, size_bytes: int) -> None:
    """Let the file end here."""
    path.chmod(0o600)
    os.truncate(path, size_bytes)
    path.chmod(0o400)


class DamagedContent:
    """One content on several nodes: `sound` are the segments that are as they should be, by node."""

    def __init__(self, content: bytes, replicas: Mapping[str, Path]) -> None:
        self.content = content
        self.replicas = replicas
        self.sound: dict[str, set[int]] = {name: set(range(self.segments)) for name in replicas}

    @property
    def segments(self) -> int:
        return -(-len(self.content) // SEGMENT_BYTES)

    def damage(self, dice: random.Random, node: str, segment: int) -> None:
        """Damage a segment of one replica, and with a cut all that follow."""
        kind, (start, stop) = dice.choice(KINDS), self.range_of(segment)
        path = self.replicas[node]
        if kind == "cut" and start < path.stat().st_size:
            cut(path, start + dice.randrange(stop - start))
            self.sound[node] -= set(range(segment, self.segments))
            return
        if stop > path.stat().st_size:  # it was cut before
            return
        if kind == "flip":
            change_byte(path, start + dice.randrange(stop - start))
        else:
            zero(path, start, stop)
        self.sound[node].discard(segment)

    def range_of(self, segment: int) -> Range:
        """Where it lies in the content."""
        start = segment * SEGMENT_BYTES
        return start, min(start + SEGMENT_BYTES, len(self.content))

    def recoverable(self) -> set[int]:
        """The segments that are sound in one replica at least."""
        return set().union(*self.sound.values())

    def lost(self) -> list[Range]:
        """The bytes that are in no replica, joined where they touch."""
        found: list[Range] = []
        for segment in sorted(set(range(self.segments)) - self.recoverable()):
            start, stop = self.range_of(segment)
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        return found

    def ranges(self) -> Iterator[tuple[Range, bool]]:
        """Each segment's bytes, and whether they can be had."""
        recoverable = self.recoverable()
        for segment in range(self.segments):
            yield self.range_of(segment), segment in recoverable


def lost_ranges(told: Sequence[Mapping[str, Any]]) -> list[Range]:
    """As the API tells them, both ends included."""
    return [(each["first"], each["last"] + 1) for each in told]
