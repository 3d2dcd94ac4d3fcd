"""Does something again and again, at a steady rate, however long each takes."""

import asyncio
from collections.abc import Callable, Coroutine


async def steadily(rate: float, seconds: float, do: Callable[[int], Coroutine[None, None, None]]) -> None:
    """`do` gets its number, from 1 on, `rate` times a second. Returns when the last one of these seconds has ended."""
    clock = asyncio.get_running_loop().time
    began_at, made, running = clock(), 0, set[asyncio.Task[None]]()
    while (passed := clock() - began_at) < seconds:
        for _ in range(int(passed * rate) - made):
            made += 1
            task = asyncio.create_task(do(made))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*running)
