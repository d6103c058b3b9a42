"""What operators install: pinned as development is, without what development needs, confined by its units."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from release import reference
from release.client import COPIED, MADE, PACKAGE, current
from release.deb import DOCUMENTS
from release.target import MACHINES, target_of
from tests.sources import ROOT

PIN = re.compile(r"^([a-z0-9][\w.-]*)==(\S+)", re.MULTILINE)
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
DEVELOPMENT_ONLY = ("hatchling", "hypothesis", "mypy", "pip", "pytest", "ruff", "schemathesis", "shiv")
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 15  # tenths
ROLES = ("coordinator", "node")


def pins_of(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """By package: its version, and the hashes that are taken for it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    starts = list(PIN.finditer(text))
    ends = [*(found.start() for found in starts[1:]), len(text)]
    return {
        found[1]: (found[2], frozenset(HASH.findall(text[found.start() : end])))
        for found, end in zip(starts, ends, strict=True)
    }


def test_what_runs_is_pinned_as_what_is_tested() -> None:
    runs, tested = pins_of("constraints-runtime.txt"), pins_of("constraints.txt")
    assert len(runs) > 20
    assert all(hashes for _, hashes in runs.values())
    assert {name: tested.get(name) for name in runs} == runs


def test_everything_that_the_product_names_is_among_what_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]}
    assert named - {"filestore-client"} <= set(pins_of("constraints-runtime.txt"))


def test_what_development_needs_is_not_among_what_runs() -> None:
    # hatchling installs a checkout; it is not in what is handed out, as tests/machines sees to.
    assert set(DEVELOPMENT_ONLY) - {"hatchling"} <= set(pins_of("constraints.txt"))
    assert not set(DEVELOPMENT_ONLY) - {"hatchling"} & set(pins_of("constraints-runtime.txt"))


def test_package_has_what_its_documents_link_to() -> None:
    has = {path.relative_to(ROOT) for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    has |= {Path("docs/reference", name) for name in reference.pages()}
    assert Path("README.md") in has
    read = has - {Path("CONTRIBUTING.md")}  # its recipes hold links of other pages
    for document in (path for path in read if path.suffix == ".md" and (ROOT / path).exists()):
        for link in LINK.findall((ROOT / document).read_text("utf-8")):
            target = Path(os.path.normpath(document.parent / link))
            assert target in has, f"{document} links to {link}"


def test_wheel_has_the_pages_that_the_console_shows(tmp_path: Path) -> None:
    """They are in docs/, which a link in the sources leads to."""
    builder = WheelBuilder(str(ROOT))
    found = {each.distribution_path for each in builder.recurse_included_files()}
    shown = {path.removeprefix("api/console/static/help/") for path in found if "/static/help/" in path}
    assert shown == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_there_is_a_unit_for_each_role() -> None:
    assert [unit.stem for unit in UNITS] == [f"filestore-{role}" for role in ROLES]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_may_do_little(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager"]
    done = subprocess.run([*command, str(unit)], capture_output=True, text=True, check=False)
    if "nknown option" in done.stderr or "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze looks only at units that are loaded")
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_units_are_confined_in_the_same_way() -> None:
    def confinement(unit: Path) -> str:
        text = unit.read_text(encoding="utf-8")
        return text[text.index("NoNewPrivileges=") : text.index("[Install]")]

    assert len({confinement(unit) for unit in UNITS}) == 1


@pytest.mark.parametrize("role", ROLES)
def test_file_of_a_unit_names_options_of_its_command(role: str) -> None:
    """Those that it sets, and those that it shows behind a #."""
    from deploy.base.config_file import options_in
    from deploy.cli import cli
    from tests.test_settings import commands

    command = dict(commands(cli, "filestore"))[f"filestore {role} run"]
    path = ROOT / "deploy" / "systemd" / f"{role}.toml"
    assert options_in(path, command) == {"data": f"/var/lib/filestore/{role}"}
    shown = re.findall(r"^# ([a-z-]+) = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    known = {option.opts[0] for option in command.params}
    assert shown
    assert {f"--{name}" for name in shown} <= known


def test_package_for_another_architecture_takes_its_wheels_and_no_others() -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("no Debian")
    own = target_of("")
    assert target_of(own.architecture) == own
    assert own.pip_options == ()
    for architecture, machine in MACHINES.items():
        if architecture != own.architecture:
            options = target_of(architecture).pip_options
            assert f"--platform=manylinux2014_{machine}" in options
            assert all(option.endswith(f"_{machine}") for option in options)
    with pytest.raises(SystemExit, match="ARCH is one of amd64, arm64"):
        target_of("m68k")


@pytest.mark.parametrize("name", [*MADE, *COPIED])
def test_what_the_client_has_from_the_servers_is_current(name: str) -> None:
    assert (PACKAGE / name).read_text("utf-8") == current(name), "run .venv/bin/python -m release.client"
