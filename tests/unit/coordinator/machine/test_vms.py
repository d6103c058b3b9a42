"""VM images in the state machine: the md5 of their content, and how it finds them."""

from typing import Any

import msgspec

from metadata.model.records import Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, complete, create, create_vm

MD5, OTHER_MD5 = "0" * 32, "f" * 32


def finish(state: State, caller: Caller, file_uuid: str, md5: str) -> Any:
    command = complete(caller, file_uuid, "aa", ["n1", "n2"])
    return state.apply(msgspec.structs.replace(command, md5=md5))


def found(state: State, caller: Caller, **query: Any) -> list[str]:
    page = state.ask(queries.ListVms(caller=caller, **query))
    assert page["next_cursor"] == 0
    return [vm["file_uuid"] for vm in page["files"]]


def test_md5_is_empty_until_the_upload_ends(state: State) -> None:
    state.apply(create_vm(ADMIN, "f1"))
    assert state.ask(queries.GetVm(caller=ADMIN, file_uuid="f1"))["md5"] == ""
    assert found(state, ADMIN, md5=MD5) == []
    finish(state, ADMIN, "f1", MD5)
    assert state.ask(queries.GetVm(caller=ADMIN, file_uuid="f1"))["md5"] == MD5
    assert found(state, ADMIN, md5=MD5) == ["f1"]


def test_md5_finds_own_images_and_for_admins_all(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    for caller, file_uuid, md5 in ((alice, "a1", MD5), (bob, "b1", MD5), (alice, "a2", OTHER_MD5)):
        state.apply(create_vm(caller, file_uuid))
        finish(state, caller, file_uuid, md5)
    assert found(state, alice, md5=MD5) == ["a1"]
    assert found(state, bob, md5=OTHER_MD5) == []
    assert found(state, ADMIN, md5=MD5) == ["a1", "b1"]
    assert found(state, alice) == ["a1", "a2"]


def test_md5_and_other_filters_hold_together(state: State) -> None:
    for file_uuid, filename in (("f1", "disk"), ("f2", "other")):
        state.apply(create_vm(ADMIN, file_uuid, filename=filename))
        finish(state, ADMIN, file_uuid, MD5)
    assert found(state, ADMIN, md5=MD5, filename_prefix="di", status="available") == ["f1"]
    assert found(state, ADMIN, md5=MD5, status="pending") == []


def test_image_without_md5_is_found_by_none(state: State) -> None:
    state.apply(create_vm(ADMIN, "f1"))
    finish(state, ADMIN, "f1", "")
    assert state.ask(queries.GetVm(caller=ADMIN, file_uuid="f1"))["status"] == "available"
    assert found(state, ADMIN) == ["f1"]


def test_refused_and_repeated_completions_leave_the_md5(state: State) -> None:
    state.apply(create_vm(ADMIN, "f1", expected_sha256="aa"))
    refused = msgspec.structs.replace(complete(ADMIN, "f1", "bb", ["n1", "n2"]), md5=OTHER_MD5)
    assert state.apply(refused) == "checksum_mismatch"
    assert found(state, ADMIN, md5=OTHER_MD5) == []
    first = finish(state, ADMIN, "f1", MD5)
    assert finish(state, ADMIN, "f1", OTHER_MD5) == first
    assert found(state, ADMIN, md5=MD5) == ["f1"]


def test_md5_of_another_kind_of_file_is_kept_nowhere(state: State) -> None:
    state.apply(create(ADMIN, "f1"))
    finish(state, ADMIN, "f1", MD5)
    assert not [line for line in state.dump() if MD5 in line]


def test_deleted_image_is_not_found_by_its_md5(state: State) -> None:
    state.apply(create_vm(ADMIN, "f1"))
    finish(state, ADMIN, "f1", MD5)
    state.apply(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind="vm"))
    assert found(state, ADMIN, md5=MD5) == []


def test_page_ends_early_where_its_text_grows_long(state: State) -> None:
    attributes = '{"note": "' + "x" * 60_000 + '"}'
    for number in range(80):
        state.done(create_vm(ADMIN, f"f{number}", extra_attributes_json=attributes))
    seen: list[str] = []
    cursor, pages = 0, 0
    while pages == 0 or cursor:
        page = state.ask(queries.ListVms(caller=ADMIN, cursor=cursor))
        assert len(msgspec.json.encode(page)) < 4 << 20
        seen += [vm["file_uuid"] for vm in page["files"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert seen == [f"f{number}" for number in range(80)]
    assert pages > 1
