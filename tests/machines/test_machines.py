"""Three Debian machines with the package: what systemd makes of it, and what a power cut leaves."""

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.machines.bed import Machine
from tests.machines.operator import ACCESS, STRANGERS, UNITS, WAIT_S, shown, until_healthy

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXPOSURE_MAX = 1.5
ACKNOWLEDGED_MIN = 200  # files, before the power goes
PROGRAMS = Path(__file__).with_name("programs")
PROMISED = {
    "Type": "notify",
    "Restart": "on-failure",
    "RestartPreventExitStatus": "2",
    "WatchdogUSec": "1min",
    "TimeoutStopUSec": "45s",
    "LimitNOFILE": "1048576",
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateUsers": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
}
SECRETS = ("cluster.key", "credential.pem", "genesis.bin", "admin.token")


def test_machines_have_what_the_package_brings_and_nothing_is_open_to_others(machines: list[Machine]) -> None:
    """First: later ones change settings. No other user reaches what lies in a directory of mode 0700."""
    for machine in machines:
        assert machine.run("dpkg --verify filestore") == ""  # /etc/filestore as it came
        assert all(shown(machine, unit, "UnitFileState") == "enabled" for unit in UNITS)
        assert machine.run(STRANGERS) == ""
        told = machine.run("cd /var/lib/filestore && stat -c '%n %a %U %G' coordinator node")
        assert told == "coordinator 700 filestore filestore\nnode 700 filestore filestore\n"
        named = " -o ".join(f"-name {name}" for name in SECRETS)
        modes = machine.run(f"find /var/lib/filestore \\( {named} \\) -printf '%m\\n'").split()
        assert len(modes) >= 4
        assert set(modes) == {"600"}


def test_both_units_run_and_say_how_they_are(machines: list[Machine]) -> None:
    for machine in machines:
        for unit in UNITS:
            assert shown(machine, unit, "ActiveState") == "active"
            assert shown(machine, unit, "User") == "filestore"

    def said(unit: str) -> list[str]:
        return sorted(shown(machine, unit, "StatusText") for machine in machines)

    def are_well() -> bool:
        leader = re.fullmatch(r"Follows (m\d), Follows \1, Leads", ", ".join(said(UNITS[0])))
        return leader is not None and set(said(UNITS[1])) == {"Serves"}

    wait_until(are_well, what="one that leads, and nodes that serve", timeout_s=WAIT_S)


@pytest.mark.parametrize("unit", UNITS)
def test_units_may_do_little(machines: list[Machine], unit: str) -> None:
    told = machines[0].run(f"systemd-analyze security --no-pager {unit}")
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", told)
    assert found is not None
    print(f"{unit}: {found[1]}")
    assert float(found[1]) <= EXPOSURE_MAX, told


@pytest.mark.parametrize("unit", UNITS)
def test_units_are_run_by_systemd_as_promised(machines: list[Machine], unit: str) -> None:
    told = machines[0].run(f"systemctl show --property {','.join(PROMISED)} {unit}")
    assert dict(line.split("=", 1) for line in told.splitlines()) == PROMISED


def test_what_one_machine_takes_another_gives(machines: list[Machine]) -> None:
    machines[0].run(ACCESS + "head -c 5000000 /dev/urandom > sent && filestore put sent --filename sent")
    content = machines[0].run("sha256sum < sent")
    machines[1].run(ACCESS + "filestore get sent -o got")
    assert machines[1].run("sha256sum < got") == content


def test_command_is_explained_and_completed(machines: list[Machine]) -> None:
    assert "filestore-node-join" in machines[0].run("man -w filestore-node-join")
    completion = machines[0].run("cat /usr/share/bash-completion/completions/filestore")
    assert "_filestore_completion" in completion
    assert machines[0].run("filestore --version").startswith("filestore, version ")


def test_reload_reads_the_log_level_and_ends_nothing(machines: list[Machine]) -> None:
    machine = machines[1]
    for unit, file in (("filestore-coordinator", "coordinator"), ("filestore-node", "node")):
        pid = shown(machine, unit, "MainPID")
        machine.run(f"echo 'log-level = \"debug\"' >> /etc/filestore/{file}.toml && systemctl reload {unit}")
        using = f"journalctl -u {unit} -o cat | grep -q 'using the certificate on disk'"
        wait_until(lambda: machine.succeeds(using), what="the reload", timeout_s=WAIT_S)  # noqa: B023
        assert shown(machine, unit, "MainPID") == pid
        assert shown(machine, unit, "ActiveState") == "active"


def test_workers_run_in_the_confines_of_the_unit(machines: list[Machine]) -> None:
    machine = machines[0]
    machine.run("echo 'workers = 2' >> /etc/filestore/node.toml && systemctl restart filestore-node")
    until_healthy(machine)
    wait_until(
        lambda: shown(machine, "filestore-node", "StatusText") == "Serves", what="workers", timeout_s=WAIT_S
    )
    assert int(machine.run("pgrep --count --full node.worker_main")) == 1


def test_process_without_a_sign_of_life_is_replaced(machines: list[Machine]) -> None:
    machine = machines[2]
    machine.write(
        "/etc/systemd/system/filestore-node.service.d/short.conf",
        "[Service]\nWatchdogSec=4\nTimeoutAbortSec=1\nTimeoutStopSec=5\n",
    )
    machine.run("systemctl daemon-reload && systemctl restart filestore-node")
    until_healthy(machine)
    pid = shown(machine, "filestore-node", "MainPID")
    machine.run(f"kill -STOP {pid}")
    wait_until(
        lambda: shown(machine, "filestore-node", "MainPID") not in ("0", pid),
        what="another process",
        timeout_s=WAIT_S,
    )
    assert "watchdog" in machine.run("journalctl -u filestore-node").lower()
    until_healthy(machine)


def test_machine_that_loses_power_has_all_that_was_acknowledged(machines: list[Machine]) -> None:
    sender, victim = machines[0], machines[1]
    sums = {}
    for number in range(5):
        content = hashlib.sha256(str(number).encode()).hexdigest() * 20_000
        sender.write(f"/srv/power-{number}", content)
        sender.run(ACCESS + f"filestore put power-{number} --filename power-{number}")
        sums[number] = hashlib.sha256(content.encode()).hexdigest()
    victim.cut_power()
    began_s = time.monotonic()
    sender.run(ACCESS + "filestore put power-0 --filename meanwhile")
    print(f"an upload just after the cut: {time.monotonic() - began_s:.1f} s")
    victim.boot()
    booted_s = time.monotonic() - began_s
    until_healthy(victim)
    print(f"healthy again: {time.monotonic() - began_s:.1f} s after the cut, booted after {booted_s:.1f} s")
    for number, expected in sums.items():
        victim.run(
            ACCESS + f"FILESTORE_URL=https://10.0.0.2:7443 filestore get power-{number} -o back-{number}"
        )
        assert victim.run(f"sha256sum < back-{number}").split()[0] == expected


def test_machines_that_all_lose_power_at_work_have_all_that_was_acknowledged(machines: list[Machine]) -> None:
    """Small files, which share packs and syncs, and larger ones, from many clients at once."""
    sender = machines[2]
    for name in ("load.py", "read_back.py"):
        sender.write(f"/srv/{name}", (PROGRAMS / name).read_text())
    client = f"{ACCESS}/opt/filestore/bin/python3 -I"
    sender.run(f"{client} /srv/load.py > /srv/acknowledged 2> /srv/load.err &")

    def count() -> int:
        return int(sender.run("wc -l < /srv/acknowledged"))

    wait_until(lambda: count() >= ACKNOWLEDGED_MIN, what="files that are acknowledged", timeout_s=WAIT_S)
    with ThreadPoolExecutor(len(machines)) as threads:
        list(threads.map(Machine.cut_power, machines))
    began_s = time.monotonic()
    for machine in machines:
        machine.boot()
    until_healthy(sender)
    print(f"healthy again: {time.monotonic() - began_s:.1f} s after all machines were switched on")
    told = sender.run(f"{client} /srv/read_back.py /srv/acknowledged")
    print(f"read back after a power cut of all machines: {told.strip()}")
    assert int(told.split()[0]) >= ACKNOWLEDGED_MIN


def test_package_that_is_installed_again_keeps_settings_and_starts_processes_anew(
    machines: list[Machine],
) -> None:
    machine = machines[1]
    before = [shown(machine, unit, "MainPID") for unit in UNITS]
    machine.run("apt-get install --yes --reinstall ./filestore_*.deb")
    assert all(shown(machine, unit, "MainPID") != pid for unit, pid in zip(UNITS, before, strict=True))
    assert "debug" in machine.run("cat /etc/filestore/node.toml")
    until_healthy(machine)


def test_purged_package_leaves_what_the_cluster_keeps(machines: list[Machine]) -> None:
    machine = machines[2]
    machine.run("apt-get purge --yes filestore")
    assert not machine.succeeds("pgrep --full /opt/filestore")
    machine.run(
        "test -e /var/lib/filestore/node/node.json && test ! -e /etc/filestore && test ! -e /opt/filestore"
    )
    machine.run(
        "apt-get install --yes ./filestore_*.deb && systemctl start filestore-coordinator filestore-node"
    )
    until_healthy(machine)
