# SPDX-License-Identifier: Apache-2.0
"""Programs: one sends a byte stream over multipath TCP (RFC 8684), the other says how fast."""

from __future__ import annotations

import socket
import time

from tools.bench.program import main, say

PIECE = 1 << 20
PORT = 5301


def sink(_: str, *, family: int) -> None:
    """Takes one stream to its end, and says {goodput_gbps}. Subflows come to any address."""
    buffer = bytearray(PIECE)
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", PORT))
        listening.listen(1)
        say("listening")
        stream, _ = listening.accept()
        with stream:  # while it listens: more subflows join
            total = 0
            start = time.monotonic()
            while count := stream.recv_into(buffer):
                total += count
    say({"goodput_gbps": total * 8e-9 / (time.monotonic() - start)})


def source(address: str, *, family: int, seconds: float) -> None:
    """Sends for so many seconds."""
    data = bytes(PIECE)
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as stream:
        stream.connect((address, PORT))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(data)


if __name__ == "__main__":
    main(globals())
