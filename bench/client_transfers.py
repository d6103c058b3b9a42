"""Transfers of the client that is installed beside this interpreter: run by `bench.client`, as a file.

Of this repository it has nothing else. Each line in is `up PATH` or `down FILE_UUID PATH`; each line out is
seconds, CPU seconds of this process, and the file_uuid.
"""

import os
import sys
import time

from filestore_client import Client


def main() -> None:
    """Until the input ends."""
    with Client.from_environment() as client:
        print(client.whoami().user_id, flush=True)
        for line in sys.stdin:
            act, *words = line.split()
            began, began_cpu = time.perf_counter(), cpu_s()
            if act == "up":
                file_uuid = client.files.upload(words[0], kind="backup", resume=False).file_uuid
            else:
                file_uuid = words[0]
                client.files.download(file_uuid, words[1])
            print(time.perf_counter() - began, cpu_s() - began_cpu, file_uuid, flush=True)


def cpu_s() -> float:
    """Of this process and all its threads."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
