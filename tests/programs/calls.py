"""A program that does not use ortune. It calls functions of various kinds until a file exists.

Its arguments are the name of a function below, the file, and a file to which each call appends `+` when it begins and
`-` when it ends. Coroutines that are not calls append to the file `ticks`.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

STOP, LOG = Path(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def work():
    os.write(LOG, b"+")
    time.sleep(0.003)
    os.write(LOG, b"-")


def items():
    os.write(LOG, b"+")
    try:
        for number in range(3):
            time.sleep(0.001)
            yield number
    finally:
        os.write(LOG, b"-")


async def work_async():
    os.write(LOG, b"+")
    await asyncio.sleep(0.003)
    os.write(LOG, b"-")


async def items_async():
    os.write(LOG, b"+")
    try:
        for number in range(3):
            await asyncio.sleep(0.001)
            yield number
    finally:
        os.write(LOG, b"-")


def call_until_stopped():
    while not STOP.exists():
        work()


def threads():
    own = [threading.Thread(target=call_until_stopped) for _ in range(4)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()


def forks():
    work()
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            call_until_stopped()
            os._exit(0)
        children.append(child)
    call_until_stopped()
    for child in children:
        os.waitpid(child, 0)


def generators():
    while not STOP.exists():
        for _ in items():
            pass
        for _ in items():
            break


async def call_coroutines():
    async def repeat():
        while not STOP.exists():
            await work_async()

    async def tick():
        while not STOP.exists():
            with STOP.with_name("ticks").open("a") as ticks:
                ticks.write(".")
            await asyncio.sleep(0.005)

    await asyncio.gather(*(repeat() for _ in range(4)), tick())


async def call_async_generators():
    while not STOP.exists():
        async for _ in items_async():
            pass


def coroutines():
    asyncio.run(call_coroutines())


def async_generators():
    asyncio.run(call_async_generators())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
