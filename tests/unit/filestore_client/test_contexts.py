"""Which cluster the client finds by itself, and in which order: as the command does."""

import json
from pathlib import Path

import pytest

from deploy.base.contexts import save_context
from filestore_client.base.contexts import CLUSTER_FILE
from filestore_client.base.errors import InvalidRequest, NotFound
from filestore_client.base.records import Share
from filestore_client.client import connection_from_environment
from filestore_client.kinds import KINDS, new_record_fields

NAMES = ("FILESTORE_URL", "FILESTORE_CA", "FILESTORE_TOKEN_FILE", "FILESTORE_CONTEXT")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found() -> tuple[str, str, str]:
    given = connection_from_environment()
    return " ".join(given["urls"]), given["root_pem"], given["token"].text


def test_who_is_signed_in_nowhere_is_told_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"FILESTORE_URL, FILESTORE_CA.*`filestore login URL`"):
        found()


def test_context_cluster_file_and_environment_are_found_in_the_order_of_the_command(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_context("lab", ["https://lab:7443"], root_pem="lab root", token="lab-token")
    save_context("now", ["https://a:1", "https://b:1"], root_pem="now root", token="now-token")
    assert found() == ("https://a:1 https://b:1", "now root", "now-token")
    (home / "dev.token").write_text("dev-token\n")
    (home / "dev.pem").write_text("dev root")
    node = {"id": "n1", "url": "https://dev:1", "pid": 1, "data": "/x"}
    told = {"nodes": [node], "coordinators": [], "ca": "dev.pem", "admin_token_file": "dev.token"}
    CLUSTER_FILE.parent.mkdir()
    CLUSTER_FILE.write_text(json.dumps(told))
    assert found() == ("https://dev:1", "dev root", "dev-token")
    monkeypatch.setenv("FILESTORE_CONTEXT", "lab")
    assert found() == ("https://lab:7443", "lab root", "lab-token")
    monkeypatch.setenv("FILESTORE_URL", "https://other:1")
    monkeypatch.setenv("FILESTORE_TOKEN_FILE", "~/dev.token")
    assert found() == ("https://other:1", "lab root", "dev-token")
    monkeypatch.setenv("FILESTORE_CONTEXT", "none")
    with pytest.raises(NotFound, match="lab, now"):
        found()


def test_token_of_a_context_is_read_again_from_its_file(home: Path) -> None:
    saved = save_context("lab", ["https://lab:7443"], root_pem="lab root", token="old")
    token = connection_from_environment()["token"]
    Path(saved.token_file).write_text("new")
    assert token.is_renewed("old")
    assert token.text == "new"


@pytest.mark.parametrize("kind", ["vm", "", "Backup"])
def test_kind_that_is_none_is_an_invalid_request(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="project, image, backup"):
        KINDS[kind]
    with pytest.raises(InvalidRequest, match="kind: "):
        new_record_fields(kind, "lab.cfg", b"", {})  # type: ignore[arg-type]


def test_share_shows_no_secret() -> None:
    share = Share(token="hidden", url="https://x/hidden", file_uuid="f", bucket_uuid="b", expires_at="e")
    assert "hidden" not in repr(share)
    assert "hidden" not in f"{[share]}"
