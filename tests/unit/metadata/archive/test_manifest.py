"""What is read out of project archives: right for those that GNS3 writes, bounded for those of an enemy."""

import io
import json
import lzma
import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.archive import manifest, zip_methods, zip_reader
from metadata.archive.manifest import (
    OBJECTS_MAX,
    TOPOLOGY_BYTES_MAX,
    images_of_topology,
    manifest_at_once,
    read_manifest,
)
from metadata.model.records import Manifest, ManifestImage
from runtime.bounds import IMAGES_MAX, LABEL_CHARS_MAX

MD5 = "8d3612fe22b1a7dec118010e17e29411"
MEMORY_BYTES_MAX = 64 << 20
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@contextmanager
def opened(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("archive")
    try:
        os.write(descriptor, content) if content else None
        yield descriptor
    finally:
        os.close(descriptor)


def manifest_of(content: bytes) -> Manifest:
    with opened(content) as descriptor:
        found = read_manifest(descriptor, len(content))
    assert manifest_at_once(content) in (None, found)
    return found


def node(kind: str, **properties: object) -> dict[str, object]:
    return {"node_type": kind, "name": "n", "properties": properties, "label": {"x": 1}}


def topology(*nodes: object, **fields: object) -> dict[str, Any]:
    return {"name": "Campus", "revision": 9, "version": "2.2.53", "topology": {"nodes": nodes}, **fields}


def zipped(
    content: bytes | dict[str, Any],
    method: int = zipfile.ZIP_DEFLATED,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """An archive with this project.gns3; `files`: others, before it."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, other in files.items():
            made.writestr(name, other)
        made.writestr("project.gns3", text)
    return target.getvalue()


def raw_entry(name: bytes, body: bytes, method: int, *, size_bytes: int, crc32: int, flags: int = 0) -> bytes:
    """A whole archive of one entry, with whatever is claimed of it."""
    common = struct.pack("<5H3L", 20, flags, method, 0, 0, crc32, len(body), size_bytes)
    local = b"PK\x03\x04" + common + struct.pack("<2H", len(name), 0) + name + body
    entry = b"PK\x01\x02" + struct.pack("<H", 20) + common
    entry += struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, 0) + name
    return local + entry + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), len(local), 0)


@pytest.mark.parametrize("method", METHODS)
def test_project_tells_name_format_and_images(method: int) -> None:
    content = zipped(
        topology(
            node(
                "qemu",
                hda_disk_image="asav981.qcow2",
                hda_disk_image_md5sum=MD5.upper(),
                hdb_disk_image="",
                hdb_disk_image_md5sum=None,
                cdrom_image="C:\\images\\boot.iso",
                initrd="/opt/GNS3/initrd.gz",
            ),
            node("dynamips", image="c3725.image", image_md5sum="not one", platform="c3725"),
            node("iou", path="i86bi-linux-l3.bin", md5sum=MD5),
            node("docker", image="gns3/openvswitch:latest", path="ignored"),
            node("vpcs", startup_script_path="startup.vpc", path="ignored"),
            node("ethernet_switch"),
        ),
        method,
    )
    assert manifest_of(content) == Manifest(
        archive="gns3",
        project_name="Campus",
        format_version="9",
        images=[
            ManifestImage("asav981.qcow2", MD5),
            ManifestImage("boot.iso", ""),
            ManifestImage("initrd.gz", ""),
            ManifestImage("c3725.image", ""),
            ManifestImage("i86bi-linux-l3.bin", MD5),
            ManifestImage("gns3/openvswitch:latest", ""),
        ],
    )


def test_topology_alone_tells_its_images() -> None:
    nodes = [
        node("qemu", hda_disk_image="a/b.qcow2", hda_disk_image_md5sum=MD5),
        node("docker", image="alpine"),
    ]
    found = images_of_topology(json.dumps(topology(*nodes)).encode())
    assert found == [ManifestImage("b.qcow2", MD5), ManifestImage("alpine", "")]
    for other in (b"", b"PK", b"[" * 100_000, b"{" * (OBJECTS_MAX + 1), json.dumps(topology()).encode()):
        assert images_of_topology(other) == []


def test_images_in_the_archive_are_listed_once() -> None:
    content = zipped(
        topology(node("qemu", hda_disk_image="a.img", hda_disk_image_md5sum=MD5)),
        files={
            "images/QEMU/a": b"",
            "images/QEMU/a.img": b"a",
            "images/IOS/b.bin": b"b",
            "images/QEMU/": b"",
            "project-files/c": b"c",
        },
    )
    assert manifest_of(content).images == [
        ManifestImage("a.img", MD5),
        ManifestImage("a", ""),
        ManifestImage("b.bin", ""),
    ]


@pytest.mark.parametrize("version", ["known", "unknown"])
def test_zstd_as_gns3_writes_it(version: str) -> None:
    text = json.dumps(topology()).encode()
    compressor = zstandard.ZstdCompressor(level=19)
    if version == "known":
        body = compressor.compress(text)
    else:
        streaming = compressor.compressobj()
        body = streaming.compress(text) + streaming.flush()
    content = raw_entry(b"project.gns3", body, 93, size_bytes=len(text), crc32=zlib.crc32(text))
    assert manifest_of(content).project_name == "Campus"


def test_xz_is_read() -> None:
    text = json.dumps(topology()).encode()
    content = raw_entry(
        b"project.gns3", lzma.compress(text), 95, size_bytes=len(text), crc32=zlib.crc32(text)
    )
    assert manifest_of(content).project_name == "Campus"


def test_zip64_and_a_program_in_front_and_a_comment_are_read() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", allowZip64=True) as made:
        with made.open("project.gns3", "w", force_zip64=True) as file:
            file.write(json.dumps(topology()).encode())
        made.comment = b"PK\x05\x06" + b"x" * 1000
    content = target.getvalue()
    assert manifest_of(content).archive == "gns3"
    assert manifest_of(b"#!/bin/sh\n" + content).archive == "gns3"
    assert manifest_of(zipped(topology()) + b"\0\0").archive == "gns3"  # Python's zipfile forgives it too


def test_zip64_end_record_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    content = zipped(topology(), files={"a": b"", "b": b""})
    assert b"PK\x06\x06" in content
    assert manifest_of(content).archive == "gns3"
    assert manifest_of(b"MZ" + content).archive == "gns3"
    assert manifest_of(content.replace(b"PK\x06\x06", b"PK\x06\x00")).archive == "damaged"


@pytest.mark.parametrize("content", [b"", b"PK", b"\x1f\x8b" + bytes(100), bytes(200_000), b"PK\x05\x06 no"])
def test_other_content_is_other(content: bytes) -> None:
    expected = "damaged" if content.startswith(b"PK\x05\x06") else "other"
    assert manifest_of(content) == Manifest(archive=expected)  # type: ignore[arg-type]


def test_zip_without_a_project_is_other() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        made.writestr("sub/project.gns3", json.dumps(topology()))
    assert manifest_of(target.getvalue()) == Manifest(archive="other")
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    assert manifest_of(empty.getvalue()) == Manifest(archive="other")


def test_archive_that_was_cut_off_is_damaged() -> None:
    content = zipped(topology(), files={"images/QEMU/a": os.urandom(1000)})
    for length in (5, 40, len(content) // 2, len(content) - 1):
        assert manifest_of(content[:length]) == Manifest(archive="damaged")
    assert manifest_at_once(content[:40]) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"name": "x"} more',
        b"[" * 100_000,
        b'{"x":' * 100_000,
        b'{"topology": {"nodes": [1]}}',
        b'{"topology": {"nodes": [{"properties": {"image": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}]}}",
    ],
)
def test_project_that_is_no_topology_is_damaged(text: bytes) -> None:
    assert manifest_of(zipped(text)) == Manifest(archive="damaged")


@pytest.mark.parametrize(
    ("fields", "name", "revision"),
    [
        ({"name": 7, "revision": "9"}, "", "9"),
        ({"name": None, "revision": None, "topology": None}, "", ""),
        ({"name": "a\0b\x1b\n", "revision": -1}, "a_b__", ""),
        ({"name": "\u00fc" * 400, "revision": 10**30}, "\u00fc" * LABEL_CHARS_MAX, ""),
        ({"name": "x", "revision": 1.5, "topology": {"nodes": None}}, "x", ""),
    ],
)
def test_fields_of_any_type_do_no_harm(fields: dict[str, object], name: str, revision: str) -> None:
    found = manifest_of(zipped(topology(**fields)))
    assert (found.archive, found.project_name, found.format_version) == ("gns3", name, revision)


def test_images_of_any_type_do_no_harm() -> None:
    values: tuple[object, ...] = (None, 1, [], {}, "", "  ", "dir/", "a\0b", "x" * 4000, True)
    nodes = [node("qemu", hda_disk_image=value, hda_disk_image_md5sum=value) for value in values]
    shown = [image.filename for image in manifest_of(zipped(topology(*nodes, {"properties": None}))).images]
    assert shown == ["  ", "a_b", "x" * LABEL_CHARS_MAX]


def test_images_beyond_the_bound_are_left_out_and_that_is_said() -> None:
    def of(count: int) -> Manifest:
        nodes = [node("qemu", hda_disk_image=f"{number}.img") for number in range(count)]
        return manifest_of(zipped(topology(*nodes)))

    assert (len(of(IMAGES_MAX).images), of(IMAGES_MAX).truncated) == (IMAGES_MAX, False)
    assert (len(of(IMAGES_MAX + 1).images), of(IMAGES_MAX + 1).truncated) == (IMAGES_MAX, True)
    many = {f"images/QEMU/{number}": b"" for number in range(IMAGES_MAX + 50)}
    found = manifest_of(zipped(topology(), files=many))
    assert (len(found.images), found.truncated) == (IMAGES_MAX, True)


def test_names_that_are_no_text_are_shown_as_far_as_they_go() -> None:
    content = zipped(topology(), files={"images/QEMU/abcd": b""}).replace(b"abcd", b"a\x00\xff\x1b")
    assert [image.filename for image in manifest_of(content).images] == ["a_\u00a0_"]


def peak_bytes(content: bytes) -> tuple[Manifest, int]:
    """The manifest and the most memory that reading it took, beside the archive itself."""
    with opened(content) as descriptor:
        tracemalloc.start()
        try:
            found = read_manifest(descriptor, len(content))
            return found, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("method", METHODS[1:])
def test_bomb_is_not_unpacked_whatever_it_claims(method: int) -> None:
    bomb = zipped(bytes(80 << 20), method)
    found, peak = peak_bytes(bomb)
    assert found == Manifest(archive="gns3", truncated=True)
    assert peak < MEMORY_BYTES_MAX
    claimed = struct.pack("<L", 80 << 20)
    found, peak = peak_bytes(bomb.replace(claimed, struct.pack("<L", 1000)))
    assert found == Manifest(archive="damaged")
    assert peak < MEMORY_BYTES_MAX


def test_zstd_bomb_is_not_unpacked_whatever_it_claims() -> None:
    body = zstandard.ZstdCompressor(level=1).compress(bytes(80 << 20))
    found, peak = peak_bytes(raw_entry(b"project.gns3", body, 93, size_bytes=TOPOLOGY_BYTES_MAX, crc32=0))
    assert found == Manifest(archive="damaged")
    assert peak < MEMORY_BYTES_MAX


@pytest.mark.parametrize(
    ("method", "piece"),
    [(8, b"\0\0\0\xff\xff"), (93, zstandard.ZstdCompressor().compress(b"")), (0, b"x" * 5)],
)
def test_input_that_never_yields_anything_ends(
    method: int, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_methods, "INPUT_BYTES_MAX", 1_000_000)
    body = piece * 400_000
    content = raw_entry(b"project.gns3", body, method, size_bytes=3_000_000, crc32=0)
    assert manifest_of(content) == Manifest(archive="damaged")


@pytest.mark.parametrize("size_bytes", [TOPOLOGY_BYTES_MAX, TOPOLOGY_BYTES_MAX + 1])
def test_topology_is_read_up_to_its_bound(size_bytes: int) -> None:
    text = json.dumps(topology()).encode().ljust(size_bytes)
    found = manifest_of(zipped(text))
    assert (found.project_name, found.truncated) == (
        ("Campus", False) if size_bytes == TOPOLOGY_BYTES_MAX else ("", True)
    )


def test_topology_of_very_many_nodes_takes_bounded_memory() -> None:
    nodes = b",".join([b'{"properties":{}}'] * (OBJECTS_MAX // 2 - 10))
    found, peak = peak_bytes(zipped(b'{"topology":{"nodes":[' + nodes + b"]}}"))
    assert found == Manifest(archive="gns3")
    assert peak < MEMORY_BYTES_MAX
    more = b",".join([b"{}"] * (OBJECTS_MAX + 1))
    found, peak = peak_bytes(zipped(b'{"topology":{"nodes":[' + more + b"]}}"))
    assert found == Manifest(archive="gns3", truncated=True)
    assert peak < MEMORY_BYTES_MAX


def directory_of(count: int, *, name: bytes = b"n", extra: bytes = b"") -> bytes:
    """An archive that is nothing but a directory of so many entries, each over the same bytes."""
    entry = b"PK\x01\x02" + struct.pack("<7H", 20, 20, 0, 0, 0, 0, 0)[:12] + struct.pack("<3L", 0, 0, 0)
    entry += struct.pack("<5H2L", len(name), len(extra), 0, 0, 0, 0, 0) + name + extra
    local = b"PK\x03\x04" + bytes(26) + name
    size_bytes = len(entry) * count
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, size_bytes, len(local), 0
    )
    return local + entry * count + end


@pytest.mark.parametrize(("count", "extra"), [(400_000, b""), (300, b"x" * 65_535)])
def test_directory_without_end_is_looked_at_as_far_as_its_bound(count: int, extra: bytes) -> None:
    found, peak = peak_bytes(directory_of(count, extra=extra))
    assert found == Manifest(archive="other", truncated=True)
    assert peak < MEMORY_BYTES_MAX


def test_project_in_a_very_large_directory_is_read_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        made.writestr("project.gns3", json.dumps(topology()))
        for number in range(20):
            made.writestr(f"project-files/{number}", b"")
    assert not manifest_of(target.getvalue()).truncated
    monkeypatch.setattr(zip_reader, "ENTRIES_MAX", 10)
    found = manifest_of(target.getvalue())
    assert (found.project_name, found.truncated) == ("Campus", True)


def test_project_behind_the_bound_of_a_very_large_directory_is_not_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        for number in range(10):
            made.writestr(f"project-files/{number}", b"")
        made.writestr("project.gns3", json.dumps(topology()))
    monkeypatch.setattr(zip_reader, "ENTRIES_MAX", 10)
    assert manifest_of(target.getvalue()) == Manifest(archive="other", truncated=True)
    monkeypatch.setattr(zip_reader, "ENTRIES_MAX", 11)
    found = manifest_of(target.getvalue())
    assert (found.archive, found.truncated) == ("gns3", False)


def test_entries_that_overlap_or_reach_beyond_the_file_do_no_harm() -> None:
    text = json.dumps(topology()).encode()
    good = raw_entry(b"project.gns3", text, 0, size_bytes=len(text), crc32=zlib.crc32(text))
    assert manifest_of(good).archive == "gns3"
    entry = good.index(b"PK\x01\x02")
    for place, value in ((20, 0xFFFFFFFE), (42, 0xFFFFFFFE), (20, 0xFFFFFFFF), (42, 3), (24, 1)):
        bad = bytearray(good)
        struct.pack_into("<L", bad, entry + place, value)
        assert manifest_of(bytes(bad)) == Manifest(archive="damaged"), place


@pytest.mark.parametrize("flags", [0x1, 0x41])
def test_encrypted_project_is_damaged(flags: int) -> None:
    content = raw_entry(b"project.gns3", b"{}", 0, size_bytes=2, crc32=zlib.crc32(b"{}"), flags=flags)
    assert manifest_of(content) == Manifest(archive="damaged")


def test_unknown_method_is_damaged() -> None:
    content = raw_entry(b"project.gns3", b"{}", 97, size_bytes=2, crc32=zlib.crc32(b"{}"))
    assert manifest_of(content) == Manifest(archive="damaged")


def test_failing_disk_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(OSError):
            read_manifest(descriptor, 100)
    finally:
        os.close(descriptor)


SAMPLES = [
    zipped(topology(node("qemu", hda_disk_image="a.img")), method, files={"images/QEMU/b": b"b" * 50})
    for method in METHODS
]
CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=8)), max_size=6)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SAMPLES), CHANGES, st.integers(0, 10**6), st.binary(max_size=30))
def test_mutated_archives_never_raise(
    sample: bytes, changes: list[tuple[int, bytes]], cut: int, tail: bytes
) -> None:
    content = bytearray(sample)
    for place, replacement in changes:
        at = place % (len(content) + 1)
        content[at : at + len(replacement)] = replacement
    content = content[: len(content) - (cut % 40 if cut % 3 == 0 else 0)]
    if cut % 5 == 0:
        content += tail
    found = manifest_of(bytes(content))
    assert len(found.images) <= IMAGES_MAX
    if bytes(content) == sample:
        assert found.archive == "gns3"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["image", "path"]), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON, JSON, JSON, JSON)
def test_any_topology_never_raises(name: Any, node_type: Any, properties: Any, image: Any) -> None:
    text = json.dumps(
        {
            "name": name,
            "topology": {
                "nodes": [{"node_type": node_type, "properties": properties}, node("qemu", image=image)]
            },
        }
    )
    found = manifest_of(zipped(text.encode("utf-8", "surrogatepass")))
    assert found.archive in ("gns3", "damaged")


def test_archives_of_random_bytes_after_a_magic_are_damaged() -> None:
    noise = random.Random(4)
    for _ in range(50):
        content = b"PK\x03\x04" + noise.randbytes(noise.randrange(3000))
        assert manifest_of(content) == Manifest(archive="damaged")
    assert manifest.TOPOLOGY_BYTES_MAX == 8 << 20
