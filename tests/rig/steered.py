# SPDX-License-Identifier: Apache-2.0
"""The programs of transfer.py.

    python steered.py server|client TOPOLOGY TARGET BYTES [SETTING=VALUE...]

The client sends one message, the server answers with its digest; each prints one line of JSON.
Settings are mrc.Config's, the values JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from typing import Any

import mrc


def say(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


async def serve(options: dict[str, Any]) -> None:
    async with mrc.listen(None, **options) as listener:
        say("listening")
        async with await listener.accept() as connection:
            message = await connection.recv()
            digest = hashlib.sha256(bytes(message)).hexdigest()
            await connection.send(digest.encode())


async def send(target: str, size: int, options: dict[str, Any]) -> None:
    async with await mrc.connect(target, **options) as connection:
        data = random.Random(size).randbytes(size)
        await connection.send(data)
        digest = bytes(await connection.recv()).decode()
        say({"right": digest == hashlib.sha256(data).hexdigest()})


def main() -> None:
    role, topology, target, size, *words = sys.argv[1:]
    settings = {key: json.loads(value) for key, _, value in (word.partition("=") for word in words)}
    config = mrc.Config(**{"routing": "srv6", "topology": topology, **settings})
    options = {"planes": ["p0", "p1"], "config": config}
    asyncio.run(serve(options) if role == "server" else send(target, int(size), options))


main()
