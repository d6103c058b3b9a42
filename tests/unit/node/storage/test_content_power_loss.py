"""The power fails while content comes, pushed, pulled or uploaded: what was promised of it stays true."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.storage import partial_blob, segments
from node.storage.partial_blob import CONTENT
from tests.unit.disk_record import Record, Recorder
from tests.unit.disk_replay import Cut, cuts
from tests.unit.node.storage.content_acts import (
    ROUNDS,
    SEGMENT_BYTES,
    content_of,
    described,
    name_of,
    opened,
    uuid_of,
)
from tests.unit.seeds import seeds

SEEDS = seeds(range(1, 2), range(2, 20))
SEEDS_OF_KILLS = range(4, 20)
CUTS, CUTS_LONG = 6, 24


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def received(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorder.record("receive_content", tmp_path_factory.mktemp("received"))


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segments, partial_blob):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_BYTES)


def told(cut: Cut, what: str) -> Iterator[list[str]]:
    for note in cut.notes:
        kind, *facts = note.split()
        if kind == what:
            yield facts


def check(root: Path, cut: Cut) -> None:
    """What was promised before the cut, against what is left."""
    with opened(root) as (blobs, partials, uploads):
        for what, stored in told(cut, "stored"):
            content = content_of(what, int(stored))
            with blobs.open(name_of(content)) as blob:
                assert os.pread(blob.fd, len(content) + 1, 0) == content, (what, stored, cut)
                blob.verify_range(0, len(content))
        placing = {int(other) for (other,) in told(cut, "placing")}
        for number in range(ROUNDS):
            content = content_of("pulled", number)
            partial = partials.open(*described(content))
            missing = {index for first, stop in partial.missing_segments() for index in range(first, stop)}
            kept = {int(index) for other, index in told(cut, "kept") if int(other) == number}
            assert number in placing or not kept & missing, (number, cut)
            came = (root / "partials" / partial.blob.sha256 / CONTENT).read_bytes()
            for index in set(range(segments.segment_count(len(content)))) - missing:
                span = slice(index * SEGMENT_BYTES, (index + 1) * SEGMENT_BYTES)
                assert came[span] == content[span], (number, index, cut)
            partial.close()
            durable = [int(offset) for other, offset in told(cut, "durable") if int(other) == number]
            dropped = [int(offset) for other, offset in told(cut, "dropping") if int(other) == number]
            content = content_of("uploaded", number)
            with uploads.open(uuid_of(number), None) as upload:
                assert upload.offset >= max(durable, default=0), (number, cut)
                if not dropped or max(durable) > dropped[-1]:
                    assert upload.sha256 == name_of(content[: upload.offset]), (number, cut)


def lives(record: Record, path: Path, seed: int, count: int) -> Iterator[tuple[Cut, Path]]:
    for number, cut in enumerate(cuts(record, seed, count, behind="NRLUY")):
        directory = cut.put(path / f"cut-{number}")
        yield cut, directory
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_of_content_on_its_way_is_true(received: Record, tmp_path: Path, seed: int) -> None:
    for cut, root in lives(received, tmp_path, seed, CUTS if seed == 1 else CUTS_LONG):
        check(root, cut)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS_OF_KILLS)
def test_what_a_process_goes_on_with_that_another_has_left_is_durable(
    recorder: Recorder, received: Record, tmp_path: Path, seed: int
) -> None:
    """It tells others how much there is; the one before was killed at any call."""
    at = random.Random(seed).randrange(sum(call.kind != "N" for call in received.calls))
    (tmp_path / "root").mkdir()
    record = recorder.record("find_content", tmp_path / "root", str(at))
    for cut, root in lives(record, tmp_path, seed, CUTS_LONG):
        check(root, cut)
