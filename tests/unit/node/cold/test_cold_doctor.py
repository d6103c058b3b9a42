"""The offline check of a node's directory knows chunks and manifests."""

from contextlib import closing
from pathlib import Path

from metadata.rpc.findings import Findings
from node.cold.chunks import ChunkStore
from node.doctor import check_manifests
from node.pack_doctor import check_packs
from node.storage.blobs import BlobStore
from tests.unit.cold_store import freeze, put_file, version


def examined(path: Path) -> Findings:
    findings = Findings()
    check_packs(findings, path / "chunks", deep=True, unpack=ChunkStore(path).unpack, noun="chunk")
    check_manifests(findings, path / "cold")
    return findings


def test_sound_cold_blobs_are_counted_and_damaged_ones_named(tmp_path: Path) -> None:
    with closing(BlobStore(tmp_path)) as store:
        names = [put_file(store, version(number)) for number in range(2)]
        freeze(store, *names)
        count = store.cold.chunks.totals()[0]
    found = examined(tmp_path)
    assert found.problems == []
    assert any(f"packed chunks: {count}" in fact for fact in found.facts)
    assert any(fact.startswith("cold blobs: 2") for fact in found.facts)
    manifest = tmp_path / "cold" / names[0][:2] / names[0]
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    (tmp_path / "cold" / "ab").mkdir(exist_ok=True)
    (tmp_path / "cold" / "ab" / "stray").write_bytes(b"")
    pack = next((tmp_path / "chunks").glob("*.pack"))
    with pack.open("r+b") as file:
        file.seek(500_000)
        file.write(b"rotten")
    paths = {problem.where.name for problem in examined(tmp_path).problems}
    assert paths == {names[0], "stray", pack.name}
