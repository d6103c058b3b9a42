"""What the disk does not let go is tried again."""

import errno
import os
from pathlib import Path

import pytest

from node.storage.blobs import BlobStore


def test_probe_that_the_disk_does_not_let_go_goes_with_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path / "data")

    def refuse(*_names: object, **_options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="Input/output"):
            store.probe()
    assert len(list((tmp_path / "data" / "uploads").iterdir())) == 1
    store.leftovers.retry()
    assert list((tmp_path / "data" / "uploads").iterdir()) == []
    store.close()
