"""What `make chaos` finds wrong with the answer to a client that asks for a content."""

import pytest

from node.packs.store import BLOB_BYTES_MAX
from tests.chaos.contents import LARGE_BYTES_MAX, Content
from tests.file_ledger import File

CONTENT = Content(seed=1, number=1)
RIGHT = CONTENT.bytes()
OTHER = bytes([RIGHT[0] ^ 1]) + RIGHT[1:]


@pytest.mark.parametrize(
    ("status", "body", "wrong"),
    [
        pytest.param(200, RIGHT, "", id="whole"),
        pytest.param(200, OTHER, "wrong bytes", id="one bit is another"),
        pytest.param(200, RIGHT[:-1], f"{len(RIGHT) - 1} of {len(RIGHT)} bytes", id="cut short"),
        pytest.param(404, b"", "404, and nobody has deleted it", id="lost"),
        pytest.param(410, b"", "410, and nobody has deleted it", id="gone"),
    ],
)
def test_content_that_was_acknowledged_is_read_whole(status: int, body: bytes, wrong: str) -> None:
    assert File("f", CONTENT).wrong_with(status, body, was_deleted=False) == wrong


@pytest.mark.parametrize(("status", "body"), [(200, RIGHT), (404, b"")])
def test_content_under_deletion_is_read_whole_or_not_at_all(status: int, body: bytes) -> None:
    stored = File("f", CONTENT, is_deletion_asked=True)

    assert stored.wrong_with(status, body, was_deleted=False) == ""
    assert stored.wrong_with(200, OTHER, was_deleted=False) == "wrong bytes"


def test_content_whose_deletion_was_acknowledged_is_not_read() -> None:
    stored = File("f", CONTENT, is_deletion_asked=True, is_deleted=True)

    assert stored.wrong_with(404, b"", was_deleted=True) == ""
    assert "is there" in stored.wrong_with(200, RIGHT, was_deleted=True)


def test_contents_are_small_and_large_and_at_the_boundary_of_packs() -> None:
    sizes = [Content(7, number).size_bytes for number in range(400)]

    assert {1, BLOB_BYTES_MAX, BLOB_BYTES_MAX + 1} < set(sizes)
    assert 1 <= min(sizes) <= max(sizes) <= LARGE_BYTES_MAX
    assert 0.7 < sum(size <= BLOB_BYTES_MAX for size in sizes) / len(sizes) < 0.95
