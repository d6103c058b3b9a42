"""The byte path: what a node does with bytes, beside what the machine can do, in the same run.

    python -m bench.datapath        (DATAPATH_RUNS=3 DATAPATH_CASES=plain for a shorter look)

Each part is a module whose `rows(directory)` measures something and comes back with rows; add one to PARTS.
A part whose yardstick is missing raises Skipped and says why. At the end: a table, and one JSON line, of all
parts that did not fail; one that did is named, and the exit code is 1.
"""

import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import datapath_get, datapath_memory, remote, replicated, uploads
from bench.rows import CASES, RUNS, Row, Skipped, as_json, show

PARTS: Mapping[str, Callable[[Path], list[Row]]] = {
    "downloads": datapath_get.rows,
    "remote": remote.rows,
    "uploads": uploads.rows,
    "replicated": replicated.rows,
    "memory": datapath_memory.rows,
}


def main() -> None:
    """Print the table and the JSON line. DATAPATH_CASES: a part, or the beginning of cases of downloads."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    found: list[Row] = []
    failed: list[str] = []
    chosen = list(PARTS) if not CASES else [CASES] if CASES in PARTS else ["downloads"]
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory:
            try:
                found += PARTS[name](Path(directory))
            except Skipped as reason:
                print(f"bench.datapath: {name} skipped: {reason}")
            except Exception:  # noqa: BLE001 - told, and the other parts are not at fault
                traceback.print_exc()
                failed.append(name)
    show(f"bench.datapath: medians of at least {RUNS}; CPU s per GiB or 10,000 requests", found)
    print(json.dumps({**as_json("datapath", RUNS, found), "failed": failed}))
    if failed:
        sys.exit(f"bench.datapath: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
