"""README and tutorials do what they say: every sh block runs, in order.

A block is preceded by a comment that names its group. Groups run as one shell session: `tour` and `first
cluster` in a directory with a development cluster; `machines`, and `hand` of docs/by-hand.md, with loopback
stand-ins for the three machines (addresses, ports and directories are replaced, loopback is allowed at init,
and what runs in the foreground there goes to the background here). The others (`make run`, `install`) are run
dry: what they would start has tests of its own. A block without a group fails.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from deploy.processes import PORTS_VARIABLE, free_ports, wait_until
from tests.cluster.harness import Cluster, require_curl
from tests.documents import CODE, DECISIONS, LINES_MAX, PAGES
from tests.machines.runbook import DRILLS, exports, sections
from tests.sources import committed_files
from tests.test_tidy import LINE_CHARACTERS_MAX

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- test: (?P<group>[\w ]+) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL)
TUTORIALS = [
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("first-cluster", "three-machines", "by-hand", "api")
]


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return the group and the text of each block."""
    return [(match["group"] or "", match["text"]) for match in BLOCK.finditer(text)]


BLOCKS = [*blocks_of(README), *(block for text in TUTORIALS for block in blocks_of(text))]
SHELL_TIMEOUT_S = 200.0
README_LINES_MAX = 150
ROLES = ("coordinator", "node")
PACKAGED = "/var/lib/filestore"
# The ports that the README leaves at their defaults, by the command that has them.
MACHINES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def in_group(group: str) -> list[tuple[str, str]]:
    """Return the blocks of a group; those of `machines` are the ones of docs/three-machines.md."""
    blocks = blocks_of(TUTORIALS[1]) if group == "machines" else BLOCKS
    return [(name, text) for name, text in blocks if name == group or name.split(" ")[0] == group]


def run_shell(script: str, directory: Path, environment: dict[str, str]) -> str:
    """Run a script with `set -eu`; everything that it started is ended. Its output; fails when it does."""
    process = subprocess.Popen(
        ["bash", "-c", f"set -eu -o pipefail\n{script}"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SHELL_TIMEOUT_S)
    finally:
        # What the script left in the background is in its session, of which we are not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


def environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FILESTORE_") or name == PORTS_VARIABLE
    }
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_every_block_belongs_to_a_group() -> None:
    assert len(BLOCKS) == sum(text.count("```sh") for text in (README, *TUTORIALS))
    assert {name for name, _ in BLOCKS} == {
        "make run",
        "install",
        "tour",
        "first cluster",
        "machines on 1",
        "machines on 2 3",
        "machines on 1 2 3",
        "hand",
        "hand background",
    }


def test_every_block_of_a_drill_is_typed_on_machines() -> None:
    assert sum(map(len, sections().values())) + 1 == DRILLS.count("```sh")
    assert exports().count("export ") == exports().count("\n") == 3
    drills = (ROOT / "tests" / "machines" / "test_runbook.py").read_text(encoding="utf-8")
    for title, blocks in sections().items():
        for place in ("", *(block.place for block in blocks)):
            assert f'"{place or title}"' in drills, (title, place)


def test_tour_works_as_it_stands(cluster: Cluster, tmp_path: Path) -> None:
    require_curl()
    (tmp_path / ".filestore").symlink_to(cluster.directory)
    output = ""
    for group in ("tour", "first cluster"):
        script = "\n".join(text for _, text in in_group(group))
        output += run_shell(script, tmp_path, environment() | {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert '"upload_url"' in output
    assert "hello{" in output
    assert '"user_id":"alice"' in output
    assert "healthy" in output
    assert "/api/v1/public/files/" in output  # the link that `share create` printed
    assert "hello, lab" in output  # by the public link
    assert '"offset":3000000' in output  # of the upload that was cut
    for name in (".filestore/alice.json", ".filestore/link.json"):
        for line in re.findall(r'"token":"([^"]+)"', (tmp_path / name).read_text()):
            cluster.remember(line)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_machines_work_as_described(tmp_path: Path) -> None:
    """The printed lines are run as they were printed, but for what tells stand-ins on one machine apart."""
    ports = free_ports(4 * len(MACHINES))
    package, first, join, *rest = (text for _, text in in_group("machines"))
    assert package == "apt install ./filestore_*.deb\n"  # tests/machines does it
    assert re.sub(r"'.*'", "'TEXT'", join) == "filestore setup --join <<< 'TEXT'\n"
    script = f"{first.strip()} --development {stand_in(1, ports, tmp_path)} | tee printed\n"
    script += running(1, ports, tmp_path)
    for number in (2, 3):
        script += f"line=$(grep -o \"filestore setup --join <<< '.*'\" printed | sed -n {number - 1}p)\n"
        script += f'eval "$line {stand_in(number, ports, tmp_path)}"\n' + running(number, ports, tmp_path)
    script += wait_before_status("\n".join(rest)).replace(f"{PACKAGED}/", f"{tmp_path}/m1/")
    for number, address in enumerate(MACHINES, 1):
        script = script.replace(f"{address}:7443", f"127.0.0.1:{ports[4 * number - 1]}")
    output = run_shell(script.replace(MACHINES[0], "127.0.0.1"), tmp_path, environment())
    assert "lab: healthy" in output
    assert all(f"m{number} " in output for number in (1, 2, 3))


def stand_in(number: int, ports: list[int], directory: Path) -> str:
    """The options of one of several machines that are one."""
    names = ("--peer-port", "--api-port", "--node-peer-port", "--node-api-port")
    places = " ".join(f"{name} {port}" for name, port in zip(names, ports_of(number, ports), strict=True))
    return f"--name m{number} --data {directory}/m{number} {places}"


def ports_of(number: int, ports: list[int]) -> list[int]:
    return ports[4 * number - 4 : 4 * number]


def running(number: int, ports: list[int], directory: Path) -> str:
    """What `filestore setup` says to run where there are no units, until both take clients.

    Before that the status may be about the processes of the setup, which have ended.
    """
    data = f"{directory}/m{number}"
    script = in_background("".join(f"filestore {role} run --data {data}/{role}\n" for role in ROLES))
    for port in ports_of(number, ports)[1::2]:
        answers = f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null"
        script += f"for _ in $(seq 300); do {answers} && break; sleep 0.1; done\n"
    return script


def test_readme_has_the_same_commands_for_three_machines() -> None:
    blocks = [block for block in blocks_of(README) if block[0].startswith("machines ")]
    assert blocks == in_group("machines")[:3]


@pytest.mark.long
def test_three_machines_work_by_hand_as_described(tmp_path: Path) -> None:
    ports = free_ports(4 * len(MACHINES))
    script = "\n".join(
        in_background(text) if "background" in group else text for group, text in in_group("hand")
    )
    output = run_shell(on_loopback(script, ports, tmp_path), tmp_path, environment())
    assert "lab: healthy" in output
    assert all(f"n{number} " in output for number in (1, 2, 3))


def on_loopback(script: str, ports: list[int], directory: Path) -> str:
    """The stand-ins: one address for three machines, so ports tell them apart."""
    for number, address in enumerate(MACHINES, 1):
        peer, api, node_api, node_peer = ports[4 * number - 4 : 4 * number]
        script = script.replace(f"c{number}={address}", f"c{number}=127.0.0.1:{peer}:{api}")
        script = script.replace(f"{address}:7441", f"127.0.0.1:{api}")
        script = script.replace(f"{address}:7443", f"127.0.0.1:{node_api}")
        script = re.sub(
            rf"--address {re.escape(address)}$",
            f"--address 127.0.0.1 --api-port {node_api} --peer-port {node_peer}",
            script,
            flags=re.MULTILINE,
        )
    script = script.replace("--cluster lab", "--cluster lab --development")
    script = script.replace("/var/lib/filestore", str(directory))
    # On real machines the operator copies the bundle; here it only changes its directory.
    script = script.replace("--bundle cluster.bundle", f"--bundle {directory}/coordinator/cluster.bundle")
    assert "10.0.0." not in script
    return wait_before_status(script)


def in_background(text: str) -> str:
    return "".join(f"{line} > /dev/null 2>&1 &\n" for line in text.splitlines())


def wait_before_status(script: str) -> str:
    """The README's reader needs a moment between two machines; a script asks until the nodes are there."""
    ready = "for _ in $(seq 100); do filestore status > /dev/null 2>&1 && break; sleep 0.2; done\n"
    return script.replace("filestore status\n", f"{ready}filestore status\n")


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    texts = [README, *TUTORIALS, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    named = {name for text in texts for name in re.findall(r"(?:^|`)make ([a-z0-9]+)", text, re.MULTILINE)}
    assert named >= {"run", "install", "test", "check", "bench"}
    assert named <= targets


def test_make_blocks_end_in_what_is_tested_elsewhere() -> None:
    text = "".join(text for name, text in BLOCKS if name in {"make run", "install"})
    output = run_shell(
        re.sub(r"^make", "make --dry-run --always-make", text, flags=re.MULTILINE), ROOT, environment()
    )
    assert "filestore dev --data .filestore" in output
    runtime = "--require-hashes -r constraints-runtime.txt"
    assert runtime in output
    install = next(text for name, text in BLOCKS if name == "install" and "make" in text)
    install = re.sub(r"^make", "make --dry-run --always-make", install, flags=re.MULTILINE)
    output = run_shell(install, ROOT, environment())
    assert runtime in output
    assert "-r constraints.txt" not in output  # what developers need besides


def ready_cluster(checkout: Path) -> dict[str, list[dict[str, str | int]]]:
    """What cluster.json says, once it is there."""
    file = checkout / ".filestore" / "cluster.json"
    wait_until(file.exists, what="cluster.json", timeout_s=90)
    described: dict[str, list[dict[str, str | int]]] = json.loads(file.read_text())
    return described


def interrupted(make: "subprocess.Popen[bytes]", pids: list[int]) -> None:
    """Ctrl-C: every process of the terminal's group gets SIGINT. All must end by themselves."""
    os.killpg(make.pid, signal.SIGINT)
    make.wait(60)
    wait_until(lambda: not any(map(is_alive, pids)), what="every process ended", timeout_s=30)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def copied(path: Path, checkout: Path) -> None:
    copy = checkout / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, copy)


@pytest.mark.long
def test_make_run_brings_up_a_cluster_and_brings_it_back(tmp_path: Path) -> None:
    require_curl()
    checkout = tmp_path / "checkout"
    for path in committed_files():
        copied(path, checkout)
        if path.suffix == ".py" and (compiled := Path(cache_from_source(str(path)))).exists():
            copied(compiled, checkout)
    for name in ("constraints-runtime.txt", "pyproject.toml", "client/pyproject.toml"):
        os.utime(checkout / name, (0, 0))  # older than what is installed: nothing is installed again
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    curl = ["curl", "-K", ".filestore/curl.conf"]
    content, urls = b"x" * 100_000, []
    (checkout / "lab.bin").write_bytes(content)
    for start in range(2):
        make = subprocess.Popen(["make", "run"], cwd=checkout, env=environment(), start_new_session=True)
        try:
            described = ready_cluster(checkout)
            members = described["nodes"] + described["coordinators"]
            node = described["nodes"][0]["url"]
            if start == 0:
                body = json.dumps({"filename": "lab.bin", "project_id": "make run"})
                kind = "Content-Type: application/json"
                create = [*curl, "-H", kind, "-d", body, f"{node}/api/v1/project-files"]
                made = json.loads(subprocess.check_output(create, cwd=checkout))
                subprocess.check_call(
                    [*curl, "-T", "lab.bin", "-o", "done", made["upload_url"]], cwd=checkout
                )
                urls = [f"{node}/api/v1/files/{made['file_uuid']}"]
            assert subprocess.check_output([*curl, *urls], cwd=checkout) == content
            interrupted(make, [int(member["pid"]) for member in members])
            assert not (checkout / ".filestore" / "cluster.json").exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(make.pid, signal.SIGKILL)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES, *DECISIONS], ids=lambda page: page.stem)
def test_page_is_short_and_so_are_its_lines(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (README_LINES_MAX if page.stem == "README" else LINES_MAX)
    prose = CODE.sub("", "\n".join(lines)).splitlines()
    assert not [line for line in prose if len(line) > LINE_CHARACTERS_MAX and not line.startswith("|")]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_every_decision_has_alternatives(page: Path) -> None:
    titles, texts = split_by_headings(page.read_text(encoding="utf-8"))
    lacking = [title for title, text in zip(titles, texts, strict=True) if "**Alternatives.** " not in text]
    assert not lacking
    assert all("**Decision.** " in text for text in texts)


def split_by_headings(text: str) -> tuple[list[str], list[str]]:
    """Return the titles of all sections of a page, and their texts."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return parts[::2], parts[1::2]
