"""Which projects are not backed up without a word, and which files a warning names."""

import msgspec
import pytest

from ca.errors import Conflict
from deploy.gns3.archive import NOTHING_MISSING, Missing, missing_of
from deploy.gns3.export import ExportEnd, known_missing, skipped_files
from deploy.gns3.fingerprint import ExportScan, Fingerprint
from deploy.gns3.identity import BackupTag
from deploy.gns3.losses import refuse_foreign, refuse_hidden, refuse_loss
from deploy.gns3.records import LabProject
from deploy.gns3.stored import StoredBackup
from filestore_client.base.records import Project
from tests.unit.deploy.gns3.test_fingerprint import export

OWN, OTHER = "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "6fa459ea-ee8a-4ca4-894e-db77e160355e"


def project(path: str) -> LabProject:
    return LabProject(project_id=OWN, name="lab", path=path)


def newest(size_bytes: int, compression: str = "zstd") -> StoredBackup:
    text = ("bucket_id", "owner_id", "filename", "content_type", "blob_sha256", "status", "expires_at")
    flags = ("include_images", "include_snapshots", "is_read_only", "keep_compute_ids", "reset_mac_addresses")
    fields = {
        **dict.fromkeys((*text, "created_at", "updated_at", "version_tag", "project_name"), ""),
        **dict.fromkeys(flags, False),
        "file_uuid": "f1",
        "project_id": OWN,
        "compression": compression,
        "size_bytes": size_bytes,
    }
    return StoredBackup(msgspec.convert(fields, Project), BackupTag(Fingerprint(1, "d")))


LEFT_OUT = [
    "project-files/a.log",
    "project-files/captures/b",
    "x/.DS_Store",
    "y/inner.gns3",
    "y/old_snapshots/d",
    "z/snapshots/c",
]
UNREADABLE = ["project-files/d.sock", "project-files/log"]


@pytest.mark.parametrize(
    ("is_heard", "is_listed", "told", "known"),
    [
        (True, False, [], LEFT_OUT),
        (True, False, UNREADABLE[:1], [*LEFT_OUT, UNREADABLE[0]]),
        (False, True, [], UNREADABLE),
        (False, True, LEFT_OUT[:1], [LEFT_OUT[0], *UNREADABLE]),
        (False, False, [], [*LEFT_OUT, *UNREADABLE]),
        (True, True, LEFT_OUT[:1], LEFT_OUT[:1]),
    ],
)
def test_what_the_server_does_not_tell_stays_recorded(
    is_heard: bool, is_listed: bool, told: list[str], known: list[str]
) -> None:
    found = ExportEnd(Fingerprint(1, "d"), 1, 1, "zstd", missing_of(told), is_heard, is_listed, ())
    assert known_missing(found, missing_of([*LEFT_OUT, *UNREADABLE])) == Missing(len(known), sorted(known))


def end(size_bytes: int, *project_ids: str) -> ExportEnd:
    made = Fingerprint(1, "e")
    return ExportEnd(made, size_bytes, 2 * size_bytes, "zstd", NOTHING_MISSING, True, False, project_ids)


@pytest.mark.parametrize(
    "path",
    [f"/opt/projects/{OWN}", f"/opt/projects/{OWN.upper()}/", f"C:\\GNS3\\{OWN}", "/srv/GNS3/lab", ""],
)
def test_project_in_a_folder_of_its_own_is_backed_up(path: str) -> None:
    refuse_foreign(project(path))


@pytest.mark.parametrize("path", [f"/opt/projects/{OTHER}", f"/opt/projects/{OTHER}/", f"C:\\GNS3\\{OTHER}"])
def test_project_in_the_folder_of_another_is_refused(path: str) -> None:
    with pytest.raises(Conflict, match=OTHER):
        refuse_foreign(project(path))


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        (f"/srv/snapshots/projects/{OWN}", "snapshots"),
        ("/srv/snapshots", "snapshots"),
        (f"C:\\snapshots\\{OWN}", "snapshots"),
        (f"/srv/project-files/tmp/{OWN}", "tmp"),
        (f"/srv/.snapshots/{OWN}", ""),
        (f"/tmp/captures/{OWN}", ""),
        ("", ""),
    ],
)
def test_project_that_gns3_exports_no_file_of_is_refused(path: str, folder: str) -> None:
    if not folder:
        refuse_hidden(project(path))
        return
    with pytest.raises(Conflict, match=f"below a folder named {folder}"):
        refuse_hidden(project(path))


@pytest.mark.parametrize(
    ("found", "is_refused"),
    [
        (end(500, OWN), False),
        (end(499, OWN), True),
        (end(1000, OWN.upper()), False),
        (end(1000, OTHER), True),
        (end(1000, OWN, OWN), True),
        (end(1000), False),  # its topology is too large to be kept
    ],
)
def test_export_that_is_a_loss_is_refused(found: ExportEnd, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(Conflict, match="--accept-loss"):
            refuse_loss(project(""), newest(1000), found)
    else:
        refuse_loss(project(""), newest(1000), found)


def test_sizes_of_other_compressions_are_those_of_the_files() -> None:
    packed = newest(10_000, "deflate")
    refuse_loss(project(""), packed, end(10, OWN), newest_unpacked_bytes=40)
    with pytest.raises(Conflict, match="has shrunk from 41 bytes to 20 bytes"):
        refuse_loss(project(""), packed, end(10, OWN), newest_unpacked_bytes=41)
    refuse_loss(project(""), packed, end(10, OWN))
    refuse_loss(project(""), None, end(10, OWN))


def test_warnings_of_gns3_name_the_files_that_it_left_out() -> None:
    folder = f"/opt/projects/{OWN}"
    denied, no_device = "[Errno 13] Permission denied: '/x'", "[Errno 6] No such device or address: '/x'"
    messages = [
        f"Could not export file {folder}/project-files/a: b: {denied}",
        f"Could not export file {folder}/s.sock: {no_device}",
        "Compute is overloaded",
    ]
    assert skipped_files(messages, folder) == ["project-files/a: b", "s.sock"]
    assert skipped_files(messages[1:], "") == ["s.sock"]


def test_export_tells_which_projects_it_holds_and_which_file_came_last() -> None:
    content = export({"project.gns3": f'{{"project_id": "{OWN}"}}'.encode(), "a/ü": b"x" * 100, "b": b"y"})
    scan = ExportScan()
    scan.feed(content)
    assert scan.project_ids(scan.archive()) == [OWN]
    broken = ExportScan()
    broken.feed(content[: content.index(b"b") + 1])
    assert ExportScan().last_name == ""
    broken = ExportScan()
    broken.feed(content[: content.index("a/ü".encode()) + 20])
    assert broken.last_name == "a/ü"
