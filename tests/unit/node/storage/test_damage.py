"""Damage of a local blob: found, out of service at once, counted by nobody, replaced by the next copy."""

import hashlib
import os
from pathlib import Path

import pytest

from node.peer.client import PeerFailed
from node.storage.blobs import BlobStore
from node.storage.damage import verify_blob
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged, BlobMissing, FinishedBlob
from node.uploads.replicate import _Attempt
from tests.unit.peer_nodes import CONTENT, SHA256, Node, download, get

BLOB = FinishedBlob(SHA256, len(CONTENT))


async def head(node: Node, source: str, query: str = "") -> int:
    async with node.services.peers.request(source, "HEAD", f"/blobs/{SHA256}{query}") as answer:
        return answer.status


def damaged_segments(node: Node) -> float:
    value = node.registry.get_sample_value("filestore_damaged_segments_total")
    assert value is not None
    return value


async def test_damage_that_a_download_meets_goes_to_quarantine(nodes: list[Node]) -> None:
    nodes[0].store()
    nodes[1].store()
    nodes[0].damage(5_000_000)
    assert await download(nodes[0], ["n1", "n2"]) == CONTENT
    assert [name for name, _ in Quarantine(nodes[0].services.blobs).names()] == [SHA256]
    assert await head(nodes[1], "n1") == 404
    assert damaged_segments(nodes[0]) == 1


async def test_damage_that_a_peer_meets_at_once_is_refused_and_goes_to_quarantine(nodes: list[Node]) -> None:
    nodes[1].store()
    nodes[1].damage(0)
    assert (await get(nodes[0], "n2"))[0] == 503
    assert await head(nodes[0], "n2") == 404
    assert not nodes[1].blob_path().exists()


async def test_damage_that_a_peer_meets_in_the_middle_goes_to_quarantine(nodes: list[Node]) -> None:
    nodes[1].store()
    nodes[1].damage(8_500_000)
    with pytest.raises(PeerFailed):
        await get(nodes[0], "n2")
    while await head(nodes[0], "n2") != 404:  # it moves the blob after it broke the connection
        pass


async def test_file_without_its_sidecar_goes_to_quarantine_when_it_is_asked_for(nodes: list[Node]) -> None:
    nodes[1].store()
    nodes[1].blob_path().with_name(SHA256 + ".sums").unlink()
    assert await head(nodes[0], "n2") == 404
    assert not nodes[1].blob_path().exists()
    assert damaged_segments(nodes[1]) == 0


async def test_damage_that_nobody_met_yet_is_not_counted_as_a_copy(nodes: list[Node]) -> None:
    nodes[1].store()
    nodes[1].damage(8_999_990)
    assert await head(nodes[0], "n2") == 200
    assert await head(nodes[0], "n2", "?verify=1") == 404
    assert await head(nodes[0], "n2") == 404


async def test_copy_replaces_damage_that_nobody_met_yet(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.store()
    nodes[1].damage(8_999_990)
    assert await nodes[0].services.replication._copy_to(["n2"], BLOB) == ["n2"]
    assert nodes[1].blob_path().read_bytes() == CONTENT


async def test_put_replaces_damage_that_nobody_met_yet(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.store()
    nodes[1].damage(8_999_990)
    assert await nodes[0].services.replication._send(_Attempt("n2"), BLOB)
    assert nodes[1].blob_path().read_bytes() == CONTENT


def lay(node: Node, content: bytes) -> None:
    """Content with its own checksums, under the name of other content: as a disk that mixes files up does."""
    put(node.services.blobs, name := hashlib.sha256(content).hexdigest(), content)
    right = node.blob_path().parents[2] / name[:2] / name[2:4] / name
    node.blob_path().parent.mkdir(parents=True, exist_ok=True)
    for ending in (".sums", ""):
        right.with_name(name + ending).rename(node.blob_path().with_name(SHA256 + ending))


@pytest.mark.parametrize("size_bytes", [700, len(CONTENT)])
async def test_other_content_under_the_name_is_not_counted_and_gives_way_to_a_copy(
    nodes: list[Node], size_bytes: int
) -> None:
    nodes[0].store()
    lay(nodes[1], os.urandom(size_bytes))
    assert await head(nodes[0], "n2", "?verify=1") == 404
    lay(nodes[1], os.urandom(size_bytes))
    assert await nodes[0].services.replication._send(_Attempt("n2"), BLOB)
    assert nodes[1].blob_path().read_bytes() == CONTENT


async def test_what_was_read_and_has_its_name_is_not_read_again_until_it_changes(nodes: list[Node]) -> None:
    services, store = nodes[0].services, nodes[0].services.blobs
    nodes[0].store()
    os.utime(nodes[0].blob_path(), ns=(0, 0))
    while True:  # until a change of the file would show
        await verify_blob(services.disk, store, services.metrics, SHA256)
        with store.open(SHA256) as blob:
            if blob.has_its_name():
                break
    lay(nodes[0], os.urandom(700))
    with pytest.raises(BlobDamaged, match="other content"):
        await verify_blob(services.disk, store, services.metrics, SHA256)


async def test_name_found_wrong_or_damage_ends_all_trust(nodes: list[Node]) -> None:
    store = nodes[0].services.blobs
    nodes[0].store()
    with store.open(SHA256) as blob:
        os.utime(nodes[0].blob_path(), ns=(0, 0))
        whole = blob.begin()
        while not blob.has_its_name():  # until a change of the file would show
            whole = blob.begin()
            blob.trust(whole)
        assert blob.is_trusted(0, blob.size_bytes)
        blob.damage_error("as somebody found")
        assert not blob.has_its_name()
        assert not blob.is_trusted(0, blob.size_bytes)


async def test_source_that_is_damaged_makes_no_copy_and_is_removed(nodes: list[Node]) -> None:
    nodes[0].store()
    nodes[0].damage(8_999_990)
    assert await nodes[0].services.replication._copy_to(["n2"], BLOB) == []
    assert not nodes[0].services.blobs.has(SHA256)
    assert not nodes[1].services.blobs.has(SHA256)


async def test_verified_blob_tells_its_size_and_a_missing_one_is_missing(nodes: list[Node]) -> None:
    services = nodes[0].services
    nodes[0].store()
    assert await verify_blob(services.disk, services.blobs, services.metrics, SHA256) == len(CONTENT)
    services.blobs.delete(SHA256)
    with pytest.raises(BlobMissing):
        await verify_blob(services.disk, services.blobs, services.metrics, SHA256)


async def test_blob_that_goes_while_it_is_verified_is_missing(nodes: list[Node]) -> None:
    services = nodes[0].services
    nodes[0].store()

    async def take_away(_: int) -> None:
        nodes[0].blob_path().unlink(missing_ok=True)

    with pytest.raises(BlobMissing):
        await verify_blob(services.disk, services.blobs, services.metrics, SHA256, pace=take_away)


def put(store: BlobStore, name: str, content: bytes) -> None:
    with store.receive(name, len(content)) as writer:
        writer.write(content)
        writer.finish()


@pytest.mark.parametrize("found_by_reading", [True, False])
def test_copy_that_came_meanwhile_is_not_taken_for_the_damaged_one(
    tmp_path: Path, found_by_reading: bool
) -> None:
    store = BlobStore(tmp_path / "data")
    content = CONTENT[:1000]
    name = hashlib.sha256(content).hexdigest()
    put(store, name, content)
    path = tmp_path / "data" / "blobs" / name[:2] / name[2:4] / name
    if found_by_reading:
        path.chmod(0o600)
        path.write_bytes(bytes(1000))
    else:
        path.unlink()
        path.symlink_to(os.devnull)
    with pytest.raises(BlobDamaged) as caught, store.open(name) as blob:
        blob.verify_range(0, 1000)
    put(store, name, content)
    assert not Quarantine(store).take(name, caught.value)
    assert store.has(name)
    store.close()
