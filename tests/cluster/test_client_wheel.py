"""The client's wheel alone, in an empty environment: a gibibyte up and down, and pandas on `filestore://`."""

import json
from pathlib import Path

import pytest

from bench.wheel import build_wheel
from tests.client_examples import NEEDS_PANDAS, example
from tests.cluster.client_wheel import environment_with, run
from tests.cluster.harness import Cluster, random_file
from tests.cluster.throttle import ThrottlingProxy

FILE_BYTES = 1 << 30
BYTES_PER_S = 256 << 20

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


TRANSFER = """
import importlib.util, json, os, sys
from importlib.metadata import distributions
from filestore_client import Client

names = ("ca", "runtime", "web", "metadata", "api", "coordinator", "node", "deploy", "uvloop")
others = [name for name in names if importlib.util.find_spec(name)]
assert not others, others
os.environ["FILESTORE_URL"] = sys.argv[1]
with Client.from_environment() as client:
    record = client.files.upload(sys.argv[3], only_url=True)
os.environ["FILESTORE_URL"] = sys.argv[2]
with Client.from_environment() as client:
    client.files.download(record.file_uuid, sys.argv[4])
names = sorted(found.metadata["Name"].lower() for found in distributions())
print(json.dumps({"sha256": record.blob_sha256, "size_bytes": record.size_bytes, "packages": names}))
"""


def test_wheel_alone_goes_on_after_a_cut_with_a_gibibyte(
    cluster: Cluster, wheel: Path, tmp_path: Path
) -> None:
    python = environment_with(tmp_path / "empty", str(wheel))
    source, copy = tmp_path / "lab.bin", tmp_path / "copy.bin"
    sha256 = random_file(source, FILE_BYTES)
    with (
        ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=BYTES_PER_S) as up,
        ThrottlingProxy(cluster.nodes[1].api_port, bytes_per_s=BYTES_PER_S, is_down=True) as down,
    ):
        up.cut_marks, down.cut_marks = [FILE_BYTES // 2], [FILE_BYTES // 2]
        arguments = [up.url, down.url, str(source), str(copy)]
        told = json.loads(run(python, TRANSFER, arguments, cluster.command_environment()))
        assert not up.cut_marks
        assert not down.cut_marks
        assert max(up.passed_bytes, down.passed_bytes) < FILE_BYTES * 1.15
    assert (told["sha256"], told["size_bytes"]) == (sha256, FILE_BYTES)
    assert copy.stat().st_size == FILE_BYTES
    assert same(source, copy)
    assert {"filestore-client", "aiohttp", "msgspec"} <= set(told["packages"])
    assert "fsspec" not in told["packages"]
    source.unlink()
    copy.unlink()


def same(first: Path, second: Path) -> bool:
    with first.open("rb") as one, second.open("rb") as other:
        while part := one.read(1 << 20):
            if other.read(1 << 20) != part:
                return False
        return not other.read(1)


COMPRESSED = """
import pandas
devices.to_csv("filestore://course-7/devices.csv.gz", index=False)
assert pandas.read_csv("filestore://course-7/devices.csv.gz").equals(devices)
"""


def test_pandas_writes_and_reads_a_table(cluster: Cluster, wheel: Path, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "pandas", f"{wheel}[fsspec]", "pandas")
    bucket_id = cluster.post("/buckets", {"name": "course-7"}).json["bucket_id"]
    program = example(NEEDS_PANDAS) + COMPRESSED
    printed = run(python, program, [], cluster.command_environment())
    assert printed == "  device  ports\n0     r1      4\n1     r2     48\n"
    files = cluster.get(f"/buckets/{bucket_id}/files").json["files"]
    assert [file["filename"] for file in files] == ["devices.csv", "devices.csv.gz"]
    assert cluster.get(f"/files/{files[0]['file_uuid']}").body == b"device,ports\nr1,4\nr2,48\n"
    for file in files:
        assert cluster.request("DELETE", f"/files/{file['file_uuid']}").status == 200
    assert cluster.request("DELETE", f"/buckets/{bucket_id}").status == 200
