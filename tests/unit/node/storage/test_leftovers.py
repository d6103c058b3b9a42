"""What the disk does not let go is tried again."""

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import FilestoreError
from node.staging.upload_store import UploadStore
from node.storage.blob_files import INCOMING
from node.storage.blobs import BlobStore
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged
from tests.packed_blobs import rot_packed
from tests.unit.packed_store import CONTENT, NAME, put

FILE_UUID = "01a227d5-66fd-7293-a8db-93132b2d8c87"
Act = Callable[[], object]


def install(store: BlobStore, _directory: Path) -> Act:
    return lambda: put(store, CONTENT, packed=False)


def take_packed(store: BlobStore, directory: Path) -> Act:
    put(store, CONTENT)
    rot_packed(directory, NAME)
    with pytest.raises(BlobDamaged) as caught:
        store.open(NAME)
    return lambda: Quarantine(store).take(NAME, caught.value)


def finish(store: BlobStore, _directory: Path) -> Act:
    upload = UploadStore(store).open(FILE_UUID, len(CONTENT))
    upload.append(CONTENT)
    return upload.finish


def go_on_from_its_beginning(store: BlobStore, _directory: Path) -> Act:
    finish(store, _directory)()
    uploads = UploadStore(store)
    upload = uploads.open(FILE_UUID, len(CONTENT))
    return lambda: uploads.reopen(upload, 1000)


@pytest.mark.parametrize("prepare", [install, take_packed, finish, go_on_from_its_beginning])
def test_file_that_got_no_other_name_goes_with_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[BlobStore, Path], Act]
) -> None:
    def refuse(*_names: object, **_options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def half_written() -> list[str]:
        return [path.name for path in (tmp_path / "uploads").iterdir() if path.name.startswith(INCOMING)]

    with closing(BlobStore(tmp_path)) as store:
        act = prepare(store, tmp_path)
        with monkeypatch.context() as failing:
            for call in ("rename", "unlink"):
                failing.setattr(os, call, refuse)
            with pytest.raises(FilestoreError):
                act()
        assert half_written()
        store.leftovers.retry()
        assert not half_written()


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
