"""The drills of docs/, typed as they stand, on three machines with the package and two spare ones.

Each leaves a healthy cluster of three machines to the next.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from ca.certificates import certificates_in
from coordinator.server import RENEWAL_CHECK_S
from deploy.processes import wait_until
from tests.cluster.clocks import library, table_of
from tests.cluster.preload import MAPPED_BYTES
from tests.machines.bed import ADDRESSES, SHARE, Machine, bed
from tests.machines.manual import follow
from tests.machines.operator import ACCESS, STRANGERS, UNITS, WAIT_S, copy_token, shown, until_healthy
from tests.machines.runbook import drill

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SPARE = ("10.0.0.4", "10.0.0.5")
MOVED_TO = "10.0.0.33"
DATA = "/var/lib/filestore"
DAY_S = 86_400
CLOCK_TABLE = "/usr/local/lib/clock_table"
SILENT_MS = 3_500


@dataclass
class House:
    """`members` form the cluster, `spare` wait. `root_key` is kept elsewhere."""

    members: list[Machine]
    spare: list[Machine]
    root_key: str

    def replace(self, old: Machine, new: Machine) -> None:
        """One has taken the place of another."""
        self.members[self.members.index(old)] = new
        self.spare.remove(new)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, base: Path, package: Path) -> Iterator[House]:
    """Three machines by the README's blocks, and two on which nothing was done."""
    directory = tmp_path_factory.mktemp("house")
    with bed(directory, base, (*ADDRESSES, *SPARE), has_share=True) as machines:
        for machine in machines:
            machine.copy_in(package, "/srv/")
        members = machines[: len(ADDRESSES)]
        follow(members)
        copy_token(machines)
        root = members[0].run(f"cat {DATA}/coordinator/ca.pem")
        for machine in machines:
            machine.write("/srv/ca.pem", root)
        key = members[0].run(f"cat {DATA}/coordinator/root.key && rm {DATA}/coordinator/root.key")
        yield House(members, machines[len(ADDRESSES) :], key)


@pytest.fixture(autouse=True)
def whole(house: House) -> Iterator[None]:
    """The cluster is healthy before and after, and whatever was made belongs to its user."""
    until_healthy(house.members[0])
    yield
    until_healthy(house.members[0])
    for machine in house.members:
        assert machine.run(STRANGERS) == ""
        assert [shown(machine, unit, "ActiveState") for unit in UNITS] == ["active", "active"]


def id_of(machine: Machine, role: str) -> str:
    return str(json.loads(machine.run(f"cat {DATA}/{role}/{role}.json"))["id"])


def member_ids(machine: Machine) -> tuple[set[str], set[str]]:
    """Coordinators and nodes, as the cluster has them."""
    status = json.loads(machine.run(ACCESS + "filestore status --json"))
    coordinators, nodes = ({each["id"] for each in status[role]} for role in ("coordinators", "nodes"))
    return coordinators, nodes


def is_silent(machine: Machine, node_id: str) -> bool:
    """Whether a node was not heard for longer than one that lives is, as the cluster has it."""
    status = json.loads(machine.run(ACCESS + "filestore status --json || true"))
    (node,) = (each for each in status["nodes"] if each["id"] == node_id)
    return bool(node["heard_ms_ago"] > SILENT_MS or node["state"] == "unheard")


def stored(machine: Machine, name: str) -> str:
    """A file with bytes that were never there; their checksum."""
    put = f"head -c 3000000 /dev/urandom > {name} && filestore put {name} --filename {name} > /dev/null"
    return machine.run(f"{ACCESS}{put} && sha256sum < {name}")


def read_back(machine: Machine, name: str) -> str:
    """By the node of this machine; its checksum."""
    url = f"FILESTORE_URL=https://{machine.address}:7443"
    return machine.run(
        f"{ACCESS}{url} filestore get {name} --force -o back-{name} && sha256sum < back-{name}"
    )


def issuer(machine: Machine, role: str) -> x509.Certificate:
    return certificates_in(machine.run(f"cat {DATA}/{role}/credential.pem"))[1]


def test_root_key_renews_the_intermediate(house: House) -> None:
    machine = house.members[1]
    earlier = issuer(machine, "coordinator")
    machine.write("/srv/root.key", house.root_key)
    machine.run("chmod 600 /srv/root.key")
    with drill("FilestoreAuthorityExpires", {"a coordinator": [machine]}) as typed:
        assert "It signs until 20" in typed.next_block()
    assert not machine.succeeds("test -e /srv/root.key")
    for each in house.members:
        wait_until(
            lambda: issuer(each, "coordinator") != earlier,  # noqa: B023
            what="a certificate by the new one",
            timeout_s=RENEWAL_CHECK_S + WAIT_S,
        )


def test_clock_that_is_wrong_by_a_day_is_named_and_stops_nobody(house: House, tmp_path: Path) -> None:
    victim, other = house.members[2], house.members[0]
    clocks = MachineClocks(victim, tmp_path)
    clocks.move(DAY_S)
    name = id_of(victim, "coordinator")
    wait_until(
        lambda: f"the coordinator {name} is " in other.run(f"{ACCESS}filestore status || true"),
        what="a sentence",
        timeout_s=WAIT_S,
    )
    content = stored(other, "by-day")
    with drill("FilestoreClockOff", {"another": [other]}) as typed:
        clocks.move(0)
        typed.next_block()
    assert read_back(victim, "by-day") == content


class MachineClocks:
    """Those of the processes of both units, which are started anew for it."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self._machine, self._version = machine, 0
        machine.copy_in(library(directory), "/usr/local/lib/")
        machine.run(f"head -c {MAPPED_BYTES} /dev/zero > {CLOCK_TABLE}")
        environment = f"LD_PRELOAD=/usr/local/lib/clock_table.so CLOCK_TABLE={CLOCK_TABLE}"
        for unit in UNITS:
            place = f"/etc/systemd/system/{unit}.service.d/clock.conf"
            machine.write(place, f"[Service]\nEnvironment={environment}\n")
            machine.run(f"systemctl daemon-reload && systemctl restart {unit}")
            until_healthy(machine)

    def move(self, shift_s: int) -> None:
        """From now on they are that far ahead."""
        self._version += 1
        processes = [int(shown(self._machine, unit, "MainPID")) for unit in UNITS]
        self._machine.write("/srv/clock", table_of(self._version, dict.fromkeys(processes, (shift_s, 0))))
        self._machine.run(f"dd if=clock of={CLOCK_TABLE} conv=notrunc status=none")


def test_node_that_was_stolen_is_shut_out_and_joins_anew(house: House) -> None:
    stolen, other = house.members[1], house.members[0]
    content, node = stored(other, "stolen"), id_of(stolen, "node")
    filled = {"NODE_ID": node, "COORDINATOR": other.address, "ADDRESS": stolen.address}
    before = stolen.run(f"cat {DATA}/node/credential.pem")
    with drill("A stolen certificate", {"another": [other], "the stolen one": [stolen]}) as typed:
        typed.next_block(filled)
        status = other.run(f"{ACCESS}filestore status || true")
        assert f"{node} is revoked" in status
        typed.next_block(filled)
    assert stolen.run(f"cat {DATA}/node/credential.pem") != before
    assert not stolen.succeeds("test -e /srv/join.token")
    assert read_back(stolen, "stolen") == content


def test_machine_that_gets_another_address_is_the_same(house: House) -> None:
    moving, other = house.members[2], house.members[0]
    content, node = stored(other, "moving"), id_of(moving, "node")
    with drill("Moving a machine to another address", {"the one that moves": [moving]}) as typed:
        typed.next_block()
        moving.set_address(MOVED_TO)
        moving.run("ip address flush dev host0 && networkctl reload && networkctl reconfigure host0")
        wait_until(lambda: moving.succeeds(f"ip address | grep -w {MOVED_TO}"), what="it", timeout_s=WAIT_S)
        typed.next_block({"ADDRESS": MOVED_TO, "NEW_ID": "moved"})
    assert id_of(moving, "node") == node
    assert "moved" in member_ids(other)[0]
    assert read_back(moving, "moving") == content


def test_everything_that_was_deleted_comes_back_from_the_trash_and_then_from_a_snapshot(house: House) -> None:
    first = house.members[0]
    contents = {name: stored(first, name) for name in ("thesis", "lab", "image")}
    first.run(f"{ACCESS}filestore job run snapshot --wait")
    taken = json.loads(first.run(f"{ACCESS}filestore snapshot ls --json").splitlines()[-1])["snapshot_id"]
    delete = f"filestore rm {' '.join(contents)}"
    first.run(ACCESS + delete)
    with drill("Everything was deleted", {"one": [first]}) as typed:
        typed.next_block()
        assert {name: read_back(first, name) for name in contents} == contents
        first.run(f"{ACCESS}filestore bucket set default --trash-days 0 && {delete}")
        first.run(f"{ACCESS}filestore job run gc --wait --grace 0 --yes-really")
        assert not first.succeeds(f"{ACCESS}filestore get thesis -o gone")
        assert taken in typed.next_block({"SNAPSHOT_ID": taken})
    for machine in house.members:
        assert {name: read_back(machine, name) for name in contents} == contents


def test_all_coordinators_are_lost_and_come_back_from_a_snapshot(house: House) -> None:
    first, *others = house.members
    with drill("Snapshots at another place", {"each": house.members, "one": [first]}) as typed:
        typed.next_block()
        content = stored(first, "kept")
        snapshot = max(re.findall(rf"^{SHARE}/\S+\.sqlite$", typed.next_block(), re.MULTILINE))
    for machine in house.members:
        machine.run(f"systemctl stop filestore-coordinator && rm -r {DATA}/coordinator/*")
    filled = {
        "SNAPSHOT": snapshot,
        "BUNDLE": "cluster.bundle",
        "NEW_ID": "r1",
        "ADDRESS": first.address,
        "COORDINATOR": first.address,
    }
    new_ids = {machine.name: {"NEW_ID": f"r{number}"} for number, machine in enumerate(others, 2)}
    with drill(
        "All coordinators are lost", {"the first": [first], "all": house.members, "the others": others}
    ) as typed:
        while typed.left:
            typed.next_block(filled, **new_ids)
    assert member_ids(first)[0] == {"r1", "r2", "r3"}
    for machine in house.members:
        assert read_back(machine, "kept") == content


def test_disk_goes_to_another_host(house: House) -> None:
    """Where the number of the user is another one."""
    old, new, other = house.members[2], house.spare[0], house.members[0]
    content, node, earlier = stored(other, "carried"), id_of(old, "node"), id_of(old, "coordinator")
    number = old.run("id --user filestore")
    new.run("useradd --system somebody-else && apt install ./filestore_*.deb")
    assert new.run("id --user filestore") != number
    old.end()
    began_s = time.monotonic()
    new.end()
    new.take_disk(old)
    new.boot()
    print(f"the other host booted with it {time.monotonic() - began_s:.1f} s later")
    with drill("A disk goes to another host", {"the new host": [new]}) as typed:
        typed.next_block({"ADDRESS": new.address, "NEW_ID": "carried"})
    house.replace(old, new)
    assert id_of(new, "node") == node
    coordinators, nodes = member_ids(other)
    assert ("carried" in coordinators, earlier in coordinators, len(nodes)) == (True, False, 3)
    assert read_back(new, "carried") == content


def test_machine_that_is_lost_is_replaced_by_a_new_one(house: House) -> None:
    lost, new, other = house.members[1], house.spare[0], house.members[0]
    content = stored(other, "lost")
    gone = {"COORDINATOR_ID": id_of(lost, "coordinator"), "NODE_ID": id_of(lost, "node")}
    lost.end()
    wait_until(lambda: is_silent(other, gone["NODE_ID"]), what="its silence", timeout_s=WAIT_S)
    with drill("A machine is lost", {"another": [other], "the new one": [new]}) as typed:
        for _ in range(3):
            typed.next_block(gone)
    house.replace(lost, new)
    coordinators, nodes = member_ids(other)
    assert not {gone["COORDINATOR_ID"]} & coordinators
    assert new.name in coordinators & nodes
    assert read_back(new, "lost") == content
