"""Packs of a directory of their own, which are small, so that few blobs fill several."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.store import PackStore
from tests.unit.node.packs.pack_acts import PACK_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "packs"


@pytest.fixture
def store(path: Path) -> Iterator[PackStore]:
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as opened:
        yield opened
