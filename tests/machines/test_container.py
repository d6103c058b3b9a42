"""The container image is built and started; the examples around it fit the schemas of their readers."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.debian_packages import require
from tests.machines.bed import Namespaces, make_base
from tests.sources import ROOT

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
VOLUMES = ("coordinator", "node", "tokens")


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


def documents(validators: Path, text: str) -> Any:
    """What YAML says, anchors and all."""
    read = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    command = [str(validators / "python"), "-c", read]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_kubernetes_example_has_what_a_cluster_there_needs(validators: Path) -> None:
    resources = documents(validators, (CONTAINER / "kubernetes.yaml").read_text(encoding="utf-8"))
    budgets = [each["spec"] for each in resources if each["kind"] == "PodDisruptionBudget"]
    sets = [each["spec"] for each in resources if each["kind"] == "StatefulSet"]
    assert [each["maxUnavailable"] for each in budgets] == [1, 1]
    assert [each["selector"] for each in budgets] == [each["selector"] for each in sets]
    for each in sets:
        assert each["replicas"] == 3
        assert each["volumeClaimTemplates"]
        [container] = each["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("old", "new"), [("", ""), ("restart:", "restartt:")], ids=["as-is", "misspelt"])
def test_compose_example_fits_the_schema(validators: Path, old: str, new: str) -> None:
    text = (CONTAINER / "compose.yaml").read_text(encoding="utf-8").replace(old, new)
    [merged] = documents(validators, text)
    services = merged["services"]
    assert {"c1", "c2", "c3", "n1", "n2", "n3"} <= set(services)
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]
    done = subprocess.run(
        [str(validators / "python"), "-c", READ_COMPOSE],
        input=json.dumps(merged),
        capture_output=True,
        text=True,
        check=False,
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
        """What runs a command in it, as its user, on its read-only root, with that for its directories."""
        own_run = 'mount -t tmpfs tmpfs /run && exec "$@"'
        volumes = [f"--bind={data / name}:/var/lib/filestore/{name}" for name in VOLUMES]
        return [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", own_run, "sh"),
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--kill-signal=SIGTERM"),
            *("--read-only", "--directory", str(self.root), "--user", "filestore", "--tmpfs=/tmp"),
            *("--resolv-conf=off", "--timezone=off", "--link-journal=no", *volumes),
            *("--chdir=/var/lib/filestore", "--", *words),
        ]


class Host:
    """A network of its own for containers of the image, where the ports of the examples are free."""

    def __init__(self, image: Image, place: Path, stack: ExitStack) -> None:
        self._image, self._place, self._stack = image, place, stack
        self._namespaces = Namespaces(stack)
        for name in VOLUMES:
            (place / name).mkdir(mode=0o700)
            os.chown(place / name, int(USER), int(USER))

    def run(self, *words: str) -> str:
        """A container with this command, to its end; what it prints. Raises CalledProcessError."""
        return subprocess.run(self._command(*words), check=True, capture_output=True, text=True).stdout

    def start(self, name: str, *words: str) -> "Container":
        """One that goes on."""
        log = self._place / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command("/usr/bin/filestore", *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._stack.callback(process.kill)
        return Container(process, log)

    def is_healthy(self, *ports: str) -> bool:
        """By the image's own healthcheck, at the ports of the examples or at these."""
        check = self._command("/usr/libexec/filestore-healthcheck", *ports)
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def _command(self, *words: str) -> list[str]:
        return self._namespaces.inside(*self._image.command(*words, data=self._place))


@dataclass
class Container:
    """It runs until `stop`."""

    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> str:
        """As the runtime stops it; what it has logged."""
        self.process.terminate()
        self.process.wait(START_TIMEOUT_S)
        return self.log.read_text()


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


def test_both_roles_of_the_image_are_healthy_until_they_are_told_to_stop(
    image: Image, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    program = "/usr/bin/filestore"
    with ExitStack() as stack:
        host = Host(image, tmp_path, stack)
        init = ("coordinator", "init", "--id", "c1", "--data", "coordinator", "--development")
        host.run(program, *init, "--replicas", "1", "--address", "127.0.0.1:7442:7441")
        assert not host.is_healthy()
        running = ("run", "--data", "coordinator", "--http", "127.0.0.1:8441")
        coordinator = host.start("c1", "coordinator", *running)
        wait_until(host.is_healthy, what=f"health; see {coordinator.log}", timeout_s=START_TIMEOUT_S)
        access = ("--url", "https://127.0.0.1:7441", "--ca", "coordinator/ca.pem")
        admin = ("--token-file", "coordinator/admin.token")
        host.run(program, "token", "join", "--node-id", "n1", "-o", "tokens/n1", *access, *admin)
        join = ("--id", "n1", "--data", "node", "--token-file", "tokens/n1", "--address", "127.0.0.1")
        host.run(program, "node", "join", *join, "--coordinator", "https://127.0.0.1:7441")
        node = host.start("n1", "node", "run", "--data", "node", "--http", "127.0.0.1:8443")
        wait_until(lambda: host.is_healthy("8443"), what=f"health; see {node.log}", timeout_s=START_TIMEOUT_S)
        put = ("put", "--filename", "kept", "coordinator/ca.pem", "--url", "https://127.0.0.1:7443")
        wait_until(
            lambda: bool(host.run(program, *put, "--ca", "coordinator/ca.pem", *admin)),
            what="an upload",
            timeout_s=START_TIMEOUT_S,
        )
        assert '"message": "stopped"' in node.stop()
        assert '"message": "stopped"' in coordinator.stop()
        assert not host.is_healthy()
