"""What a project's archive says of itself, over HTTP; what is read of archives is in the unit tests."""

import io
import json
import os
import zipfile

import pytest

from metadata.archive.zip_reader import ENTRIES_MAX
from tests.cluster.harness import Cluster

MD5 = "8d3612fe22b1a7dec118010e17e29411"


def exported(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A project as an export holds it."""
    properties = {"hda_disk_image": "asav981.qcow2", "hda_disk_image_md5sum": MD5, "cdrom_image": "a.iso"}
    node = {"node_type": "qemu", "name": "fw", "properties": properties}
    project = {"name": "Campus", "revision": 9, "version": "2.2.53", "topology": {"nodes": [node]}}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        made.writestr("project-files/qemu/disk", os.urandom(2000))
        made.writestr("project.gns3", json.dumps(project))
    return target.getvalue()


def test_manifest_of_an_exported_project(cluster: Cluster) -> None:
    file_uuid = cluster.store(exported())
    answer = cluster.get(f"/project-files/{file_uuid}/manifest", node=cluster.nodes[1])
    assert (answer.status, answer.json) == (
        200,
        {
            "file_uuid": file_uuid,
            "archive": "gns3",
            "project_name": "Campus",
            "format_version": "9",
            "images": [{"filename": "asav981.qcow2", "md5": MD5}, {"filename": "a.iso", "md5": ""}],
            "truncated": False,
        },
    )


@pytest.mark.parametrize(
    ("content", "archive"),
    [(exported()[:-30], "damaged"), (b"PK\x03\x04", "damaged"), (b"no archive", "other"), (b"", "other")],
)
def test_content_that_is_no_sound_archive_is_stored_all_the_same(
    cluster: Cluster, content: bytes, archive: str
) -> None:
    file_uuid = cluster.store(content)
    found = cluster.get(f"/project-files/{file_uuid}/manifest").json
    assert (found["archive"], found["project_name"], found["images"]) == (archive, "", [])
    assert cluster.get(f"/files/{file_uuid}").body == content


def test_archive_with_too_many_entries_says_that_not_all_was_looked_at(cluster: Cluster) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        for number in range(ENTRIES_MAX):
            made.writestr(zipfile.ZipInfo(str(number)), b"")
        made.writestr("project.gns3", "{}")
    file_uuid = cluster.store(target.getvalue())
    for node in cluster.nodes:  # from the log, not from this node's copy
        found = cluster.get(f"/project-files/{file_uuid}/manifest", node=node).json
        assert (found["archive"], found["truncated"]) == ("other", True)


def test_manifest_is_there_when_the_upload_came_in_pieces_through_another_node(cluster: Cluster) -> None:
    content = exported(zipfile.ZIP_LZMA)
    created = cluster.create(size_bytes=len(content))
    other = next(node for node in cluster.nodes if not created["upload_url"].startswith(node.url))
    path = f"/files/{created['file_uuid']}/content"
    manifest = f"/project-files/{created['file_uuid']}/manifest"
    assert cluster.get(manifest).json["code"] == "not_available"
    for start in range(0, len(content), 1000):
        piece = content[start : start + 1000]
        span = {"Content-Range": f"bytes {start}-{start + len(piece) - 1}/{len(content)}"}
        assert cluster.request("PUT", path, node=other, content=piece, headers=span).status in (200, 202)
    assert cluster.get(manifest).json["project_name"] == "Campus"
