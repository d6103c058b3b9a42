"""What a stolen node or a GNS3 server says of itself never steers the terminal of who asks."""

import ast
import json
import os
import re
import threading
import unicodedata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.base.printed import printable_json, printable_name, printable_text
from tests.cluster.command_output import Terminal
from tests.web_certificates import write_pair

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
HOSTILE: Final = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x9b31m\u202egnp.exe\u2066\x85\x7f\x08\u2028\rEND"
UUID: Final = "0198c0de-0000-7000-8000-000000000001"
TURNING: Final = (  # text around, or half a letter, or no letter
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2066\u2067\u2068\u2069\u2028\u2029\ufeff\U000e0041\ud800\udfff"
)
# Of rich: colours, and the line of a progress bar with the cursor hidden.
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[2K|\x1b\[\?25l|\x1b\[\?25h\r?")
CLEARED: Final = "\x1b[2J\x1b[H"  # by `status --watch` itself
NODE: Final = {
    "id": HOSTILE,
    "url": HOSTILE,
    "state": HOSTILE,
    "total_bytes": 1,
    "disk": HOSTILE,
    "clock_offset_ms": 0,
}
STATUS: Final = {
    "cluster": HOSTILE,
    "health": "degraded",
    "healthy": False,
    "leader": HOSTILE,
    "files": 1,
    "blobs": 1,
    "blob_bytes": 1,
    "coordinators": [{"id": HOSTILE, "role": HOSTILE, "version": HOSTILE}],
    "nodes": [NODE | {"scrubbed_since": HOSTILE}],
    "findings": [{"problem": HOSTILE, "since": HOSTILE, "runbook": HOSTILE}],
    "runs": [],
    "replicas": {"short": {HOSTILE: 1}, "last": HOSTILE},
}
RUN: Final = {"run_id": HOSTILE, "job_name": HOSTILE, "status": HOSTILE, "result": {HOSTILE: HOSTILE}}
ANSWERS: Final[dict[str, Any]] = {
    "/api/v1/cluster/status": STATUS,
    "/api/v1/jobs": {
        "jobs": [{"job_name": HOSTILE, "schedule_s": 1, "last_run": RUN, "description": HOSTILE}],
    },
    f"/api/v1/jobs/runs/{UUID}": RUN,
    "/api/v1/cluster/ca": {
        "coordinators": [{"coordinator_id": HOSTILE, "address": HOSTILE, "api_port": 1, "peer_port": 2}]
    },
    "/v3/version": {"version": f"3.0.{HOSTILE}"},
    "/v3/access/users/authenticate": {"access_token": "x"},
    "/v3/projects": [],
}


class StolenNode(BaseHTTPRequestHandler):
    """Answers what it likes; what it does not know is an error of its own words."""

    def do_GET(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path = self.path.partition("?")[0]
        answer = ANSWERS.get(path, {"code": "conflict", "details": HOSTILE})
        body = json.dumps(answer).encode()
        self.send_response(200 if path in ANSWERS else 409)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Answer."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def stolen() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), StolenNode) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def environment(url: str, directory: Path) -> dict[str, str]:
    root, token = write_pair(directory / "root").certificate, directory / "token"
    token.touch(0o600)
    token.write_text("x.y.z")
    return os.environ | {
        "FILESTORE_URL": url,
        "FILESTORE_CA": str(root),
        "FILESTORE_TOKEN_FILE": str(token),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "TERM": "xterm-256color",
        "COLUMNS": "500",
    }


def check_harmless(shown: str) -> None:
    """Nothing is shown but letters, ends of lines, and the colours of the tables."""
    plain = COLOURS.sub("", shown.replace(CLEARED, "")).replace("\r\n", "\n")
    bad = {letter for letter in plain if unicodedata.category(letter)[0] == "C" and letter != "\n"}
    assert not bad, repr(plain)
    assert not {"\u2028", "\r"} & set(plain)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("coordinator", "status"),
        ("coordinator", "ls"),
        ("job", "ls"),
        ("job", "show", UUID),
        ("ls",),
        ("api", "GET", "cluster/status"),
        ("get", UUID),
        ("gns3", "login", "{url}", "--password-file", "{token}"),
        ("status", "--json"),
    ],
    ids=" ".join,
)
def test_terminal_is_not_steered_by_what_a_node_says(
    stolen: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    known = environment(stolen, tmp_path)
    given = [each.format(url=stolen, token=known["FILESTORE_TOKEN_FILE"]) for each in arguments]
    with Terminal(given, known, tmp_path) as terminal:
        terminal.end()
    assert "END" in terminal.shown
    assert "gnp.exe" in terminal.shown
    check_harmless(terminal.shown)
    if "--json" in arguments:
        assert json.loads(terminal.shown)["cluster"] == HOSTILE


def test_watched_status_clears_the_screen_itself(stolen: str, tmp_path: Path) -> None:
    with Terminal(
        ("status", "--watch", "--every", "0.2"), environment(stolen, tmp_path), tmp_path
    ) as terminal:
        terminal.wait_for("END: DEGRADED")
    assert CLEARED in terminal.shown
    check_harmless(terminal.shown)


def test_letters_of_every_script_and_spaces_of_every_width_are_shown() -> None:
    shown = "Größe 图像 صورة क्‍ष 👩‍🔬 a\u00a0b\u202fc\u3000d"
    assert printable_name(shown) == shown
    assert printable_text(f"{shown}\n\t{shown}\n") == f"{shown}\n\t{shown}\n"
    assert printable_name("a\nb\tc") == "a?b?c"
    assert printable_json(json.dumps(shown, ensure_ascii=False)) == f'"{shown}"'


@pytest.mark.parametrize("letter", [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))])
def test_no_control_is_printed(letter: str) -> None:
    text = f"a{letter}b"
    assert printable_name(text) == "a?b"
    assert printable_text(text) == (text if letter in "\n\t" else "a?b")


@pytest.mark.parametrize(
    "letter",
    TURNING,
)
def test_no_mark_that_turns_text_and_no_half_letter_is_printed(letter: str) -> None:
    assert printable_name(f"a{letter}b") == printable_text(f"a{letter}b") == "a?b"
    text = printable_json(json.dumps({letter: f"a{letter}b"}, ensure_ascii=False))
    assert text.isascii()
    assert json.loads(text) == {letter: f"a{letter}b"}


def uses(tree: ast.AST) -> Iterator[str]:
    """Names by which a module could reach a terminal past the guard."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield f"{ast.unparse(node.value)}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Name):
            yield node.id


def test_commands_print_only_where_text_is_made_printable() -> None:
    """Standard streams are guarded; only these modules write past the guard, and say why."""
    past = re.compile(
        r"rich\.console\.Console|rich\.progress\.Progress|rich\.print|os\.write|steering|"
        r"sys\.__std\w+__|sys\.std(out|err)\.buffer|sys\.std(out|err)\.detach|"
        r"click\.(clear|secho|style|echo_via_pager|progressbar|edit)|print"
    )
    found = {
        (str(path.relative_to(DEPLOY)), used)
        for path in DEPLOY.rglob("*.py")
        for used in uses(ast.parse(path.read_text()))
        if past.fullmatch(used)
    }
    assert {path for path, _ in found} == {
        "base/printed.py",
        "base/tables.py",
        "base/terminal.py",  # a cursor, and a fixed text
        "commands/api.py",  # to a pipe or a file, the bytes of an answer
        "commands/files.py",  # the content of a file
        "entry.py",  # a fixed text
    }
