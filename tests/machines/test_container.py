"""The container image is built and started; the examples around it fit the schemas of their readers."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.dev.processes import free_ports, wait_until
from tests.debian_packages import require
from tests.machines.bed import make_base
from tests.test_tidy import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CONTAINER = ROOT / "deploy" / "container"
VALIDATORS = ("compose-spec==0.2.1", "kubernetes-validate==1.37.0")  # too large for everybody's environment
INSTALL_TIMEOUT_S = 600.0
PROGRAMS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}
BASE, IMAGE = "localhost/debian:bookworm-slim", "localhost/filestore"
READ_COMPOSE = """
import json, sys
from compose_spec import PyCompose
PyCompose.from_json(sys.stdin.read()).validate()
"""
START_TIMEOUT_S = 60.0
USER = "10001"


@pytest.fixture(scope="session")
def validators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment lie that has them. Skips the test where they cannot be had."""
    place = tmp_path_factory.mktemp("validators")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "pyyaml", *VALIDATORS]
    if (done := subprocess.run(pip, capture_output=True, text=True, check=False)).returncode != 0:
        pytest.skip(f"cannot install {', '.join(VALIDATORS)}: {done.stderr[-300:]}")
    return place / "bin"


def test_kubernetes_example_fits_the_schema(validators: Path) -> None:
    command = [str(validators / "kubernetes-validate"), "--strict", str(CONTAINER / "kubernetes.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource statefulset/") == 2


@pytest.mark.parametrize(("old", "new"), [("", ""), ("restart:", "restartt:")], ids=["as-is", "misspelt"])
def test_compose_example_fits_the_schema(validators: Path, old: str, new: str) -> None:
    python = str(validators / "python")
    merge = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"
    text = (CONTAINER / "compose.yaml").read_text(encoding="utf-8").replace(old, new)
    merged = subprocess.run([python, "-c", merge], input=text, capture_output=True, text=True, check=True)
    services = json.loads(merged.stdout)["services"]
    assert {"c1", "c2", "c3", "n1", "n2", "n3"} <= set(services)
    done = subprocess.run(
        [python, "-c", READ_COMPOSE], input=merged.stdout, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (old == new), done.stderr


class Image:
    """The image, and a container of it whose root nobody may write."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._options = ("--root", str(place / "storage"), "--runroot", str(place / "run"))
        self.root = Path()

    def buildah(self, *words: str) -> str:
        """What it prints. Raises AssertionError with what went wrong."""
        command = ["buildah", *self._options, "--storage-driver", "vfs", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    def command(self, *words: str, data: Path) -> list[str]:
        """What runs a command in it, as its user, on its read-only root, with that for its directory."""
        own_run = 'mount -t tmpfs tmpfs /run && exec "$@"'
        return [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", own_run, "sh"),
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--kill-signal=SIGTERM"),
            *("--read-only", "--directory", str(self.root), "--user", "filestore", "--tmpfs=/tmp"),
            *("--resolv-conf=off", "--timezone=off", "--link-journal=no"),
            f"--bind={data}:/var/lib/filestore/coordinator",
            *("--chdir=/var/lib/filestore", "--", *words),
        ]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Image]:
    """Built from the Containerfile, on a Debian that is made here: no registry is asked."""
    require(PROGRAMS, timeout_s=INSTALL_TIMEOUT_S)
    place = tmp_path_factory.mktemp("image")
    made = Image(place)
    slim = make_base(place, suite="bookworm", included=("ca-certificates",))
    with tarfile.open(place / "slim.tar", "w") as archive:
        archive.add(slim, arcname=".")
    container = made.buildah("from", "--pull-never", "scratch")
    made.buildah("add", container, str(place / "slim.tar"), "/")
    made.buildah("commit", container, BASE)
    build = (
        "build",
        "--isolation",
        "chroot",
        "--pull-never",
        "--format",
        "docker",
        "--build-arg",
        f"BASE={BASE}",
    )
    made.buildah(*build, "--file", str(CONTAINER / "Containerfile"), "--tag", IMAGE, ".")
    made.root = Path(made.buildah("mount", made.buildah("from", "--pull-never", IMAGE)))
    for name in (BASE, IMAGE):
        print(f"{name}: {json.loads(made.buildah('images', '--json', name))[0]['size']}")
    yield made
    with suppress(AssertionError):
        made.buildah("umount", "--all")
        made.buildah("rm", "--all")


def test_image_is_for_a_user_without_rights_and_says_whether_it_is_healthy(image: Image) -> None:
    config = json.loads(image.buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["/usr/bin/filestore"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/libexec/filestore-healthcheck"]
    assert config["StopSignal"] == "SIGTERM"


def test_coordinator_of_the_image_is_healthy_until_it_is_told_to_stop(image: Image, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    os.chown(data, int(USER), int(USER))
    peer, api = free_ports(2)
    init = ("coordinator", "init", "--id", "c1", "--data", "coordinator", "--development", "--replicas", "1")
    program = ("/usr/bin/filestore", *init, "--address", f"127.0.0.1:{peer}:{api}")
    subprocess.run(image.command(*program, data=data), check=True, capture_output=True)
    plain = free_ports(1)[0]
    running = ("coordinator", "run", "--data", "coordinator", "--http", f"127.0.0.1:{plain}")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            image.command("/usr/bin/filestore", *running, data=data),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    check = [sys.executable, str(CONTAINER / "healthcheck"), str(plain)]
    try:
        wait_until(
            lambda: subprocess.run(check, check=False).returncode == 0,
            what=f"health; see {tmp_path / 'log'}",
            timeout_s=START_TIMEOUT_S,
        )
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)
    assert '"message": "stopped"' in (tmp_path / "log").read_text()
    assert subprocess.run(check, check=False).returncode == 1
