"""Commands about people: groups, invitations, sessions, and a class that is imported."""

import csv
import io
import json
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.command_output import objects, output, refusal
from tests.cluster.harness import Answer, Cluster

STUDENTS = 50


def redeem(cluster: Cluster, link: str) -> Answer:
    """What the console does with a link."""
    secret = cluster.remember(link.rpartition("/")[2])
    return cluster.post("/auth/invitations/redeem", {"token": secret}, token=None, stranger=True)


def a_class(path: Path, *lines: str, header: str = "name;groups;mail;label") -> str:
    path.write_bytes("\r\n".join((header, *lines, "")).encode("utf-8-sig"))
    return str(path)


def lines_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))


def test_group_is_made_shown_emptied_and_deleted(cluster: Cluster) -> None:
    for name in ("gina", "gus"):
        cluster.user_token(name)
    bucket = cluster.post("/buckets", {"name": "bucket of g-lab"}).json["bucket_id"]
    assert output(cluster, "group", "add", "g-lab", "--description", "Winter") == "g-lab has 0 members.\n"
    added = output(cluster, "group", "add", "g-lab", "gina", "gus")
    assert added == "2 added.\ng-lab has 2 members.\n"
    assert output(cluster, "group", "add", "g-lab", "gina").startswith("0 added, 1 in it before.\n")
    output(cluster, "grant", "add", "g-lab", "read", "--type", "group", "--bucket", "bucket of g-lab")
    shown = output(cluster, "group", "show", "g-lab")
    assert all(word in shown for word in ("Winter", "gina", "local", "bucket bucket of g-lab", "read"))
    (found,) = objects(cluster, "group", "show", "g-lab")
    assert [each["user_id"] for each in found["members"]] == ["gina", "gus"]
    assert [each["bucket_id"] for each in found["permissions"]] == [bucket]
    assert {each["group"]: each["members"] for each in objects(cluster, "group", "ls")}["g-lab"] == 2
    assert output(cluster, "group", "remove", "g-lab", "gus") == "gus is not in g-lab any more.\n"
    assert refusal(cluster, "group", "remove", "g-lab", "gus")[0] == 4
    code, line = refusal(cluster, "group", "add", "g-lab", "gus", "nobody-x")
    assert (code, line) == (4, "not_found: There is no user named nobody-x.")
    assert output(cluster, "group", "rm", "g-lab") == "g-lab is deleted, with its permissions.\n"
    assert cluster.get("/auth/users/gina").json["groups"] == []
    assert refusal(cluster, "group", "show", "g-lab")[0] == 4


def test_invitation_is_printed_or_written_and_works_once(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.filestore("user", "invite", "ivy", "--group", "i-lab")
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().startswith("ivy is a new user.\nIt works once, until ")
    link = done.stdout.decode().strip()
    assert link.startswith("https://")
    assert "/console/#/invitation/" in link
    answer = redeem(cluster, link)
    cluster.remember(answer.json["token"])
    assert (answer.json["user_id"], answer.json["groups"]) == ("ivy", ["i-lab"])
    assert redeem(cluster, link).status == 410
    path = tmp_path / "link"
    assert output(cluster, "user", "invite", "ivy", "-o", str(path), "--expires", "24h") == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (listed,) = [each for each in objects(cluster, "user", "invitations") if each["user_id"] == "ivy"]
    assert listed["used_at"] == ""
    assert output(cluster, "user", "uninvite", "ivy") == "The link of ivy does not work any more.\n"
    assert redeem(cluster, path.read_text().strip()).status == 404
    assert refusal(cluster, "user", "uninvite", "ivy")[0] == 4
    assert refusal(cluster, "user", "invite", "ivy", "--expires", "31d")[0] == 2


def test_sessions_are_listed_and_ended(cluster: Cluster, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", cluster.user_token("sonja")
    output(cluster, "token", "user", "sonja", "--label", "laptop", "-o", str(mine))
    cluster.remember(mine.read_text().strip())

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return cluster.filestore(*arguments, FILESTORE_TOKEN_FILE=str(mine))

    listed = [json.loads(line) for line in run("whoami", "--sessions", "--json").stdout.splitlines()]
    assert [each["is_current"] for each in listed] == [False, True]
    assert "laptop (this one)" in run("session", "ls").stdout.decode()
    ended = run("session", "end", listed[0]["session_id"])
    assert ended.stdout.decode().endswith("its tokens are rejected from now on.\n"), ended.stderr
    assert cluster.get("/auth/whoami", token=other, stranger=True).status == 401
    assert len(objects(cluster, "session", "ls", "--user", "sonja")) == 1
    assert output(cluster, "session", "end", "--all", "--user", "sonja").startswith("All tokens of sonja are")
    refused = run("whoami")
    assert (refused.returncode, b"was rejected" in refused.stderr) == (3, True)
    for wrong in (("session", "end"), ("session", "end", "x", "--all")):
        assert cluster.filestore(*wrong).returncode == 2


@pytest.mark.parametrize("how", ["dry run", "wrong lines", "disabled"])
def test_nothing_is_changed_before_all_of_a_class_is_right(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    lines = ["wanda;w-lab;wanda@example.org;Wanda", "willi;w-lab w-more;;"]
    options = ["--dry-run"] if how == "dry run" else []
    if how == "wrong lines":
        lines += ["a b;;;", "wanda;;;"]
    if how == "disabled":
        output(cluster, "user", "disable", "will-not", "--create")
        lines += ["will-not;;;"]
    done = cluster.filestore("user", "import", a_class(tmp_path / "class.csv", *lines), *options)
    told = done.stderr.decode()
    if how == "dry run":
        assert done.returncode == 0, told
        assert "2 people: 2 new, 0 join groups, 0 unchanged. Nothing was changed." in told
        assert "w-lab w-more" in done.stdout.decode()
    elif how == "wrong lines":
        assert done.returncode == 2
        assert "class.csv: line 4: name: 1 to 128 of" in told
        assert "class.csv: line 5: name: wanda is in line 2, too" in told
        assert "2 faults. Nothing was changed." in told
    else:
        assert done.returncode == 2
        assert "line 4: will-not is disabled" in told
    assert cluster.get("/auth/users/wanda").status == 404


def test_class_is_imported_again_without_a_change_and_goes_on_with_new_lines(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.user_token("carl", groups=["c-old"])
    links, listing = tmp_path / "links.csv", tmp_path / "class.csv"
    first = a_class(listing, "carl;c-lab;;", "cora;c-lab;cora@example.org;Cora, the first")
    done = cluster.filestore("user", "import", first, "-o", str(links))
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert "2 people: 1 new, 1 join groups, 0 unchanged." in done.stderr.decode()
    assert stat.S_IMODE(links.stat().st_mode) == 0o600
    (made,) = lines_of(links)
    assert (made["name"], made["mail"], made["label"]) == ("cora", "cora@example.org", "Cora, the first")
    assert cluster.get("/auth/users/carl").json["groups"] == ["c-lab", "c-old"]
    before = links.read_bytes()
    for options in (("-o", str(links)), ()):
        again = cluster.filestore("user", "import", first, *options)
        assert (again.returncode, again.stdout) == (0, b"")
        assert "2 people: 0 new, 0 join groups, 2 unchanged." in again.stderr.decode()
    assert links.read_bytes() == before
    more = a_class(listing, "carl;c-lab c-more;;", "cora;c-lab;;", "chris;c-lab;;")
    (carl, cora, chris) = objects(cluster, "user", "import", more, "-o", str(links))
    assert (carl["joins"], carl["why_not"]) == (["c-more"], "is signed in")
    assert (cora["is_given"], cora["why_not"]) == (False, "in the output file")
    assert (chris["is_new"], chris["is_given"], chris["secret"]) == (True, True, "")
    assert [each["name"] for each in lines_of(links)] == ["cora", "chris"]
    for each in lines_of(links):
        answer = redeem(cluster, each["secret"])
        assert (answer.json["user_id"], answer.json["groups"]) == (each["name"], ["c-lab"])
        cluster.remember(answer.json["token"])


def test_class_gets_tokens_or_nothing_if_that_is_said(cluster: Cluster, tmp_path: Path) -> None:
    listing = a_class(tmp_path / "class.csv", "tina,t-lab", header="name,groups")
    done = cluster.filestore("user", "import", listing, "--give", "tokens", "--expires", "2h")
    (line,) = csv.DictReader(io.StringIO(done.stdout.decode(), newline=""))
    token = cluster.remember(line["secret"])
    assert cluster.get("/auth/whoami", token=token).json["groups"] == ["t-lab"]
    listing = a_class(tmp_path / "class.csv", "tom,t-lab", header="name,groups")
    (tom,) = objects(cluster, "user", "import", listing, "--give", "nothing")
    assert (tom["is_new"], tom["is_given"]) == (True, False)
    assert cluster.get("/auth/users/tom").json["groups"] == ["t-lab"]


def test_output_file_of_something_else_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("mine\n")
    listing = a_class(tmp_path / "class.csv", "left-alone;;;")
    code, line = refusal(cluster, "user", "import", listing, "-o", str(other))
    assert (code, "was not written by this command" in line) == (2, True)
    assert (other.read_text(), cluster.get("/auth/users/left-alone").status) == ("mine\n", 404)


def test_administrator_in_a_class_gets_no_link(cluster: Cluster, tmp_path: Path) -> None:
    output(cluster, "user", "set", "ada", "--create", "--role", "admin")
    (ada,) = objects(cluster, "user", "import", a_class(tmp_path / "class.csv", "ada;a-lab;;"))
    assert (ada["joins"], ada["is_given"], ada["why_not"]) == (["a-lab"], False, "has the role admin")


def test_students_of_a_group_see_the_shared_bucket_after_three_commands(
    cluster: Cluster, tmp_path: Path, record_property: Any
) -> None:
    """From an empty cluster, with local means: a bucket, its group, the class. Timed, and counted."""
    started_s = time.monotonic()
    students = [f"student-{number:02d};netlab-2026;;Student {number}" for number in range(STUDENTS)]
    listing, links = a_class(tmp_path / "students.csv", *students), tmp_path / "links.csv"
    commands = (
        ("bucket", "create", "class-of-2026", "--quota", "50G"),
        ("user", "import", listing, "-o", str(links)),
        ("grant", "add", "netlab-2026", "write", "--type", "group", "--bucket", "class-of-2026"),
    )
    for command in commands:
        output(cluster, *command)
    took_s = time.monotonic() - started_s
    record_property("took_s", took_s)
    made = lines_of(links)
    assert len(made) == STUDENTS
    for each in (made[0], made[-1]):
        token = cluster.remember(redeem(cluster, each["secret"]).json["token"])
        seen = cluster.get("/buckets", token=token).json["buckets"]
        assert "class-of-2026" in [bucket["name"] for bucket in seen]
        (bucket,) = [bucket["bucket_id"] for bucket in seen if bucket["name"] == "class-of-2026"]
        stored = cluster.store(b"lab", f"{each['name']}.gns3p", token=token, bucket_id=bucket)
        assert cluster.get(f"/files/{stored}", token=token).status == 200
    for each in made:
        cluster.remember(each["secret"].rpartition("/")[2])
    assert took_s < 60
