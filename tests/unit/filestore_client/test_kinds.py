"""What a new file is taken for, and the fields of its record."""

import io
import zipfile

import pytest

from filestore_client.base.records import FileSummary, Kind
from filestore_client.kinds import content_type_of, image_format, is_wanted, kind_of, new_record_fields

BOOT_SECTOR = bytes(510) + b"\x55\xaa"
ISO = bytes(0x8001) + b"CD001" + bytes(100)
VDI = bytes(0x40) + b"\x7f\x10\xda\xbe" + bytes(100)


def archive(*names: str) -> bytes:
    """A zip with empty members of these names."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as written:
        for name in names:
            written.writestr(name, "")
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "kind", "found"),
    [
        ("disk", b"QFI\xfb" + bytes(100), "image", "qcow2"),
        ("disk.bin", b"KDMV" + bytes(100), "image", "vmdk"),
        ("disk.bin", b"# Disk DescriptorFile\n", "image", "vmdk"),
        ("disk.bin", VDI, "image", "vdi"),
        ("disk.bin", ISO, "image", "iso"),
        ("disk.img", BOOT_SECTOR, "image", "raw"),
        ("notes.bin", BOOT_SECTOR, "backup", ""),
        ("lab.gns3project", archive("a", "project.gns3"), "project", ""),
        ("lab.zip", archive("a", "project.gns3"), "project", ""),
        ("lab.zip", archive("a"), "backup", ""),
        ("lab.gns3project", b"PK\x03\x04 cut off", "project", ""),
        ("lab.gns3p", b"anything", "project", ""),
        ("disk.qcow2", b"anything", "image", ""),
        ("notes.txt", b"", "backup", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # what is in an archive tells the time
)
def test_kind_is_that_of_the_content_and_else_of_the_name(
    name: str, content: bytes, kind: Kind, found: str
) -> None:
    file = io.BytesIO(content)
    assert (kind_of(file, name), image_format(content, name)) == (kind, found)
    assert file.tell() == 0


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.iso", "application/x-iso9660-image"),
        ("a.tar", "application/x-tar"),
        ("a.tar.gz", "application/gzip"),
        ("a.svgz", "application/gzip"),
        ("a.tar.xz", "application/x-xz"),
        ("a", "application/octet-stream"),
    ],
)
def test_outer_encoding_decides_the_content_type(name: str, content_type: str) -> None:
    assert content_type_of(name) == content_type


def test_fields_that_say_nothing_are_left_out() -> None:
    given = {"project_id": None, "version_tag": "v2"}
    assert new_record_fields("project", "a.iso", b"", given) == {
        "filename": "a.iso",
        "project_id": "a",
        "content_type": "application/x-iso9660-image",
        "version_tag": "v2",
    }


def test_zero_says_something() -> None:
    assert new_record_fields("backup", "a", b"", {"retention_period": 0})["retention_period"] == 0


def test_image_has_the_format_that_it_is() -> None:
    fields = new_record_fields("image", "x", b"QFI\xfb", {})
    assert (fields["virt_type"], fields["format"]) == ("qemu", "qcow2")


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, {"a", "a/b", "ab", ""}),
        ({"path": "/"}, {""}),
        ({"path": "a"}, {"a"}),
        ({"path": "/a/"}, {"a"}),
        ({"path": "a", "recursive": "1"}, {"a", "a/b"}),
        ({"path": "/", "recursive": "1"}, {"a", "a/b", "ab", ""}),
        ({"name": "x"}, {"a", "a/b", "ab", ""}),
        ({"name": "y"}, set()),
        ({"path": "a", "name": "x"}, {"a"}),
    ],
)
def test_list_of_an_older_server_is_narrowed_here(filters: dict[str, str], wanted: set[str]) -> None:
    files = [
        FileSummary(
            file_uuid="1",
            filename="x",
            content_type="",
            size_bytes=0,
            blob_sha256="",
            status="available",
            expires_at="",
            created_at="",
            path=path,
        )
        for path in ("a", "a/b", "ab", "")
    ]
    assert {file.path for file in files if is_wanted(file, filters)} == wanted
