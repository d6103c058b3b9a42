"""Stock libraries write and read trees on `filestore://`: pandas, dask, pyarrow and zarr."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.wheel import build_wheel
from tests.cluster.client_wheel import environment_with, run
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

LIBRARIES = ("pandas", "pyarrow", "dask[dataframe]", "zarr>=3")
TABLE = """
import sys
import fsspec
import pandas

bucket = sys.argv[1]
fs = fsspec.filesystem("filestore")
nodes = [("a", "r1", 1), ("a", "r2", 2), ("b", "r1", 3), ("b", "r2", 4)]
table = pandas.DataFrame(nodes, columns=["lab", "node", "ports"])

def rows(found):
    return sorted((str(row.lab), str(row.node), row.ports) for row in found.itertuples())

def folders():
    return sorted({path.rpartition("/")[0].removeprefix(bucket + "/") for path in fs.find(bucket)})
"""
PANDAS = """
table.to_parquet(f"filestore://{bucket}/t", partition_cols=["lab", "node"])
assert folders() == [f"t/lab={lab}/node={node}" for lab, node, _ in nodes], folders()
assert rows(pandas.read_parquet(f"filestore://{bucket}/t")) == nodes
some = pandas.read_parquet(f"filestore://{bucket}/t", filters=[("lab", "==", "b")])
assert rows(some) == nodes[2:]
"""
DASK = """
import warnings
import dask.dataframe

warnings.filterwarnings("ignore", message="The inplace keyword")  # of pandas, which dask uses

place = f"filestore://{bucket}/t"
parted = dask.dataframe.from_pandas(table, npartitions=2)
parted.to_parquet(place, partition_on=["lab"])
assert folders() == ["t/lab=a", "t/lab=b"], folders()
assert rows(dask.dataframe.read_parquet(place).compute()) == nodes
parted.to_parquet(place, overwrite=True)
assert folders() == ["t"], folders()
assert rows(dask.dataframe.read_parquet(place).compute()) == nodes
parted.to_csv(f"filestore://{bucket}/csv/part-*.csv", index=False)
assert rows(dask.dataframe.read_csv(f"filestore://{bucket}/csv/part-*.csv").compute()) == nodes
"""
PYARROW = """
import pyarrow
import pyarrow.dataset

by_lab = pyarrow.dataset.partitioning(pyarrow.schema([("lab", pyarrow.string())]), flavor="hive")

def write(part, behavior):
    pyarrow.dataset.write_dataset(
        pyarrow.Table.from_pandas(part), f"{bucket}/t", filesystem=fs, format="parquet",
        partitioning=by_lab, existing_data_behavior=behavior,
    )

write(table, "error")
assert folders() == ["t/lab=a", "t/lab=b"], folders()
found = pyarrow.dataset.dataset(f"{bucket}/t", filesystem=fs, partitioning="hive")
assert rows(found.to_table().to_pandas()) == nodes
assert found.to_table(filter=pyarrow.dataset.field("lab") == "a").num_rows == 2
write(table[:1], "delete_matching")
found = pyarrow.dataset.dataset(f"{bucket}/t", filesystem=fs, partitioning="hive")
assert rows(found.to_table().to_pandas()) == [nodes[0], *nodes[2:]]
"""
ZARR = """
import sys
import fsspec
import numpy
import zarr

bucket = sys.argv[1]
place = f"filestore://{bucket}/lab.zarr"
array = zarr.open_group(place, mode="w").create_array(
    "traffic/bytes", shape=(60, 60), chunks=(20, 20), dtype="i4", fill_value=0
)
wanted = numpy.arange(3600).reshape(60, 60)
array[:] = wanted
array[:20, :20] = 7
array[:20, :20] = wanted[:20, :20] = 0  # zarr deletes a chunk of fill values
array.attrs["unit"] = "bytes"
again = zarr.open_group(place, mode="r")
assert [name for name, _ in again.members(max_depth=None)] == ["traffic", "traffic/bytes"]
assert (again["traffic/bytes"][:] == wanted).all()
assert again["traffic/bytes"].attrs["unit"] == "bytes"
array.resize((40, 40))
array.resize((60, 60))
assert (array[:40, :40] == wanted[:40, :40]).all()
assert not array[40:].any() and not array[:, 40:].any()
del zarr.open_group(place, mode="a")["traffic"]
assert fsspec.filesystem("filestore").find(bucket) == [f"{bucket}/lab.zarr/zarr.json"]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the client's wheel and the libraries; skips the tests where pip gets none."""
    directory = tmp_path_factory.mktemp("libraries")
    return environment_with(directory / "venv", f"{build_wheel(directory)}[fsspec]", *LIBRARIES)


@pytest.fixture
def bucket(cluster: Cluster) -> Iterator[str]:
    name = f"libraries-{secrets.token_hex(4)}"
    bucket_id = cluster.post("/buckets", {"name": name}).json["bucket_id"]
    yield name
    for file in cluster.get(f"/buckets/{bucket_id}/files").json["files"]:
        assert cluster.request("DELETE", f"/files/{file['file_uuid']}").status == 200
    assert cluster.request("DELETE", f"/buckets/{bucket_id}").status == 200


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(TABLE + PANDAS, id="pandas"),
        pytest.param(TABLE + DASK, id="dask"),
        pytest.param(TABLE + PYARROW, id="pyarrow"),
        pytest.param(ZARR, id="zarr"),
    ],
)
def test_library_stores_a_tree_and_reads_it(
    cluster: Cluster, python: Path, bucket: str, program: str
) -> None:
    assert run(python, program, [bucket], cluster.command_environment()) == ""
