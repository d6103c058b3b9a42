"""Folders and single files go to their place in one step, and through no link of another user."""

import io
import os
from pathlib import Path

import pytest

from ca.errors import Conflict, NotFound
from deploy.gns3.folders.entries import opened_folder
from deploy.gns3.local.projects import StoppedServer, scan_project
from deploy.gns3.local.restore import plan_folder, put_back
from deploy.gns3.server import ServerAddress
from tests.unit.deploy.gns3.folders.test_packing import packed, scanned


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """A folder of projects with one project."""
    lab = tmp_path / "projects" / "lab"
    (lab / "a" / "b").mkdir(parents=True)
    (lab / "a" / "b" / "file").write_bytes(b"stored")
    (lab / "top").write_bytes(b"stored too")
    (lab / "l.gns3").write_text('{"project_id": "p", "name": "l"}')
    return tmp_path / "projects"


def restored(content: bytes, projects: Path, path: str = "") -> list[tuple[str, str]]:
    plan = plan_folder(io.BytesIO(content), projects, path)
    assert put_back(io.BytesIO(content), plan, projects) == []
    assert [each.name for each in projects.iterdir() if each.name.startswith(".")] == []
    return plan.changes


def test_folder_that_is_not_there_comes_back(projects: Path) -> None:
    before, content = scanned(projects / "lab").entries, packed(projects / "lab")
    (projects / "lab").rename(projects.parent / "away")
    changes = restored(content, projects)
    assert {what for _, what in changes} == {"new"}
    assert scanned(projects / "lab").entries == before


def test_folder_is_replaced_as_a_whole(projects: Path) -> None:
    lab = projects / "lab"
    before, content = scanned(lab).entries, packed(lab)
    (lab / "top").write_bytes(b"changed")
    (lab / "added").mkdir()
    (lab / "a" / "b" / "file").unlink()
    changes = restored(content, projects)
    assert {("top", "content"), ("added", "removed"), ("a/b/file", "new")} <= set(changes)
    assert scanned(lab).entries == before
    assert restored(content, projects) == []


def test_single_file_leaves_the_others_alone(projects: Path) -> None:
    lab = projects / "lab"
    content = packed(lab)
    (lab / "top").write_bytes(b"kept")
    (lab / "a" / "b" / "file").write_bytes(b"changed")
    assert restored(content, projects, "a/b/file") == [("a/b/file", "content")]
    assert ((lab / "a" / "b" / "file").read_bytes(), (lab / "top").read_bytes()) == (b"stored", b"kept")
    (lab / "a" / "b" / "file").unlink()
    (lab / "a" / "b").rmdir()
    (lab / "a").rmdir()
    assert restored(content, projects, "a/b/file") == [("a/b/file", "new")]
    assert (lab / "a" / "b" / "file").read_bytes() == b"stored"
    assert restored(content, projects, "a/") == []
    with pytest.raises(NotFound, match="no file 'x'"):
        plan_folder(io.BytesIO(content), projects, "x")


def test_links_that_others_have_placed_are_not_followed(projects: Path, tmp_path: Path) -> None:
    lab, outside = projects / "lab", tmp_path / "outside"
    content = packed(lab)
    (outside / "b").mkdir(parents=True)
    (lab / "a").rename(lab / "kept")
    (lab / "a").symlink_to(outside)
    plan = plan_folder(io.BytesIO(content), projects, "a/b/file")
    with pytest.raises(Conflict, match="no folder in the project"):
        put_back(io.BytesIO(content), plan, projects)
    assert list((outside / "b").iterdir()) == []
    lab.rename(projects / "moved")
    lab.symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        plan_folder(io.BytesIO(content), projects)


def test_folder_that_appears_meanwhile_is_left_alone(projects: Path) -> None:
    lab = projects / "lab"
    content = packed(lab)
    lab.rename(projects.parent / "away")
    plan = plan_folder(io.BytesIO(content), projects)
    lab.mkdir()
    (lab / "mine").write_bytes(b"")
    with pytest.raises(OSError, match="not empty"):
        put_back(io.BytesIO(content), plan, projects)
    assert os.listdir(lab) == ["mine"]
    assert os.listdir(projects) == ["lab"]


async def test_projects_of_a_stopped_server_are_those_of_its_folder(projects: Path) -> None:
    (projects / "no project").mkdir()
    (projects / "file").touch()
    (projects / "damaged").mkdir()
    (projects / "damaged" / "x.gns3").write_bytes(b"")
    (projects / "link").symlink_to(projects / "lab")
    server = StoppedServer(ServerAddress(name="lab", url="http://127.0.0.1:1"), projects)
    [found] = await server.projects()
    assert (found.project_id, found.name, found.status) == ("p", "l", "closed")
    assert found.path == str(projects / "lab")
    assert await server.nodes("p") == []


def test_scan_of_a_project_has_its_topology_and_images_below_do_not_count(projects: Path) -> None:
    (projects / "lab" / "a" / "below.gns3").write_text('{"project_id": "other"}')
    with opened_folder(projects / "lab") as folder:
        found = scan_project(folder, "lab")
    assert (list(found.topologies), found.project_ids) == (["l.gns3"], ("p",))
    assert found.fingerprint.kind == "full"
