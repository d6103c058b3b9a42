"""Where members are: the last known list of the coordinators, and how an address may be written."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ca.errors import InvalidRequest
from ca.tls import UnusableCredential
from coordinator.admin.doctor import examine
from coordinator.storage.config import CoordinatorFiles
from deploy.base.addresses import API_PORT, PEER_PORT, member_of, plain_address
from deploy.commands.coordinator import coordinator
from metadata.rpc.roster import read_known, write_known
from tests.unit.coordinator.admin.test_setup import record


def test_last_known_coordinators_are_kept_and_a_damaged_list_is_not_trusted(tmp_path: Path) -> None:
    path, otherwise = tmp_path / "coordinators.json", [record("c1")]
    assert read_known(path, otherwise) == otherwise
    write_known(path, [record("c4")])
    assert read_known(path, otherwise) == [record("c4")]
    for damaged in (b"", b"{}", b"[]", b'[{"coordinator_id": 1}]'):
        path.write_bytes(damaged)
        assert read_known(path, otherwise) == otherwise


@pytest.mark.parametrize(
    ("text", "address", "ports"),
    [
        ("c4=10.0.0.4", "10.0.0.4", (PEER_PORT, API_PORT)),
        ("c4=10.0.0.4:1", "10.0.0.4", (1, API_PORT)),
        ("c4=10.0.0.4:1:2", "10.0.0.4", (1, 2)),
        ("c4=[fd00::4]:1:2", "fd00::4", (1, 2)),
        ("c4=[fd00::4]", "fd00::4", (PEER_PORT, API_PORT)),
        ("c4=fd00::4", "fd00::4", (PEER_PORT, API_PORT)),
        ("c4=::1", "::1", (PEER_PORT, API_PORT)),
        ("c4=Files4.lab.example", "files4.lab.example", (PEER_PORT, API_PORT)),
        ("c4=files4:1:2", "files4", (1, 2)),
        ("c4=[fd00::7442]", "fd00::7442", (PEER_PORT, API_PORT)),
    ],
)
def test_address_of_a_member_has_default_ports(text: str, address: str, ports: tuple[int, int]) -> None:
    found = member_of(text)
    assert (found.address, (found.peer_port, found.api_port)) == (address, ports)


@pytest.mark.parametrize(
    "text",
    [
        "c4",
        "=10.0.0.4",
        "c4=10.0.0.4:0",
        "c4=1:x",
        "c4=1:2:3:4",
        "c4=1:99999",
        "c4=[::1",
        "c4=[::1]:",
        "c4=1:",
        "c4=[]",
        "c4=[::1]7",
        "c4=[[::1]]",
        "c4=fd00::1:7442:7441",
        "c4=fd00::1:7442",
        "c4=files_4",
        "c4=*.lab.example:1:2",
        "c4=files4.",
    ],
)
def test_bad_address_of_a_member_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        member_of(text)


@pytest.mark.parametrize("text", ["::1", "[::1]"])
def test_address_of_a_node_may_stand_in_brackets(text: str) -> None:
    assert plain_address(text) == "::1"


@pytest.mark.parametrize("text", ["10.0.0.4", "[10.0.0.4]", "[::1", "[::1]:7443", "[]", ""])
def test_what_is_no_address_in_brackets_stays_as_it_is(text: str) -> None:
    assert plain_address(text) == text


@pytest.mark.parametrize("text", ["2001:DB8::A", "[2001:db8:0:0:0:0:0:a]:1:2", "::FFFF:192.0.2.1"])
def test_certificate_is_for_the_address_of_its_coordinator_however_that_is_written(
    tmp_path: Path, text: str
) -> None:
    files = CoordinatorFiles(tmp_path / "c1")
    arguments = ["init", "--id", "c1", "--data", str(files.data), "--member", f"c1={text}"]
    assert CliRunner().invoke(coordinator, arguments).exit_code == 0
    files.credential().require_address(files.read_config().own.address)
    assert not examine(files, deep=False).problems
    for other in ("2001:db8::b", "192.0.2.2", "c1"):
        with pytest.raises(UnusableCredential, match=f"not for {other}$"):
            files.credential().require_address(other)
