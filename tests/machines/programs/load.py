"""Store files until the machine ends, and tell of each that is acknowledged: its UUID, and its sha256.

It runs on a machine with the package, with the variables that the command takes.
"""

import hashlib
import os
import threading
from pathlib import Path

from filestore_client import Client, FilestoreError

CLIENTS = 4
SIZES = (4_096, 60_000, 300_000)


def send(client: int) -> None:
    """What one client does."""
    path = Path(f"/srv/load-{client}")
    store = Client(
        os.environ["FILESTORE_URL"].split(),
        root_pem=Path(os.environ["FILESTORE_CA"]).read_text(),
        token=Path(os.environ["FILESTORE_TOKEN_FILE"]).read_text().strip(),
    )
    with store:
        for number in range(10_000):
            content = os.urandom(SIZES[number % len(SIZES)])
            path.write_bytes(content)
            try:
                record = store.files.upload(path, filename=f"load-{client}-{number}", kind="backup")
            except FilestoreError:
                continue  # it was not acknowledged
            line = f"{record.file_uuid} {hashlib.sha256(content).hexdigest()}\n"
            os.write(1, line.encode())


threads = [threading.Thread(target=send, args=(client,)) for client in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
