"""What is kept on this machine: logins, the journal of runs, and the file for node_exporter."""

import stat
import time
from pathlib import Path

import pytest

from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from deploy.gns3 import journal
from deploy.gns3.alarms.metrics import record_unreached, recorded
from deploy.gns3.backup import BackupResult
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.logins import ServerLogin, forget_login, network_cards, read_logins, save_login
from deploy.gns3.records import LabProject
from deploy.gns3.stored import end_of, label_of

CLUSTER = "0123456789abcdef"
LAB = ServerIdentity("9f86d081884c7d65", "lab")
P1, P2 = LabProject(project_id="p1", name="one"), LabProject(project_id="p2", name="two")


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def login(name: str, **fields: str) -> ServerLogin:
    return save_login(
        name,
        ServerLogin(
            url="http://10.0.0.9:3080",
            server_id="",
            user="backup",
            compute_user=fields.get("compute_user", ""),
        ),
        password="pass word",
        compute_password=fields.get("compute_password", ""),
        ca_pem="",
    )


def test_passwords_lie_in_files_of_their_own_that_only_the_user_reads(tmp_path: Path) -> None:
    saved = login("lab", compute_user="gns3", compute_password="other")
    assert read_logins().find("") == ("lab", saved)
    config = tmp_path / "config" / "filestore" / "gns3.toml"
    assert "pass word" not in config.read_text()
    for path in (config, Path(saved.password_file), Path(saved.compute_password_file)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    login("lab")
    assert not Path(saved.compute_password_file).exists()
    forget_login("lab")
    assert not Path(saved.password_file).exists()
    assert read_logins().servers == {}


def test_each_url_has_an_identity_of_its_own_that_a_new_password_does_not_change() -> None:
    first = login("lab")
    assert login("lab").server_id == login("other").server_id == first.server_id
    forget_login("lab")
    forget_login("other")
    again = login("lab")
    assert again.server_id != first.server_id
    elsewhere = save_login(
        "lab",
        ServerLogin(url="http://10.0.0.10:3080", server_id=""),
        password="x",
        compute_password="",
        ca_pem="",
    )
    assert elsewhere.server_id != again.server_id
    moved = save_login(
        "lab",
        ServerLogin(url="http://10.0.0.11:3080", server_id=first.server_id),
        password="x",
        compute_password="",
        ca_pem="",
    )
    assert read_logins().find("lab")[1].server_id == moved.server_id == first.server_id


def test_login_of_a_cloned_machine_is_known_and_begins_anew(tmp_path: Path) -> None:
    net = tmp_path / "net"
    for name, address in (("eth0/device", "02:aa"), ("eth1/device", "02:bb"), ("veth1/other", "02:cc")):
        (net / name).mkdir(parents=True)
        (net / name).with_name("address").write_text(f"{address}\n")
    cards = network_cards(net)
    assert cards == {"02:aa", "02:bb"}
    made = ServerLogin(url="http://127.0.0.1:3080", server_id="", machine="02:aa,02:bb")
    assert not made.is_cloned(cards)
    assert not made.is_cloned(frozenset({"02:bb", "02:ee"}))  # a card was replaced
    assert made.is_cloned(frozenset({"02:cc"}))
    assert not made.is_cloned(network_cards(tmp_path / "none"))
    assert not ServerLogin(url="", server_id="").is_cloned(cards)


def test_server_is_named_where_several_are_known() -> None:
    with pytest.raises(NotFound, match="gns3 login"):
        read_logins().find("")
    login("a")
    login("b")
    with pytest.raises(InvalidRequest, match="a, b"):
        read_logins().find("")
    with pytest.raises(NotFound, match="'c'"):
        read_logins().find("c")
    with pytest.raises(InvalidRequest):
        login("../x")


def test_journal_is_of_one_run_at_a_time_and_remembers() -> None:
    with journal.opened(LAB, CLUSTER) as first:
        first.seen([P1, P2], at=100.0)
        first.good("p1", at=150.0)
        first.note_begin("f1")
        first.note_begin("f2")
        first.ended("f1")
        with pytest.raises(Conflict, match="lab"), journal.opened(LAB, CLUSTER):
            pass
    with journal.opened(LAB, CLUSTER) as second:
        assert second.unfinished == ["f2"]
        assert second.oldest_good_at() == 100.0  # p2 was never backed up
        second.good("p2", at=160.0)
        assert second.oldest_good_at() == 150.0
        second.not_good("p2")
        second.not_good("unknown")
        assert second.oldest_good_at() == 100.0  # since it was seen first


def test_projects_without_a_good_backup_since_many_tries_come_last() -> None:
    with journal.opened(LAB, CLUSTER) as first:
        assert first.try_order([P1, P2]) == [P1, P2]
        for project_id in ("p1", "p1", "p2"):
            first.tried(project_id, at=100.0)
    with journal.opened(LAB, CLUSTER) as second:
        assert second.try_order([P1, P2]) == [P2, P1]
        second.good("p1", at=150.0)
        assert second.try_order([P1, P2]) == [P1, P2]
    with journal.opened(LAB, CLUSTER) as third:
        assert third.try_order([P1, P2]) == [P1, P2]


def test_project_that_is_gone_counts_until_it_is_forgotten() -> None:
    with journal.opened(LAB, CLUSTER) as first:
        first.seen([P1, P2], at=100.0)
        first.good("p1", at=150.0)
        first.good("p2", at=160.0)
    with journal.opened(LAB, CLUSTER) as second:
        second.seen([P2], at=170.0)
        second.good("p2", at=180.0)
        second.seen([], at=190.0)
        assert {each: (memory.name, memory.gone_at) for each, memory in second.gone.items()} == {
            "p1": ("one", 170.0),
            "p2": ("two", 190.0),
        }
        assert second.good_at() == {"p1": 150.0, "p2": 180.0}
        second.seen([P2], at=200.0)
        assert list(second.gone) == ["p1"]
        second.forget("p1")
        assert (second.gone, second.oldest_good_at()) == ({}, 180.0)


def test_server_without_projects_counts_from_when_it_last_showed_one() -> None:
    with journal.opened(LAB, CLUSTER) as first:
        first.seen([], at=100.0)
        first.seen([], at=200.0)
        assert first.oldest_good_at() == 100.0
        first.seen([P1], at=300.0)
        first.seen([], at=400.0)
        first.forget("p1")
        assert first.oldest_good_at() == 300.0


def test_times_of_a_clock_that_was_ahead_hide_no_later_failure() -> None:
    ahead, now = 4000.0, 1000.0
    with journal.opened(LAB, CLUSTER) as remembered:
        remembered.looked(at=ahead)
        remembered.seen([P1, P2], at=ahead)
        remembered.good("p1", at=ahead)
        remembered.seen([P1], at=ahead)
    with journal.opened(LAB, CLUSTER) as remembered:
        remembered.looked(at=now)
        assert remembered.good_at() == {"p1": now, "p2": now}
        assert remembered.gone["p2"].gone_at == now
        remembered.forget("p1")
        remembered.forget("p2")
        assert remembered.oldest_good_at() == now


def test_journal_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    with journal.opened(LAB, CLUSTER) as first:
        first.note_begin("f1")
    (found,) = (tmp_path / "state").rglob("*.json")
    found.write_bytes(b"{")
    with journal.opened(LAB, CLUSTER) as second:
        assert second.unfinished == []


def test_metrics_count_projects_and_name_none(tmp_path: Path) -> None:
    project = LabProject(project_id="p", name="secret lab")
    results = [
        BackupResult(project, "stored", "f", 700),
        BackupResult(project, "unchanged"),
        BackupResult(project, "running", errors=(Conflict("runs"),)),
        BackupResult(project, "stored", "f", 30, errors=(NotFound("image"),)),
    ]
    with recorded(LAB, CLUSTER, tmp_path) as (remembered, recorded_results):
        remembered.seen([P1], at=900.0)
        remembered.good("p1", at=950.0)
        recorded_results += results
    text = (tmp_path / "filestore_gns3_9f86d081884c7d65.prom").read_text()
    lines = text.replace('server="lab",server_id="9f86d081884c7d65"', "LAB").splitlines()
    for line in (
        'filestore_gns3_projects{LAB,status="stored"} 2.0',
        'filestore_gns3_projects{LAB,status="failed"} 0.0',
        "filestore_gns3_stored_bytes{LAB} 730.0",
        "filestore_gns3_failed_images{LAB} 1.0",
        'filestore_gns3_good_backup_timestamp_seconds{project_id="p1",LAB} 950.0',
        'filestore_gns3_projects{LAB,status="gone"} 0.0',
        "filestore_gns3_oldest_good_backup_timestamp_seconds{LAB} 950.0",
    ):
        assert line in lines
    assert any(line.startswith("filestore_gns3_last_run_timestamp_seconds{LAB} ") for line in lines)
    assert "secret" not in text


def oldest_good_at(directory: Path, server: ServerIdentity) -> float:
    text = (directory / f"filestore_gns3_{server.id}.prom").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("filestore_gns3_oldest_good_backup")]
    return float(line.rpartition(" ")[2])


async def test_run_that_does_not_reach_its_server_is_recorded_from_the_first_on(tmp_path: Path) -> None:
    reports: list[tuple[str, str, float]] = []

    async def report(remembered: journal.Journal) -> None:
        runs = remembered.runs
        reports.append((runs.kind, runs.error, runs.ended_at))

    async def end() -> None:
        error, expected = Unavailable("No answer."), ("full", 93600.0)
        await record_unreached(LAB, CLUSTER, tmp_path, error, expected=expected, report=report)

    began_at = time.time()
    await end()
    first = oldest_good_at(tmp_path, LAB)
    assert began_at <= first <= time.time()
    await end()
    with recorded(LAB, CLUSTER, tmp_path):
        await end()  # another run has the journal, and writes the metrics
    assert oldest_good_at(tmp_path, LAB) == first
    assert reports == [("full", "unavailable: No answer.", 0.0)] * 2


def test_server_that_gets_the_name_of_another_one_misses_none_of_its_projects(tmp_path: Path) -> None:
    other = ServerIdentity("0000000000000001", "lab")
    renamed = ServerIdentity(LAB.id, "old lab")
    with recorded(LAB, CLUSTER, tmp_path) as (first, _):
        first.seen([P1], at=100.0)
        with recorded(other, CLUSTER, tmp_path) as (second, _):
            second.seen([P2], at=200.0)
            assert (second.gone, second.good_at()) == ({}, {"p2": 200.0})
        with pytest.raises(Conflict), recorded(renamed, CLUSTER, tmp_path):
            pass
    with recorded(renamed, CLUSTER, tmp_path) as (again, _):
        again.seen([], at=300.0)
        assert list(again.gone) == ["p1"]
    assert (oldest_good_at(tmp_path, LAB), oldest_good_at(tmp_path, other)) == (100.0, 200.0)
    assert len(list(tmp_path.glob("*.prom"))) == 2


def test_names_become_labels() -> None:
    assert label_of("a/b\\c\n") == "a_b_c_"
    assert len(label_of("x" * 500)) == 200
    assert label_of("") == "project"


def test_day_means_until_its_end() -> None:
    assert end_of("2026-11-20T12:00:00+00:00").isoformat() == "2026-11-20T12:00:00+00:00"
    assert (end_of("2026-11-21") - end_of("2026-11-20")).total_seconds() == pytest.approx(86400, abs=7200)
    with pytest.raises(InvalidRequest, match="yesterday"):
        end_of("yesterday")
