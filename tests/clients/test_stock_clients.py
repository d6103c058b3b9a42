"""Each of them is interrupted in the middle, goes on, and the bytes are the same."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError

from deploy.dev_cluster import Member
from tests.clients.interruption import cut_after, downloading, run_client, uploading
from tests.cluster.harness import API, Cluster, random_file

SIZE_BYTES = 48 << 20
MIDDLE_BYTES = 20 << 20  # in the middle of a piece too: between two of them a client has nothing to lose
PIECE_BYTES = 8 << 20
TUS_JS = "tus-js-client@4.3.1"

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Sample:
    """A file of random bytes."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Stored:
    """A file in the cluster, and a public link to it."""

    path: str
    link_path: str
    sha256: str


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    path = tmp_path_factory.mktemp("sample") / "lab.gns3p"
    yield Sample(path, random_file(path, SIZE_BYTES))
    path.unlink()


@pytest.fixture(scope="module")
def stored(four: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Content of its own: what other tests upload comes to be on every node."""
    source = tmp_path_factory.mktemp("stored") / "lab.gns3p"
    sha256 = random_file(source, SIZE_BYTES)
    created = four.create("lab.gns3p", size_bytes=SIZE_BYTES)
    assert four.curl("-T", str(source), created["upload_url"]).returncode == 0
    source.unlink()
    path = f"/files/{created['file_uuid']}"
    made = four.post(f"{path}/public-token", {}).json
    four.secrets.add(made["token"])
    return Stored(API + path, API + made["url"].partition(API)[2], sha256)


@pytest.fixture(params=["holder", "another node"])
def address(four: Cluster, request: pytest.FixtureRequest) -> tuple[str, str, Member]:
    """A new file, the path of its upload, and the node to send it to."""
    created = four.create("lab.gns3p", size_bytes=SIZE_BYTES)
    at_holder = request.param == "holder"
    node = next(node for node in four.nodes if created["upload_url"].startswith(node.url) == at_holder)
    return created["file_uuid"], created["upload_url"].partition(API)[2], node


def require(*programs: str) -> None:
    """Skip the test where one of these is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} command here")


def environment(cluster: Cluster) -> dict[str, str]:
    return os.environ | {"FILESTORE_TOKEN": cluster.admin_token, "NODE_EXTRA_CA_CERTS": str(cluster.ca)}


def secret_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def assert_available(cluster: Cluster, file_uuid: str, sample: Sample, target: Path) -> None:
    """The record and the bytes from every node."""
    record = cluster.get(f"/project-files/{file_uuid}").json
    assert (record["status"], record["blob_sha256"]) == ("available", sample.sha256)
    for node in cluster.nodes:
        assert cluster.curl("-o", str(target), f"{node.url}{API}/files/{file_uuid}").returncode == 0
        assert sha256_of(target) == sample.sha256, node.id


def offset_of(cluster: Cluster, file_uuid: str) -> int:
    offset = int(cluster.get(f"/files/{file_uuid}/status").json["offset"])
    assert 0 < offset < SIZE_BYTES
    return offset


@pytest.mark.parametrize("with_checksums", [False, True])
def test_tuspy_goes_on(
    four: Cluster,
    sample: Sample,
    address: tuple[str, str, Member],
    with_checksums: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(four.ca))
    file_uuid, path, node = address
    client = TusClient("", headers={"Authorization": f"Bearer {four.admin_token}"})

    def upload(url: str) -> bool:
        try:
            with sample.path.open("rb") as stream:
                client.uploader(
                    file_stream=stream,
                    chunk_size=PIECE_BYTES,
                    url=f"{url}{API}{path}",
                    upload_checksum=with_checksums,
                ).upload()
        except (TusCommunicationError, OSError):
            return False
        return True

    with uploading(node) as proxy:
        assert not cut_after(proxy, MIDDLE_BYTES, lambda: upload(proxy.url))
        offset = offset_of(four, file_uuid)
        assert not with_checksums or offset % PIECE_BYTES == 0  # a piece that was cut off was not checked
        assert upload(proxy.url)
    assert_available(four, file_uuid, sample, tmp_path / "copy")


@pytest.fixture(scope="session")
def tus_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tus-js-client in it."""
    require("node", "npm")
    directory = tmp_path_factory.mktemp("tus-js")
    command = ["npm", "install", "--prefix", str(directory), "--no-audit", "--no-fund", TUS_JS]
    done = run_client(command, os.environ)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {TUS_JS}: {done.stderr.decode()[-300:]}")
    shutil.copy(Path(__file__).with_name("upload.js"), directory)
    return directory


def test_tus_js_client_goes_on_by_itself(
    four: Cluster, sample: Sample, address: tuple[str, str, Member], tus_js: Path, tmp_path: Path
) -> None:
    file_uuid, path, node = address
    with uploading(node) as proxy:
        command = ["node", str(tus_js / "upload.js"), str(sample.path), f"{proxy.url}{API}{path}"]
        done = cut_after(proxy, MIDDLE_BYTES, lambda: run_client(command, environment(four)))
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["retries"] >= 1
    assert_available(four, file_uuid, sample, tmp_path / "copy")


def test_tus_js_client_does_not_go_on_with_another_file(
    four: Cluster, sample: Sample, address: tuple[str, str, Member], tus_js: Path
) -> None:
    file_uuid, path, node = address
    headers = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    headers["Upload-Offset"] = "0"
    assert four.request("PATCH", path, content=b"another", headers=headers).status == 204
    command = ["node", str(tus_js / "upload.js"), str(sample.path), f"{node.url}{API}{path}"]
    done = run_client(command, environment(four))
    assert (done.returncode, b"another file was begun here" in done.stderr) == (1, True)
    assert offset_of(four, file_uuid) == 7


def test_tuspy_creates_what_it_uploads(
    four: Cluster, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(four.ca))
    for node in four.nodes[:2]:
        headers = {"Authorization": f"Bearer {four.admin_token}"}
        client = TusClient(f"{node.url}{API}/project-files", headers=headers)
        metadata = {"filename": "lab ü.gns3p", "project_id": "tuspy", "include_images": "true"}
        with sample.path.open("rb") as stream:
            uploader = client.uploader(file_stream=stream, chunk_size=PIECE_BYTES, metadata=metadata)
            uploader.upload()
        file_uuid = str(uploader.url).split("/")[-2]
        record = four.get(f"/project-files/{file_uuid}").json
        assert (record["filename"], record["include_images"]) == ("lab ü.gns3p", True)
        assert_available(four, file_uuid, sample, tmp_path / "copy")


def test_tus_js_client_creates_what_it_uploads(
    four: Cluster, sample: Sample, tus_js: Path, tmp_path: Path
) -> None:
    metadata = {"filename": "lab ü.gns3p", "filetype": "application/zip", "project_id": "tus-js"}
    url = f"{four.nodes[0].url}{API}/project-files"
    command = ["node", str(tus_js / "upload.js"), str(sample.path), url, json.dumps(metadata)]
    done = run_client(command, environment(four))
    assert done.returncode == 0, done.stderr.decode()
    file_uuid = json.loads(done.stdout)["url"].split("/")[-2]
    record = four.get(f"/project-files/{file_uuid}").json
    assert (record["filename"], record["content_type"]) == ("lab ü.gns3p", "application/zip")
    assert_available(four, file_uuid, sample, tmp_path / "copy")


@pytest.mark.parametrize("size_bytes", [5000, SIZE_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("parallel", ["0", "2"])
def test_tus_js_client_sends_bytes_with_the_creation(
    four: Cluster, tus_js: Path, tmp_path: Path, size_bytes: int, parallel: str
) -> None:
    """Not an empty file: that client asks Node for its bytes up to -1, which fails before any request."""
    path = tmp_path / "lab.gns3p"
    path.write_bytes(os.urandom(size_bytes))
    sample = Sample(path, sha256_of(path))
    metadata = {"filename": path.name, "project_id": f"tus-js at once {size_bytes} {parallel}"}
    for node in four.nodes[:2]:
        arguments = [str(path), f"{node.url}{API}/project-files", json.dumps(metadata), parallel, "during"]
        done = run_client(["node", str(tus_js / "upload.js"), *arguments], environment(four))
        assert done.returncode == 0, done.stderr.decode()
        said = json.loads(done.stdout)
        assert said["retries"] == 0
        assert_available(four, said["url"].split("/")[-2], sample, tmp_path / "copy")
    records = four.get(f"/project-files?project_id={metadata['project_id'].replace(' ', '%20')}").json
    assert records["count"] == 2


def test_empty_file_of_tus_js_client_is_available(four: Cluster, tus_js: Path, tmp_path: Path) -> None:
    """That client sends nothing after the creation of it."""
    path = tmp_path / "empty.gns3p"
    path.write_bytes(b"")
    metadata = {"filename": path.name, "project_id": "tus-js of nothing"}
    arguments = [str(path), f"{four.nodes[0].url}{API}/project-files", json.dumps(metadata)]
    done = run_client(["node", str(tus_js / "upload.js"), *arguments], environment(four))
    assert done.returncode == 0, done.stderr.decode()
    file_uuid = json.loads(done.stdout)["url"].split("/")[-2]
    assert_available(four, file_uuid, Sample(path, sha256_of(path)), tmp_path / "copy")


@pytest.mark.parametrize("parallel", [2, 5])
def test_tus_js_client_uploads_in_parallel(
    four: Cluster, sample: Sample, tus_js: Path, tmp_path: Path, parallel: int
) -> None:
    metadata = {"filename": f"lab {parallel}.gns3p", "project_id": f"tus-js in {parallel} parts"}
    arguments = [
        str(sample.path),
        f"{four.nodes[1].url}{API}/project-files",
        json.dumps(metadata),
        str(parallel),
    ]
    done = run_client(["node", str(tus_js / "upload.js"), *arguments], environment(four))
    assert done.returncode == 0, done.stderr.decode()
    file_uuid = json.loads(done.stdout)["url"].split("/")[-2]
    records = four.get("/project-files").json["project_files"]
    assert [each["file_uuid"] for each in records if each["project_id"] == metadata["project_id"]] == [
        file_uuid
    ]
    assert_available(four, file_uuid, sample, tmp_path / "copy")


def test_curl_goes_on_where_its_upload_was_cut(
    four: Cluster, sample: Sample, address: tuple[str, str, Member], tmp_path: Path
) -> None:
    file_uuid, path, node = address
    with uploading(node) as proxy:
        url = f"{proxy.url}{API}{path}"
        cut = cut_after(proxy, MIDDLE_BYTES, lambda: four.curl("-T", str(sample.path), url))
        assert cut.returncode != 0
        offset = offset_of(four, file_uuid)
        done = four.curl("-C", str(offset), "-T", str(sample.path), url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "available"
    assert_available(four, file_uuid, sample, tmp_path / "copy")


def test_curl_goes_on_where_its_download_was_cut(four: Cluster, stored: Stored, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    for node in four.nodes:
        with downloading(node) as proxy:
            arguments = ("-C", "-", "-o", str(target), f"{proxy.url}{stored.path}")
            assert cut_after(proxy, MIDDLE_BYTES, lambda: four.curl(*arguments)).returncode != 0  # noqa: B023
            kept_bytes = target.stat().st_size
            assert 0 < kept_bytes < SIZE_BYTES
            passed_bytes = proxy.passed_bytes
            assert four.curl(*arguments).returncode == 0
            assert proxy.passed_bytes - passed_bytes < SIZE_BYTES - kept_bytes + (1 << 20)
        assert sha256_of(target) == stored.sha256
        target.unlink()


def test_curl_follows_the_redirect_of_a_public_link(four: Cluster, stored: Stored, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    statuses = []
    for node in four.nodes:
        url = f"{node.url}{stored.link_path}?redirect=1"
        done = subprocess.run(
            ["curl", "--silent", "--cacert", str(four.ca), "-L", "-D", "-", "-o", str(target), "-K", "-"],
            input=f'url = "{url}"'.encode(),
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert sha256_of(target) == stored.sha256
        heads = done.stdout.decode().lower().split("\r\n\r\n")[:-1]
        statuses.append([int(head.split()[1]) for head in heads])
        assert all("referrer-policy: no-referrer" in head for head in heads)
    assert sorted(statuses) == [[200], [200], [307, 200], [307, 200]]


@pytest.mark.parametrize("way", ["credential", "public link"])
def test_wget_goes_on(four: Cluster, stored: Stored, tmp_path: Path, way: str) -> None:
    require("wget")
    header = f"header = Authorization: Bearer {four.admin_token}\n" if way == "credential" else ""
    settings = secret_file(tmp_path / "wgetrc", f"ca_certificate = {four.ca}\ntries = 1\n{header}")
    path = stored.path if way == "credential" else stored.link_path
    target = tmp_path / "copy"
    for node in four.nodes[:2]:
        with downloading(node) as proxy:
            urls = secret_file(tmp_path / "urls", f"{proxy.url}{path}\n")
            command = ["wget", "-q", "-c", "-O", str(target), "-i", str(urls)]
            variables = os.environ | {"WGETRC": str(settings)}
            first = cut_after(proxy, MIDDLE_BYTES, lambda: run_client(command, variables))  # noqa: B023
            assert first.returncode != 0
            assert 0 < target.stat().st_size < SIZE_BYTES
            second = run_client(command, variables)
        assert second.returncode == 0, second.stderr
        assert sha256_of(target) == stored.sha256
        target.unlink()


@pytest.mark.parametrize("way", ["credential", "public link"])
def test_aria2_goes_on_over_eight_connections(
    four: Cluster, stored: Stored, tmp_path: Path, way: str
) -> None:
    require("aria2c")
    header = f"header=Authorization: Bearer {four.admin_token}\n" if way == "credential" else ""
    settings = secret_file(
        tmp_path / "aria2.conf",
        f"ca-certificate={four.ca}\nmax-tries=1\nmin-split-size=1M\nfile-allocation=none\n{header}",
    )
    path = stored.path if way == "credential" else stored.link_path
    target = tmp_path / "copy"
    for node in four.nodes[:2]:
        with downloading(node) as proxy:
            urls = secret_file(tmp_path / "urls", f"{proxy.url}{path}\n  out=copy\n")
            command = ["aria2c", "-x8", "-s8", "-c", f"--conf-path={settings}", f"--input-file={urls}"]
            command += [f"--dir={tmp_path}", "--quiet"]
            first = cut_after(proxy, MIDDLE_BYTES, lambda: run_client(command, os.environ))  # noqa: B023
            assert first.returncode != 0
            passed_bytes = proxy.passed_bytes
            second = run_client(command, os.environ)
            assert second.returncode == 0, second.stdout
            assert proxy.passed_bytes - passed_bytes < SIZE_BYTES
        assert sha256_of(target) == stored.sha256
        target.unlink()
