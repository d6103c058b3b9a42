"""Apart from the requests of a server: notices during a long request that the server hangs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def while_alive(ask: Callable[[], Awaitable[object]], *, every_s: float) -> AsyncIterator[None]:
    """Within it `ask` is awaited every now and then. Raises what it raises, and what is raised within."""

    async def keep_asking() -> None:
        while True:
            await asyncio.sleep(every_s)
            await ask()

    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(keep_asking())
            yield
            asking.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
