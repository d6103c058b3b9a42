"""Which backups belong together, and which one a name means."""

from dataclasses import replace

import click
import msgspec
import pytest

from ca.errors import Conflict, InvalidRequest, NotFound
from deploy.commands.gns3.choosing import VersionMessage, VersionTag
from deploy.gns3.chains import TAG, BackupChain, chains_of, choose, of_projects, of_server, to_continue
from deploy.gns3.fingerprint import Fingerprint
from deploy.gns3.identity import BackupTag, ServerIdentity, draw_server_id
from deploy.gns3.stored import NO_TAG, REPLACED_ENDING, StoredBackup
from filestore_client.base.records import Project

CONTENT = Fingerprint(7, "a" * 40)
A, B = ServerIdentity("a" * 16, "lab"), ServerIdentity("b" * 16, "lab")


def backup(
    number: int,
    server: ServerIdentity = A,
    *,
    name: str = "ospf",
    project: str = "p",
    owner: str = "me",
    content: Fingerprint = CONTENT,
) -> StoredBackup:
    tag = BackupTag(content, server)
    file = Project(
        file_uuid=f"f{number}",
        bucket_id="b",
        owner_id=owner,
        filename="",
        content_type="",
        size_bytes=10,
        blob_sha256="",
        status="available",
        expires_at="",
        created_at=f"2026-11-{number:02}T12:00:00Z",
        updated_at="",
        project_id=project,
        project_name=name,
        version_tag=tag.text,
        compression="",
        include_images=False,
        include_snapshots=False,
        is_read_only=False,
        keep_compute_ids=False,
        reset_mac_addresses=False,
    )
    return StoredBackup(file, tag)


def tagged(made: StoredBackup, tag: str) -> StoredBackup:
    return replace(made, file=msgspec.structs.replace(made.file, tag=tag))


def uuids(chains: list[BackupChain]) -> list[list[str]]:
    return [[each.file.file_uuid for each in chain.backups] for chain in chains]


def test_tag_says_content_and_server() -> None:
    for server in (A, ServerIdentity(draw_server_id(), "a.b-c_D")):
        full = BackupTag(replace(CONTENT, kind="full"), server)
        assert BackupTag.parse(full.text) == full
        tag = BackupTag(CONTENT, server)
        assert BackupTag.parse(tag.text) == tag
    for text in (
        "",
        "v2",
        CONTENT.tag,
        f"{CONTENT.tag}@",
        f"{CONTENT.tag}@lab",
        f"{CONTENT.tag}@{'A' * 16}:lab",
    ):
        assert BackupTag.parse(text) is None
    assert len(BackupTag(CONTENT, ServerIdentity(draw_server_id(), "x" * 63)).text) <= 255


def test_chain_is_of_one_owner_one_server_and_one_project() -> None:
    mine = [backup(1), backup(2, B), backup(3, project="q"), backup(4)]
    theirs = backup(5, owner="stranger")
    assert uuids(chains_of([*mine, theirs], "me")) == [["f1", "f4"], ["f2"], ["f3"]]
    assert uuids(chains_of([*mine, theirs], "stranger")) == [["f5"]]


def test_full_backups_are_a_chain_of_their_own() -> None:
    full = replace(CONTENT, kind="full")
    chains = chains_of([backup(1), backup(2, content=full), backup(3), backup(4, content=full)], "me")
    assert uuids(chains) == [["f1", "f3"], ["f2", "f4"]]
    assert [chain.kind for chain in chains] == ["export", "full"]
    assert to_continue(chains, A) is chains[0]
    assert to_continue(chains, A, "full") is chains[1]
    assert not chains[0].newest.holds(full)


def test_order_is_that_of_the_log_and_not_of_the_dates() -> None:
    ahead, newest = backup(20), backup(4)
    [chain] = chains_of([backup(3), ahead, newest], "me")
    assert chain.newest is newest
    assert choose([chain], "ospf") is newest
    assert choose([chain], "ospf@2026-11-21") is newest
    assert choose([chain], "ospf@2026-11-03").file.file_uuid == "f3"


def test_replaced_folder_is_not_restored_by_the_name_of_its_project() -> None:
    kept, replaced = backup(1), backup(2)
    file = msgspec.structs.replace(replaced.file, filename=f"ospf{REPLACED_ENDING}")
    replaced = replace(replaced, file=file)
    [chain] = chains_of([kept, replaced], "me")
    assert (chain.newest, chain.to_restore) == (replaced, kept)
    assert choose([chain], "ospf") is kept
    assert choose([chain], "ospf@2026-11-30") is replaced
    assert BackupChain([replaced]).to_restore is replaced


def test_version_is_chosen_by_its_tag() -> None:
    first, second = (tagged(backup(number), tag) for number, tag in ((1, "golden"), (2, NO_TAG)))
    [chain] = chains_of([first, second, backup(3)], "me")
    assert choose([chain], "ospf@golden") is first
    assert (second.version, second.file.tag) == ("", "-")
    with pytest.raises(NotFound, match="No backup of 'ospf' has the tag 'v2'"):
        choose([chain], "ospf@v2")
    with pytest.raises(InvalidRequest, match="'-' is not a date"):
        choose([chain], "ospf@-")


def test_both_kinds_of_a_project_are_one_history() -> None:
    full = replace(CONTENT, kind="full")
    mixed = chains_of([backup(1), backup(2, content=full), backup(3, B)], "me", mix_kinds=True)
    assert uuids(mixed) == [["f1", "f2"], ["f3"]]


@pytest.mark.parametrize("text", ["2026-11-20", "20261120", "2026-W01-1", "a b", "-", "a@b", "x" * 64, "ä"])
def test_tag_is_no_date_and_no_text(text: str) -> None:
    assert TAG.fullmatch("golden-1.2_x")
    with pytest.raises(click.BadParameter):
        VersionTag().convert(text, None, None)


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2J", "\u202e", "x" * 256, "\ud800"])
def test_message_is_one_line_that_a_terminal_shows(text: str) -> None:
    assert VersionMessage().convert("before BGP – ü", None, None) == "before BGP – ü"
    with pytest.raises(click.BadParameter):
        VersionMessage().convert(text, None, None)


def test_server_goes_on_with_its_own_chain() -> None:
    of_a, of_b = BackupChain([backup(1)]), BackupChain([backup(2, B)])
    assert to_continue([of_b, of_a], A) is of_a
    assert to_continue([of_b], A) is None
    assert to_continue([], A) is None


def test_name_of_projects_of_two_servers_is_a_conflict() -> None:
    chains = chains_of([backup(1), backup(2, B)], "me")
    for named in ("ospf", "p", "ospf@2026-11-30"):
        with pytest.raises(Conflict, match=f"(?s){A.id}.*{B.id}"):
            choose(chains, named)
    assert choose(chains[1:], "ospf").file.file_uuid == "f2"


def test_project_is_found_by_its_latest_name() -> None:
    chains = chains_of([backup(1, name="old"), backup(2, name="a@b")], "me")
    assert choose(chains, "a@b").file.file_uuid == "f2"
    assert choose(chains, "a@b@2026-11-01").file.file_uuid == "f1"
    with pytest.raises(NotFound, match="'old'"):
        choose(chains, "old")
    with pytest.raises(NotFound, match="first backup"):
        choose(chains, "a@b@2020-01-01")


def test_damaged_backup_stands_for_nothing() -> None:
    whole = backup(1)
    assert whole.holds(CONTENT)
    assert not whole.holds(Fingerprint(7, "b" * 40))
    assert not replace(whole, is_damaged=True).holds(CONTENT)


def test_server_is_named_by_name_or_id() -> None:
    assert A.is_named("lab")
    assert A.is_named(A.id)
    assert not A.is_named(B.id)
    assert not A.is_named("other")


def test_name_that_two_servers_have_had_is_no_server() -> None:
    other = replace(B, name="gns3")
    chains = chains_of([backup(1), backup(2, B), backup(3, other, project="q")], "me")
    assert uuids(of_server(chains, "")) == [["f1"], ["f2"], ["f3"]]
    assert uuids(of_server(chains, "gns3")) == [["f3"]]
    assert uuids(of_server(chains, B.id)) == [["f2"], ["f3"]]
    with pytest.raises(Conflict, match=f"{A.id}.*{B.id}"):
        of_server(chains, "lab")


def test_server_or_project_without_backups_is_not_found() -> None:
    chains = chains_of([backup(1), backup(2, project="q", name="bgp")], "me")
    assert (of_server([], ""), of_projects([], [])) == ([], [])
    assert uuids(of_projects(chains, [])) == [["f1"], ["f2"]]
    assert uuids(of_projects(chains, ["bgp", "q"])) == [["f2"]]
    with pytest.raises(NotFound, match="'nope'"):
        of_projects(chains, ["bgp", "nope"])
    with pytest.raises(NotFound, match="'nope'"):
        of_server(chains, "nope")
