"""What people type by habit: durations, `~`, words of other programs, Tab, names from a Mac."""

import re
import subprocess
import unicodedata
from pathlib import Path

import pytest

from tests.cluster.command_output import output, refusal
from tests.cluster.harness import FILESTORE, Cluster, run_filestore


def run_in(cluster: Cluster, directory: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [FILESTORE, *arguments],
        env=cluster.command_environment(**environment),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_retention_is_a_duration_or_a_number_of_hours(cluster: Cluster) -> None:
    for given, hours in (("7d", 168), ("12h", 12), ("36", 36)):
        stored = output(cluster, "put", "-", "--retention", given, stdin=b"x").strip()
        assert cluster.get(f"/backups/{stored}").json["retention_period"] == hours
    for given in ("90m", "0", "876001", "week"):
        done = cluster.filestore("put", "-", "--retention", given)
        assert (done.returncode, done.stdout) == (2, b"")


def test_file_that_is_there_is_replaced_when_that_is_said_and_a_directory_gets_a_named_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    stored = output(cluster, "put", "-", "--filename", "habit.cfg", stdin=b"new").strip()
    (tmp_path / "x").write_bytes(b"mine")
    code, line = refusal(cluster, "get", stored, "-o", str(tmp_path / "x"))
    assert (code, line[:8]) == (5, "conflict")
    assert (tmp_path / "x").read_bytes() == b"mine"
    assert output(cluster, "get", stored, "--force", "-o", str(tmp_path / "x")) == ""
    assert (tmp_path / "x").read_bytes() == b"new"
    assert output(cluster, "get", stored, "-o", str(tmp_path)) == f"{tmp_path / 'habit.cfg'}\n"


def test_tilde_is_the_home_where_no_shell_has_expanded_it(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "lab.cfg").write_bytes(b"of home")
    (tmp_path / "ca.pem").write_text(cluster.ca.read_text())
    stored = run_in(
        cluster, tmp_path, "put", "~/lab.cfg", HOME=str(tmp_path), FILESTORE_CA="~/ca.pem"
    ).strip()
    assert cluster.get(f"/files/{stored}").body == b"of home"
    run_in(cluster, tmp_path, "get", stored, "-o", "~/back.cfg", HOME=str(tmp_path))
    assert (tmp_path / "back.cfg").read_bytes() == b"of home"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("stauts",), "status"),
        (("list",), "ls"),
        (("user", "remove"), "rm"),
        (("node", "drian"), "drain or undrain"),
    ],
)
def test_wrong_word_is_answered_with_the_one_that_may_be_meant(words: tuple[str, ...], meant: str) -> None:
    done = run_filestore(words, {"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert f"No such command '{words[-1]}'. Did you mean {meant}?" in done.stderr.decode()


def test_user_who_owns_nothing_is_deleted(cluster: Cluster) -> None:
    output(cluster, "user", "set", "leaver", "--create")
    assert output(cluster, "user", "rm", "leaver") == "leaver is deleted.\n"
    assert refusal(cluster, "user", "show", "leaver")[0] == 4


def test_space_of_all_buckets_is_added_up(cluster: Cluster) -> None:
    output(cluster, "put", "-", "--kind", "backup", stdin=b"x")
    output(cluster, "put", "-", "--kind", "image", stdin=b"x")
    *rows, total = (re.split(r" {2,}", row) for row in output(cluster, "du").splitlines()[1:])
    assert total[0] == "total"
    assert int(total[1]) == sum(int(files) for _, _, files, _ in rows)  # names of buckets may have spaces


def test_link_is_shown_for_programs_and_for_people(cluster: Cluster) -> None:
    stored = output(cluster, "put", "-", stdin=b"x").strip()
    done = cluster.filestore("share", "create", stored)
    url, *_, token = done.stdout.decode().strip().partition("/api/v1/public/files/")
    assert f"{url}/console/#/link/{token}\n" in done.stderr.decode()


def test_shell_completes_names_of_files_and_paths(cluster: Cluster, tmp_path: Path) -> None:
    output(cluster, "put", "-", "--filename", "tab stop.cfg", stdin=b"x")

    def completed(*words: str) -> list[str]:
        environment = cluster.command_environment(
            _FILESTORE_COMPLETE="bash_complete",
            COMP_WORDS=" ".join(("filestore", *words)),
            COMP_CWORD=str(len(words)),
        )
        return [line for line in run_filestore([], environment).stdout.decode().splitlines() if line]

    assert completed("get", "tab") == ["plain,'tab stop.cfg'"]
    assert completed("get", "no-such") == []
    assert completed("put", str(tmp_path)) == [f"file,{tmp_path}"]


def test_name_is_one_name_in_both_forms_of_its_accents(cluster: Cluster, tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Café Zürich.cfg") for form in ("NFC", "NFD"))
    stored = output(cluster, "put", "-", "--filename", decomposed, stdin=b"x").strip()
    assert f"file_uuid      {stored}\n" in output(cluster, "show", composed)
    output(cluster, "bucket", "create", composed)
    assert output(cluster, "bucket", "show", decomposed)
    output(cluster, "put", "-", "--filename", composed, stdin=b"y")
    assert refusal(cluster, "show", composed)[0] == 5


def test_drain_says_what_goes_and_how_to_see_it(cluster: Cluster) -> None:
    cluster.store_everywhere(b"on every node")
    node = cluster.nodes[0].id
    try:
        told = cluster.filestore("node", "drain", node)
        status = cluster.filestore("status")
    finally:
        output(cluster, "node", "undrain", node)
    assert re.search(
        rf"^{node} is draining: [1-9][0-9]* replicas? to go\. .*ten minutes", told.stdout.decode()
    )
    assert "`filestore status`" in told.stdout.decode()
    lacking = f"The node {node} cannot be drained: each blob needs 3 replicas on other nodes, and 2 nodes are"
    assert lacking in told.stderr.decode()
    shown = status.stdout.decode()
    assert (status.returncode, "replicas" in shown) == (10, True), shown
    assert lacking in " ".join(shown.split())


@pytest.mark.parametrize("words", [("show",), ("drain",), ("remove",), ("revoke",), ("forget-instance",)])
@pytest.mark.parametrize("node_id", ["nowhere", "No Node"])
def test_node_that_is_unknown_is_told_in_one_wording(
    cluster: Cluster, words: tuple[str, ...], node_id: str
) -> None:
    told = f"not_found: There is no node {node_id}."
    assert refusal(cluster, "node", *words, node_id) == (4, told)
