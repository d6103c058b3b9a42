"""Versions of a project compared: archives of both kinds, and folders."""

import asyncio
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from ca.errors import Conflict
from deploy.gns3.archive import TOPOLOGY
from deploy.gns3.diffs.comparison import READ_BYTES_MAX, FileChange, VersionChanges, compare
from deploy.gns3.diffs.contents import FileFacts, ProjectContents, folder_contents
from deploy.gns3.records import LabProject

CONFIG = "project-files/vpcs/id1/startup.vpc"
LAB = json.dumps({"topology": {"nodes": [{"node_id": "id1", "name": "PC1"}]}}).encode()


def contents(files: Mapping[str, bytes], *, kind: str = "crc32", **marks: Any) -> ProjectContents:
    """Files as an archive has them; the mark of each is its content, unless another is given."""

    async def read(paths: Collection[str]) -> dict[str, bytes]:
        return {path: known[path] for path in paths}

    known = {TOPOLOGY: LAB, **files}
    facts = {
        path: FileFacts(len(content), (kind, marks.get(path, content))) for path, content in known.items()
    }
    return ProjectContents("", facts, read)


def compared(before: ProjectContents, after: ProjectContents) -> list[FileChange]:
    return asyncio.run(compare(before, after)).files


def test_text_is_compared_line_by_line_and_names_its_node() -> None:
    before = contents({CONFIG: b"set pcname a\r\nip dhcp\r\n", "README.txt": b"x"})
    after = contents({CONFIG: b"set pcname b\nip dhcp\n", "README.txt": b"x"})
    [change] = compared(before, after)
    assert (change.path, change.node, change.change) == (CONFIG, "PC1", "changed")
    assert change.lines[2:] == ["@@ -1,2 +1,2 @@", "-set pcname a", "+set pcname b", " ip dhcp"]


def test_added_and_removed_files_have_their_text() -> None:
    changes = compared(contents({"a": b"1\n"}), contents({"b": b"2\n"}))
    told = [(each.path, each.change, each.size_before, each.size_after, each.lines[-1]) for each in changes]
    assert told == [("a", "removed", 2, -1, "-1"), ("b", "added", -1, 2, "+2")]


@pytest.mark.parametrize("content", [b"\0\1", b"\xff\xfe", b"\n" * 6000])
def test_what_is_no_short_text_has_no_lines(content: bytes) -> None:
    [change] = compared(contents({"disk": b"a"}), contents({"disk": content}))
    assert (change.change, change.lines) == ("changed", [])


def test_log_has_no_lines() -> None:
    [change] = compared(contents({"vpcs.log": b"a\n"}), contents({"vpcs.log": b"b\n"}))
    assert (change.change, change.lines) == ("changed", [])


def test_newer_time_of_equal_content_is_no_change() -> None:
    old, new = (contents({CONFIG: b"x"}, kind="time", **{CONFIG: at}) for at in (1, 2))
    assert compared(old, new) == []


def test_large_file_is_compared_by_its_mark() -> None:
    large = bytes(READ_BYTES_MAX + 1)
    old, new = (contents({"disk": large}, kind="time", disk=at) for at in (1, 2))
    assert [each.change for each in compared(old, new)] == ["changed"]
    assert [each.change for each in compared(old, contents({"disk": large}))] == ["unknown"]
    assert compared(new, new) == []


def test_file_that_became_too_large_has_no_lines() -> None:
    [change] = compared(contents({"notes": b"a\n"}), contents({"notes": b"a\n" * READ_BYTES_MAX}))
    assert (change.change, change.size_after, change.lines) == ("changed", 2 * READ_BYTES_MAX, [])


def test_topology_that_is_too_large_is_a_conflict() -> None:
    huge = contents({})
    files = {TOPOLOGY: FileFacts(1 << 40, ("crc32", 1))}
    with pytest.raises(Conflict, match="too large"):
        compared(huge, ProjectContents("", files, huge.read))


def test_folder_is_read_as_an_archive_is(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    (folder / CONFIG).parent.mkdir(parents=True)
    (folder / CONFIG).write_bytes(b"new\n")
    (folder / "lab.gns3").write_bytes(LAB)
    (folder / "lab.gns3.backup").write_bytes(b"of GNS3")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / CONFIG).chmod(0o600)

    async def found() -> VersionChanges:
        async with folder_contents(tmp_path, LabProject(project_id="p", name="lab", path=str(folder))) as now:
            return await compare(contents({CONFIG: b"old\n"}), now)

    changes = asyncio.run(found())
    assert changes.topology == []
    assert {(each.path, each.change, each.lines[-1] if each.lines else "") for each in changes.files} == {
        (CONFIG, "changed", "+new"),
        ("link", "added", ""),
    }
