"""Read every file that `load.py` has told of, and compare its sha256. Ends with 1 where one is not right.

It runs on a machine with the package, with the variables that the command takes.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

from filestore_client import Client

began_s = time.monotonic()
told = [line.split() for line in Path(sys.argv[1]).read_text().splitlines()]
store = Client(
    os.environ["FILESTORE_URL"].split(),
    root_pem=Path(os.environ["FILESTORE_CA"]).read_text(),
    token=Path(os.environ["FILESTORE_TOKEN_FILE"]).read_text().strip(),
)
back = Path("/srv/back")
with store:
    for file_uuid, sha256 in told:
        back.unlink(missing_ok=True)
        store.files.download(file_uuid, back)
        if hashlib.sha256(back.read_bytes()).hexdigest() != sha256:
            sys.exit(f"{file_uuid} has other bytes")
print(f"{len(told)} files in {time.monotonic() - began_s:.1f} s")
