"""Pools of threads that are all there before the first job."""

import threading
from concurrent.futures import ThreadPoolExecutor

from ca.errors import Unavailable


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """The pool, whose threads are named after it. Raises Unavailable when they cannot be started.

    A pool that cannot start a thread for a job says so only when it has queued the job, which others of its
    threads may do all the same. Of this one `submit` fails only after its shutdown, and queues nothing then.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    met = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(met.wait)
        met.wait()
    except BaseException as error:
        met.abort()
        pool.shutdown(wait=True)
        if isinstance(error, RuntimeError):
            raise Unavailable(
                f"The system lets this process have fewer than {threads} threads more."
            ) from error
        raise
    return pool
