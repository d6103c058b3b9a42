"""The examples of the Python client do what they say: each is run, in order, in one directory."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client_examples import NEEDS_PANDAS, examples
from tests.cluster.harness import Cluster

NAMES = [name for name, _ in examples() if name != NEEDS_PANDAS]
PRINTED = {  # what an example shows, or a part of it
    "readme": "router.qcow2 12\n",
    "connect": "admin\n",
    "connect by hand": "'node-1'",
    "upload": " image 12 ",
    "upload of a stream": "13890 2",
    "download": "router.qcow2\n",
    "open to read": "['project.gns3']\n",
    "open to write": "-",
    "list and change": "router.qcow2 qcow2 7542e5981fba3392e31421851656788b\n",
    "share": "/api/v1/public/",
    "folders": "['r1', 'r2']\nlab 7/r1 startup.cfg\nlab 7/r2 startup.cfg\n",
    "service token": "nightly 20",
    "asyncio": "b'three'\na.txt 3\n",
    "fsspec": "first exercise\n",
    "fsspec trees": "['course-7/lab 8/old/startup.cfg', 'course-7/lab 8/r2/startup.cfg']\n",
    "errors": "no such file\n",
}


@pytest.fixture(scope="module")
def directory(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the examples find beside them."""
    made = tmp_path_factory.mktemp("examples")
    (made / "ca.pem").write_text(cluster.ca.read_text())
    (made / "user.token").write_text(cluster.admin_token)
    (made / "router.qcow2").write_bytes(b"QFI\xfb" + bytes(8))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("project.gns3", "{}")
    (made / "lab.gns3project").write_bytes(archive.getvalue())
    yield made
    for bucket in cluster.get("/buckets?limit=1000").json["buckets"]:
        if bucket["name"] == "course-7":
            for file in cluster.get(f"/buckets/{bucket['bucket_id']}/files?limit=1000").json["files"]:
                cluster.request("DELETE", f"/files/{file['file_uuid']}")
            cluster.request("DELETE", f"/buckets/{bucket['bucket_id']}")


def test_every_example_has_a_name_and_shows_something() -> None:
    assert len({name for name, _ in examples()}) == len(examples())
    assert set(NAMES) == set(PRINTED)


@pytest.mark.parametrize("name", NAMES)
def test_example_works(
    cluster: Cluster,
    directory: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable, value in cluster.command_environment().items():
        if variable.startswith(("FILESTORE_", "XDG_")):
            monkeypatch.setenv(variable, value)
    monkeypatch.chdir(directory)
    if name == "download":  # under its own name, here
        (directory / "router.qcow2").unlink()
    text = dict(examples())[name]
    for number, node in enumerate(cluster.nodes[:2], 1):
        text = text.replace(f"https://10.0.0.{number}:7443", node.url)
    exec(compile(text, f"<{name}>", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert PRINTED[name] in printed, printed
