# SPDX-License-Identifier: Apache-2.0
"""The CRC routines against each other, zlib and scapy's RoCE."""

from __future__ import annotations

import itertools
import random
import subprocess
import zlib
from typing import Any

import pytest
from native.build import CSRC, load

ffi, lib = load("icrc")

ALL_METHODS = {"table": lib.ICRC_TABLE, "pclmul": lib.ICRC_PCLMUL, "vpclmul": lib.ICRC_VPCLMUL}


def method(name: str) -> Any:
    icrc = ffi.new("struct icrc *")
    if not lib.icrc_use(icrc, ALL_METHODS[name]):
        pytest.skip(f"this processor has no {name}")
    return icrc


def cpu_has(flag: str) -> bool:
    with open("/proc/cpuinfo") as cpuinfo:
        return any(line.startswith("flags") and flag in line.split() for line in cpuinfo)


@pytest.mark.parametrize("name", ALL_METHODS)
def test_every_method_equals_zlib_for_all_sizes_and_alignments(name: str) -> None:
    icrc = method(name)
    data = random.Random(1).randbytes(700)
    buffer = ffi.from_buffer(data)
    for size, start in itertools.product(range(601), (0, 1, 3, 8, 15, 31)):
        crc = icrc.update(0xFFFFFFFF, buffer + start, size) ^ 0xFFFFFFFF
        assert crc == zlib.crc32(data[start : start + size]), (size, start)


@pytest.mark.parametrize("name", ALL_METHODS)
@pytest.mark.parametrize("size", [1024, 4096, 4124, 4164, 8192, 65535])
def test_every_method_equals_zlib_for_packet_sizes(name: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert method(name).update(0xFFFFFFFF, data, size) ^ 0xFFFFFFFF == zlib.crc32(data)


@pytest.mark.parametrize("name", ALL_METHODS)
def test_a_crc_may_be_taken_in_any_pieces(name: str) -> None:
    icrc = method(name)
    draw = random.Random(2)
    for _ in range(300):
        pieces = [draw.randbytes(draw.choice((0, 1, 4, 15, 16, 40, 100, 256, 700))) for _ in "abcd"]
        state = draw.getrandbits(32)
        crc = state ^ 0xFFFFFFFF
        for piece in pieces:
            state = icrc.update(state, piece, len(piece))
            crc = zlib.crc32(piece, crc)
        assert state ^ 0xFFFFFFFF == crc


@pytest.mark.parametrize("name", ALL_METHODS)
def test_the_bth_is_read_with_byte_4_as_ones(name: str) -> None:
    icrc = method(name)
    for reserved in (0x00, 0x40, 0xFF):
        bth = bytes([0xC6, 0x80, 0xFF, 0xFF, reserved, 1, 2, 3, 0x80, 4, 5, 6])
        masked = bth[:4] + b"\xff" + bth[5:]
        state = 0x12345678
        assert lib.icrc_bth(icrc, state, bth) ^ 0xFFFFFFFF == zlib.crc32(masked, state ^ 0xFFFFFFFF)


def test_the_stored_value_is_the_inverted_state_least_significant_byte_first() -> None:
    out = ffi.new("uint8_t[4]")
    lib.icrc_store(0x11223344 ^ 0xFFFFFFFF, out)
    assert bytes(out) == bytes.fromhex("44332211")
    assert lib.icrc_load(out) == 0x11223344


def test_the_chosen_method_is_the_best_that_the_processor_lists() -> None:
    icrc = ffi.new("struct icrc *")
    lib.icrc_choose(icrc)
    expected = lib.ICRC_TABLE
    if cpu_has("pclmulqdq") and cpu_has("sse4_1"):
        expected = lib.ICRC_PCLMUL
        if cpu_has("vpclmulqdq") and cpu_has("avx2"):
            expected = lib.ICRC_VPCLMUL
    assert icrc.method == expected


def test_a_method_that_does_not_exist_is_refused() -> None:
    icrc = ffi.new("struct icrc *")
    assert not lib.icrc_use(icrc, 3)
    assert icrc.update == ffi.NULL


def test_a_build_for_another_processor_has_the_table(tmp_path: Any) -> None:
    # The C library's headers need to know the processor; they are not read again.
    source = "#include <stdint.h>\n#include <stdio.h>\n"
    source += f'#undef __x86_64__\n#include "{CSRC}/icrc.c"\n'
    (tmp_path / "other.c").write_text(
        source + "int main(void) { struct icrc icrc; icrc_choose(&icrc);\n"
        'return printf("%d %d %08x", icrc.method, icrc_use(&icrc, ICRC_PCLMUL),\n'
        '~icrc.update(ICRC_START, (const uint8_t *)"123456789", 9)) < 0; }\n'
    )
    program = tmp_path / "other"
    subprocess.run(["cc", "-std=c11", f"-I{CSRC}", "-o", program, tmp_path / "other.c"], check=True)
    result = subprocess.run([program], check=True, capture_output=True, text=True)
    assert result.stdout == "0 0 cbf43926"  # the check value of CRC-32
