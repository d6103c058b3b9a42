"""What may pass when a member starts: its exit code makes systemd start it again (2 does not)."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from deploy.base.failures import USAGE
from tests.cluster.harness import FILESTORE
from tests.cluster.services import WAIT_S, Place, Service, run, service

LOOKED_S = 3
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ABSENT = "192.0.2.7"  # RFC 5737: no machine has it


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The directories of a coordinator and a node that do not run."""
    made = Place(tmp_path)
    made.make_coordinator()
    with service(tmp_path, "c1", "coordinator", "run", "--data", str(made.coordinator)) as coordinator:
        coordinator.until("READY=1")
        made.make_node()
        coordinator.process.terminate()
        coordinator.process.wait(WAIT_S)
    return made


def ended(role: str, data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a member that has to end by itself, as its unit does."""
    config = data.parent / f"{role}.toml"
    config.write_text(f'data = "{data}"\n')
    command = [FILESTORE, role, "run", "--config", str(config), *options]
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WAIT_S, env=environment
    )


def lasts(started: Service) -> bool:
    """Whether a member still runs after a while."""
    try:
        started.process.wait(LOOKED_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def directory(place: Place, role: str) -> Path:
    return place.coordinator if role == "coordinator" else place.node


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_directory_that_is_not_mounted_yet_is_asked_for_again(place: Place, role: str) -> None:
    data = directory(place, role)
    data.rename(data.with_name("unmounted"))
    done = ended(role, data)
    assert done.returncode not in (0, USAGE), done.stderr
    assert str(data) in done.stderr
    data.mkdir()  # the place where it will be mounted
    done = ended(role, data)
    assert done.returncode not in (0, USAGE), done.stderr


@pytest.mark.parametrize("address", [ABSENT, "not-yet.invalid"])
@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_address_or_name_that_is_not_there_yet_ends_no_start_for_good(
    place: Place, role: str, address: str
) -> None:
    """A name is looked up by others only; an address that this machine lacks is told, and asked for again."""
    if role == "coordinator":
        data = place.directory / "c2"
        init = ("coordinator", "init", "--id", "c2", "--development", "--replicas", "1")
        run(*init, "--address", f"{address}:{place.plain}:{place.node_plain}", "--data", str(data))
    else:
        with service(place.directory, "again", "coordinator", "run", "--data", str(place.coordinator)) as one:
            one.until("READY=1")
            data = place.make_node(name="n2", address=address)
    if address == ABSENT:
        done = ended(role, data)
        assert done.returncode not in (0, USAGE), done.stderr
        assert ABSENT in done.stderr
        return
    with service(place.directory, "named", role, "run", "--data", str(data)) as named:
        assert lasts(named)


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_port_that_another_process_has_is_asked_for_again(place: Place, role: str) -> None:
    with socket.create_server(("127.0.0.1", place.plain)):
        done = ended(role, directory(place, role), "--http", f"127.0.0.1:{place.plain}")
    assert done.returncode not in (0, USAGE), done.stderr
    assert str(place.plain) in done.stderr


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_certificate_for_browsers_that_is_not_there_yet_is_asked_for_again(place: Place, role: str) -> None:
    missing = place.directory / "web.pem"
    options = ("--web-certificate", str(missing), "--web-key", str(missing))
    done = ended(role, directory(place, role), *options)
    assert done.returncode not in (0, USAGE), done.stderr
    assert str(missing) in done.stderr
