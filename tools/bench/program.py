# SPDX-License-Identifier: Apache-2.0
"""What the benches' programs in the hosts share.

`python -m tools.bench.stream SCENARIO TARGET JSON` runs a function of that module with the words
of the JSON object as keyword arguments, `config` being the settings of `mrc.Config`. Standard
output carries a line of JSON for each thing said. A program ends by SIGALRM after LIMIT seconds,
so who reads from it never waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

import mrc

LIMIT = 400


def say(value: Any) -> None:
    """Prints a line of JSON at once."""
    print(json.dumps(value), flush=True)


@contextlib.asynccontextmanager
async def listening(config: dict[str, Any]) -> AsyncIterator[mrc.Listener]:
    """Listens on every address, and says so."""
    async with mrc.listen(config=mrc.Config(**config)) as listener:
        say("listening")
        yield listener


async def questions() -> AsyncIterator[Any]:
    """What is asked on standard input, a line of JSON each, to its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield json.loads(line)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main(scenarios: dict[str, Any]) -> None:
    """Runs the scenario that the command line names, and says its result if it has one."""
    signal.alarm(LIMIT)
    _, name, target, words = sys.argv
    scenario, arguments = scenarios[name], json.loads(words)
    result = (
        uvloop.run(scenario(target, **arguments))
        if inspect.iscoroutinefunction(scenario)
        else scenario(target, **arguments)
    )
    if result is not None:
        say(result)
