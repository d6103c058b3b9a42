"""What an operator of the machines does again and again."""

import time

from deploy.processes import wait_until
from tests.machines.bed import Machine

UNITS = ("filestore-coordinator", "filestore-node")
ACCESS = """export FILESTORE_URL="https://10.0.0.1:7443 https://10.0.0.2:7443 https://10.0.0.3:7443"
export FILESTORE_CA=/var/lib/filestore/coordinator/ca.pem
export FILESTORE_TOKEN_FILE=/srv/admin.token
"""
# What belongs to another user. Files that a process writes are renamed, and are gone, while `find` looks.
STRANGERS = (
    "find /var/lib/filestore -ignore_readdir_race -mindepth 1"
    " ! -name lost+found ! -name '.*.tmp' ! -user filestore"
)
WAIT_S = 120.0


def copy_token(machines: list[Machine]) -> None:
    """The admin's token on every machine, where ACCESS looks for it."""
    token = machines[0].run("cat /var/lib/filestore/coordinator/admin.token")
    for machine in machines:
        machine.write("/srv/admin.token", token)
        machine.run("chmod 600 /srv/admin.token")


def shown(machine: Machine, unit: str, name: str) -> str:
    """A property of a unit."""
    return machine.run(f"systemctl show --property {name} --value {unit}").strip()


def until_healthy(machine: Machine) -> float:
    """Wait until the cluster is; how many seconds that took."""
    began_s = time.monotonic()
    wait_until(lambda: machine.succeeds(ACCESS + "filestore status"), what="health", timeout_s=WAIT_S)
    return time.monotonic() - began_s
