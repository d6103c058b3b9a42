"""Manifests in the state machine: kept with the completion, shown to who may read."""

from typing import Any

import msgspec
import pytest

from metadata.model.records import Manifest, ManifestImage
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, complete, create, create_backup, create_vm

MANIFEST = Manifest(
    archive="gns3",
    project_name="größe",
    format_version="9",
    images=[ManifestImage("a.qcow2", "0" * 32), ManifestImage("b.qcow2", "")],
    truncated=True,
)
OTHER = Manifest(archive="damaged")


def finish(state: State, file_uuid: str, manifest: Manifest | None, *, sha256: str = "aa") -> Any:
    command = complete(ADMIN, file_uuid, sha256, ["n1", "n2"])
    return state.apply(msgspec.structs.replace(command, manifest=manifest))


def shown(state: State, file_uuid: str) -> Any:
    return state.ask(queries.GetManifest(caller=ADMIN, file_uuid=file_uuid))


def test_manifest_is_there_once_the_file_is_available(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    assert shown(state, "f1") == "not_available"
    progress = commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id="n1", offset_bytes=1)
    assert state.apply(progress)["status"] == "uploading"
    assert shown(state, "f1") == "not_available"
    finish(state, "f1", MANIFEST)
    assert shown(state, "f1") == msgspec.to_builtins(MANIFEST)


def test_file_that_came_without_a_manifest_is_of_another_kind_of_archive(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, "f1", None)
    assert shown(state, "f1") == msgspec.to_builtins(Manifest(archive="other"))


def test_refused_completion_keeps_no_manifest(state: State) -> None:
    state.apply(create(ADMIN, "f1", expected_sha256="aa"))
    assert finish(state, "f1", MANIFEST, sha256="bb") == "checksum_mismatch"
    assert shown(state, "f1") == "not_available"
    finish(state, "f1", OTHER)
    assert shown(state, "f1")["archive"] == "damaged"


@pytest.mark.parametrize("again", [OTHER, None])
def test_repeated_completion_replies_the_same_and_changes_nothing(
    state: State, again: Manifest | None
) -> None:
    state.apply(create(ADMIN, "f1"))
    first = finish(state, "f1", MANIFEST)
    before = [line for line in state.dump() if '"applied"' not in line]
    assert finish(state, "f1", again) == first
    assert [line for line in state.dump() if '"applied"' not in line] == before


def test_other_kinds_of_file_have_no_manifest(state: State) -> None:
    state.apply(create_vm(ADMIN, "f1"))
    state.apply(create_backup(ADMIN, "f2"))
    for file_uuid in ("f1", "f2"):
        finish(state, file_uuid, MANIFEST)
        assert shown(state, file_uuid) == "not_found"
    assert not [line for line in state.dump() if "gns3" in line]


def test_strangers_do_not_see_the_manifest(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, "f1", MANIFEST)
    bob = state.user("bob")
    assert state.ask(queries.GetManifest(caller=bob, file_uuid="f1")) == "forbidden"


def test_manifest_goes_with_its_file(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, "f1", MANIFEST)
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""))
    assert shown(state, "f1") == "not_found"
    assert not [line for line in state.dump() if "gns3" in line]
