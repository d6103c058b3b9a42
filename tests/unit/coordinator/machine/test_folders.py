"""Folders of buckets, against a model that has the path of each file; and who sees which of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.machine import bucket_lists
from coordinator.machine.execution import pages
from metadata.model import rules
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, create, create_bucket, grant

NAMES = ("a", "a b", "a!", "a.b", "b", "ä", "\U0001f600")
PATHS = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    with closing(made.store):
        yield made


def move(caller: Caller, file_uuid: str, path: str) -> commands.UpdateProjectFile:
    return commands.UpdateProjectFile(caller=caller, file_uuid=file_uuid, path=path)


def folders(
    state: State, caller: Caller, path: str, *, bucket_id: str = DEFAULT_BUCKET_ID, limit: int = 1000
) -> Any:
    """The names of the folders in a folder, page after page, or the refusal."""
    found: list[str] = []
    after = ""
    while True:
        query = queries.ListFolders(caller=caller, bucket_id=bucket_id, path=path, limit=limit, after=after)
        page = state.ask(query)
        if isinstance(page, str):
            return page
        assert len(page["folders"]) <= limit
        found += page["folders"]
        if not (after := page["next_name"]):
            return found


def files(state: State, caller: Caller, path: str, *, limit: int = 1000, **narrowed: Any) -> Any:
    """The ids of the files in a folder, page after page."""
    found: list[str] = []
    cursor = 0
    narrowed.setdefault("bucket_id", DEFAULT_BUCKET_ID)
    while True:
        query = queries.ListFolderFiles(caller=caller, path=path, limit=limit, cursor=cursor, **narrowed)
        page = state.ask(query)
        if isinstance(page, str):
            return page
        found += [file["file_uuid"] for file in page["files"]]
        if not (cursor := page["next_cursor"]):
            return found


@given(
    paths=st.lists(PATHS, min_size=1, max_size=12),
    moves=st.lists(st.tuples(st.integers(0, 11), PATHS), max_size=6),
    limit=st.sampled_from([1, 2, 1000]),
    scan_max=st.sampled_from([2, 3, 5000]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lists_are_those_of_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    paths: list[str],
    moves: list[tuple[int, str]],
    limit: int,
    scan_max: int,
) -> None:
    state = State(tmp_path_factory.mktemp("folders") / "state.sqlite")
    with closing(state.store), pytest.MonkeyPatch.context() as patched:
        for module in (bucket_lists, pages):
            patched.setattr(module, "LIST_SCAN_MAX", scan_max)
        state.nodes("n1", "n2", "n3")
        state.user("alice")
        owners = [ADMIN if number % 3 else Caller("alice", 1) for number in range(len(paths))]
        model: dict[str, str] = {}
        for number, path in enumerate(paths):
            state.done(create(owners[number], f"f{number}", path=path, filename=("even", "odd")[number % 2]))
            model[f"f{number}"] = path
        for number, path in moves:
            if f"f{number}" in model:
                assert state.done(move(owners[number], f"f{number}", path)).get("path", "") == path
                model[f"f{number}"] = path
        owned = {file for file, owner in zip(model, owners, strict=True) if owner != ADMIN}
        for caller, seen in ((ADMIN, {*model}), (Caller("alice", 1), owned)):
            mine = {file: path for file, path in model.items() if file in seen}
            for path in {"", "a", "a/a", "ä", *model.values()}:
                start = f"{path}/" if path else ""
                inner = {
                    each[len(start) :].partition("/")[0]
                    for each in mine.values()
                    if each.startswith(start) and each != path
                }
                assert folders(state, caller, path, limit=limit) == sorted(inner)
                within = [file for file, each in mine.items() if each == path]
                assert files(state, caller, path, limit=limit) == within
                below = [file for file, each in mine.items() if each == path or each.startswith(start)]
                assert files(state, caller, path, limit=limit, is_recursive=True) == below
                for name in ("odd", "even"):
                    named = {file for file in model if (int(file[1:]) % 2 == 1) == (name == "odd")}
                    found = files(state, caller, path, limit=limit, name=name)
                    assert found == [file for file in within if file in named]
                    found = files(state, caller, path, limit=limit, name=name, is_recursive=True)
                    assert found == [file for file in below if file in named]


def test_folder_goes_with_its_last_file(state: State) -> None:
    state.done(create(ADMIN, "f1", path="lab/r1"))
    state.done(create(ADMIN, "f2", path="lab"))
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""))
    assert folders(state, ADMIN, "lab") == []
    assert files(state, ADMIN, "lab") == ["f2"]
    state.done(move(ADMIN, "f2", ""))
    assert folders(state, ADMIN, "") == []
    assert files(state, ADMIN, "") == ["f2"]


def test_folders_of_others_are_seen_with_what_was_granted(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob", groups=["lab"])
    state.done(create(alice, "f1", path="secret"))
    state.done(create(alice, "f2", path="shared/r1"))
    state.done(create(bob, "f3", path="mine"))
    assert folders(state, bob, "") == ["mine"]
    assert files(state, bob, "shared/r1") == []
    state.done(grant(alice, "file:f2", "group:lab", expires_at_ms=state.at_ms + 1))
    assert folders(state, bob, "") == ["mine", "shared"]
    assert folders(state, bob, "shared") == ["r1"]
    assert files(state, bob, "shared/r1") == ["f2"]
    assert files(state, bob, "mine") == ["f3"]
    assert files(state, bob, "shared", is_recursive=True) == ["f2"]
    state.at_ms += 1
    assert folders(state, bob, "") == ["mine"]


def test_folders_of_a_bucket_are_for_those_who_may_read_it(state: State) -> None:
    alice, bob = state.user("alice"), state.user("bob")
    state.done(create_bucket(alice, "b1"))
    state.done(create(alice, "f1", bucket_id="b1", path="lab"))
    assert folders(state, bob, "", bucket_id="b1") == "forbidden"
    assert files(state, bob, "lab", bucket_id="b1") == "forbidden"
    assert folders(state, bob, "", bucket_id="b2") == "not_found"
    assert folders(state, alice, "", bucket_id="b1") == ["lab"]
    assert folders(state, alice, "") == []
    state.done(grant(alice, "bucket:b1", "user:bob", "read"))
    assert folders(state, bob, "", bucket_id="b1") == ["lab"]
    assert state.apply(move(bob, "f1", "x")) == "forbidden"


def test_record_has_the_path(state: State) -> None:
    state.done(create(ADMIN, "f1", path="lab 7/r1"))
    get = queries.GetProjectFile(caller=ADMIN, file_uuid="f1")
    assert state.ask(get)["path"] == "lab 7/r1"
    before = state.ask(get)["updated_at_ms"]
    state.at_ms += 5
    assert state.done(move(ADMIN, "f1", "lab 7/r1"))["updated_at_ms"] == before  # nothing has changed
    assert state.done(move(ADMIN, "f1", "r2"))["updated_at_ms"] > before
    assert state.ask(get)["path"] == "r2"


def test_path_needs_the_rules_that_have_folders() -> None:
    assert create(ADMIN, "f1", path="lab").rules_needed == rules.FILES_HAVE_FOLDERS
    assert move(ADMIN, "f1", "").rules_needed == rules.FILES_HAVE_FOLDERS
    assert create(ADMIN, "f1").rules_needed <= rules.FIRST
