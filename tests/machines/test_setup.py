"""`filestore setup` on machines with the package: said again, by the wrong user, cut short, and anew."""

import re

import pytest

from deploy.processes import wait_until
from deploy.setup.running import READY_S
from tests.machines.bed import Failed, Machine
from tests.machines.manual import PRINTED
from tests.machines.operator import ACCESS, STRANGERS, UNITS, WAIT_S, shown, until_healthy

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

COORDINATOR = "/var/lib/filestore/coordinator"
STOP = f"systemctl stop {' '.join(UNITS)}"


def line_from(machine: Machine) -> str:
    """What one more machine is to run."""
    found = PRINTED.search(machine.run(f"filestore token setup --data {COORDINATOR}"))
    assert found is not None
    return found[0]


def test_setup_that_is_said_again_changes_nothing(machines: list[Machine]) -> None:
    for machine in machines:
        before = [shown(machine, unit, "MainPID") for unit in UNITS]
        told = machine.run("filestore setup")
        assert "This machine is coordinator m" in told
        assert not PRINTED.search(told)
        assert [shown(machine, unit, "MainPID") for unit in UNITS] == before
        assert machine.run(STRANGERS) == ""


def test_user_without_rights_is_told_so(machines: list[Machine]) -> None:
    with pytest.raises(Failed) as refused:
        machines[0].run("runuser -u nobody -- filestore setup --name other")
    told = str(refused.value)
    assert "Path '/var/lib/filestore' is not readable" in told
    assert "Traceback" not in told


def give_up(machines: list[Machine]) -> Machine:
    """The third machine, of which nothing is left on it, nor in the cluster."""
    machine = machines[2]
    read = "import json; print(json.load(open('/var/lib/filestore/node/node.json'))['id'])"
    name = machine.run(f'python3 -c "{read}"').strip()
    machine.run(f"{STOP}\nrm -r {COORDINATOR} /var/lib/filestore/node")
    machines[0].run(f"{ACCESS}filestore coordinator remove {name}")
    remove = f"{ACCESS}filestore node remove {name} --force --is-gone"  # refused while it was heard just now
    wait_until(lambda: machines[0].succeeds(remove), what="the end of the node", timeout_s=WAIT_S)
    return machine


def test_setup_tells_at_once_of_a_unit_that_does_not_start(machines: list[Machine]) -> None:
    machine = give_up(machines)
    machine.run("cp /etc/filestore/node.toml /srv && echo 'nonsense = 1' >> /etc/filestore/node.toml")
    with pytest.raises(Failed) as refused:
        machine.run(f"{line_from(machines[0])} --name m4", timeout_s=READY_S / 2)
    assert "filestore-node.service does not serve. `journalctl -u filestore-node" in str(refused.value)
    assert "unknown option 'nonsense'" in machine.run("journalctl -u filestore-node -o cat")
    machine.run("cp /srv/node.toml /etc/filestore/node.toml")
    told = machine.run("filestore setup")  # without the text: it goes on
    assert "This machine is coordinator m4 and node m4 of the cluster lab" in told
    assert machine.run(STRANGERS) == ""
    until_healthy(machines[0])


def test_without_start_it_prints_what_starts_the_units(machines: list[Machine]) -> None:
    machine = machines[2]
    machine.run(STOP)
    told = machine.run("filestore setup --no-start")
    assert all(shown(machine, unit, "ActiveState") == "inactive" for unit in UNITS)
    assert machine.run(STRANGERS) == ""
    found = re.search(r"^  (systemctl enable --now .*)$", told, re.MULTILINE)
    assert found is not None
    machine.run(found[1])
    until_healthy(machines[0])


@pytest.mark.parametrize(("file", "name"), [("coordinator/coordinator.json", "m5"), ("node/node.json", "m6")])
def test_setup_that_was_killed_goes_on(machines: list[Machine], file: str, name: str) -> None:
    """Before the units are started, and what lies there is their user's."""
    machine = give_up(machines)
    machine.run(
        f"{line_from(machines[0])} --name {name} > /srv/said 2>&1 & pid=$!\n"
        f"until [ -e /var/lib/filestore/{file} ] || ! kill -0 $pid 2> /dev/null; do :; done\n"
        "kill -KILL $pid\nwait $pid || true"
    )
    assert "This machine is" not in machine.run("cat /srv/said")
    assert f"node {name} of the cluster lab" in machine.run("filestore setup")
    assert machine.run(STRANGERS) == ""
    until_healthy(machines[0])
