# SPDX-License-Identifier: Apache-2.0
"""The scapy layers against the vectors, beside scapy's own RoCE."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packets import IDS, VECTORS, bth_at, change, packet_of, sound, vector_of
from scapy.config import conf
from scapy.contrib import roce
from scapy.layers.dns import DNS
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Padding, Raw
from scapy.utils import rdpcap, wrpcap

from mrc import dissect
from mrc.wire import decode

LAYERS: dict[str, list[type[Packet]]] = {
    "ack": [dissect.AETH],
    "endpoint_request": [dissect.ERTH],
    "endpoint_response": [dissect.EETH],
    "sack": [dissect.SETH, dissect.CCState],
    "nack": [dissect.NETH],
    "probe": [dissect.PETH],
}

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=IDS)


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MRC on its port, and scapy as it was afterwards; errors of our layers are not swallowed."""
    guesses, overloads = UDP.payload_guess, dissect.BTH._overload_fields
    monkeypatch.setattr(conf, "debug_dissector", True)
    dissect.bind()
    yield
    UDP.payload_guess, dissect.BTH._overload_fields = guesses, overloads


def dissected(packet: bytes) -> Packet:
    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)


def layers_of(vector: dict[str, Any]) -> list[type[Packet]]:
    """The headers that MRC 1.0 names for this packet's opcode."""
    name, fields = vector["name"], vector["fields"]
    if name in LAYERS:
        return [dissect.BTH, *LAYERS[name]]
    layers = [dissect.BTH, dissect.METH, dissect.RETH]
    if fields["ts"]:
        layers.insert(2, dissect.TSETH)
    if name.endswith("_imm"):
        layers.append(dissect.ImmDt)
    return layers


def chain(packet: Packet) -> list[Packet]:
    """The layers from the BTH on."""
    found = []
    layer = packet[dissect.BTH]
    while not isinstance(layer, NoPayload):
        found.append(layer)
        layer = layer.payload
    return found


def rebuilt(packet: Packet) -> bytes:
    """Built from the fields alone, without the bytes that scapy keeps."""
    copy = packet.copy()
    copy.clear_cache()
    return bytes(copy)


def built(vector: dict[str, Any]) -> Packet:
    """The vector's packet put together by hand; pad, TS and ICRC are left to the layers."""
    fields = vector["fields"]
    traffic_class = vector["dscp"] << 2 | vector["ecn"]
    ends = {"src": vector["src"], "dst": vector["dst"]}
    if vector["ip_version"] == 4:
        packet = IP(**ends, tos=traffic_class, id=0, flags="DF", ttl=64)
    else:
        packet = IPv6(**ends, tc=traffic_class, fl=vector["ev"] >> 16, hlim=64)
    packet /= UDP(sport=vector["ev"] & 0xFFFF)
    given = {key: value for key, value in fields.items() if key not in {"pad", "ts"}}
    for layer in layers_of(vector):
        names = {field.name for field in layer.fields_desc}
        values = {key: value for key, value in given.items() if key in names}
        if layer is dissect.BTH:
            values = {key: value for key, value in values.items() if key != "m"}
            values["opcode"] = vector["opcode"]
        packet /= layer(**values)
    return packet / Raw(bytes.fromhex(fields.get("payload", "")))


# ---- The vectors


@every_vector
def test_a_vector_dissects_to_its_headers_and_payload(vector: dict[str, Any]) -> None:
    layers = [type(layer) for layer in chain(dissected(packet_of(vector)))]
    assert layers == layers_of(vector) + ([Raw] if vector["fields"].get("payload") else [])


@every_vector
def test_a_vector_dissects_to_its_fields(vector: dict[str, Any]) -> None:
    packet = dissected(packet_of(vector))
    found: dict[str, Any] = {}
    for layer in chain(packet):
        found |= layer.fields
    found["payload"] = bytes(packet[Raw].load if Raw in packet else b"").hex()
    assert {key: found[key] for key in vector["fields"]} == vector["fields"]
    assert packet[dissect.BTH].opcode == vector["opcode"]
    assert packet[dissect.BTH].trimmed == 0
    assert packet[dissect.BTH].icrc == int.from_bytes(packet_of(vector)[-4:], "little")


@every_vector
def test_a_vector_is_rebuilt_byte_for_byte_from_its_fields(vector: dict[str, Any]) -> None:
    packet = packet_of(vector)
    assert bytes(dissected(packet)) == rebuilt(dissected(packet)) == packet


@every_vector
def test_a_vector_is_rebuilt_with_computed_pad_ts_and_icrc(vector: dict[str, Any]) -> None:
    packet = dissected(packet_of(vector))
    for field in ("pad", "padding", "ts", "icrc"):
        packet[dissect.BTH].setfieldval(field, None)
    assert rebuilt(packet) == packet_of(vector)


@every_vector
def test_a_vector_can_be_built_by_hand(vector: dict[str, Any]) -> None:
    assert bytes(built(vector)) == packet_of(vector)


@every_vector
def test_reserved_bits_survive(vector: dict[str, Any]) -> None:
    """Every bit behind the opcode belongs to a field: all ones are rebuilt as all ones."""
    packet = packet_of(vector)
    bth = bth_at(packet)
    ones = bytearray(b"\xff" * (len(packet) - bth))
    ones[0] = packet[bth]
    ones[1] = 0xCF  # no pad
    ones[8] = 0xEF | packet[bth + 8] & 0x10
    filled = sound(packet[:bth] + bytes(ones))
    assert rebuilt(dissected(filled)) == filled


# ---- Building


BUILT = {
    "write_only": dissect.METH() / dissect.RETH(),
    "ack": dissect.AETH(),
    "endpoint_request": dissect.ERTH(),
    "endpoint_response": dissect.EETH(),
    "sack": dissect.SETH() / dissect.CCState(),
    "nack": dissect.NETH(),
    "probe": dissect.PETH(),
}


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("ip", [IP(), IPv6()], ids=["v4", "v6"])
def test_a_packet_of_defaults_is_one_that_the_core_reads(name: str, ip: Packet) -> None:
    packet = decode(bytes(ip / UDP(sport=1) / dissect.BTH() / BUILT[name]))
    assert packet["name"] == name
    assert packet["fields"]["dest_qp"] == (2 if name.startswith("endpoint_") else 0)


@pytest.mark.parametrize("size", range(9))
def test_the_pad_follows_from_the_payload(size: int) -> None:
    headers = UDP(sport=1) / dissect.BTH() / dissect.METH() / dissect.TSETH() / dissect.RETH()
    packet = decode(bytes(IPv6() / headers / Raw(b"x" * size)))
    assert packet["fields"]["payload"] == (b"x" * size).hex()
    assert packet["fields"]["ts"] == 1


def test_a_wrong_icrc_can_be_built_and_is_shown() -> None:
    packet = IPv6() / UDP() / dissect.BTH(icrc=0x01020304) / dissect.AETH()
    assert bytes(packet)[-4:] == b"\x04\x03\x02\x01"
    assert dissected(bytes(packet))[dissect.BTH].icrc == 0x01020304


def test_without_udp_and_ip_there_is_no_icrc() -> None:
    assert bytes(dissect.BTH() / dissect.AETH())[-4:] == bytes(4)


def test_a_line_names_opcode_qp_and_psn() -> None:
    packet = dissected(packet_of(vector_of("sack")))
    bth = packet[dissect.BTH]
    assert f"MRC sack QP {bth.dest_qp:#x} PSN {bth.psn}" in packet.summary()


# ---- SRv6


CARRIER = "fcbb:bb00:1:2:3::"


def outer(*, srh: bool, tc: int = 3) -> Packet:
    """SRv6 around a packet; with an SRH or, as a uSID list that fits the address needs, without."""
    header = IPv6(src="fd00:9::1", dst=CARRIER, tc=tc, nh=43 if srh else 41)
    return header / IPv6ExtHdrSegmentRouting(addresses=[CARRIER], nh=41) if srh else header


srh_or_not = pytest.mark.parametrize("srh", [False, True], ids=["plain", "SRH"])


@srh_or_not
def test_a_packet_in_srv6_dissects_and_its_icrc_covers_the_inner_packet(srh: bool) -> None:
    inner = packet_of(vector_of("write_only", 6))
    around = bytes(outer(srh=srh))
    packet = dissected(bytes(outer(srh=srh) / Raw(inner)))
    lower = [IPv6, IPv6ExtHdrSegmentRouting, IPv6, UDP] if srh else [IPv6, IPv6, UDP]
    whole = [packet.getlayer(n) for n in range(len(lower) + 2)]
    assert [type(layer) for layer in whole] == [*lower, dissect.BTH, dissect.METH]
    packet[dissect.BTH].icrc = None
    assert rebuilt(packet)[len(around) :] == inner


@srh_or_not
def test_a_packet_in_srv6_can_be_built_with_the_icrc_that_scapy_computes(srh: bool) -> None:
    udp = IPv6(src="fd00::1", dst="fd00::2", fl=0x12345) / UDP(sport=0x1234)
    write = dissect.METH(msn=1) / dissect.RETH(va=4096, r_key=5, dma_length=6) / Raw(b"abcdef")
    packet = bytes(outer(srh=srh) / udp / dissect.BTH(dest_qp=77, psn=9) / write)
    inner = packet[len(bytes(outer(srh=srh))) :]
    theirs = IPv6(inner[:40]) / UDP(inner[40:48]) / roce.BTH(inner[48:])
    theirs[roce.BTH].icrc = None
    assert bytes(theirs) == inner
    mapping = decode(packet)
    assert (mapping["carrier"], mapping["src"]) == (CARRIER, "fd00::1")
    assert (mapping.get("srh", 0), mapping["fields"]["payload"]) == (srh, b"abcdef".hex())


# ---- Trimmed packets


def with_dscp_of_trimmed(packet: bytes) -> bytes:
    return change(change(packet, 0, 0x63), 1, 0x00, 0xC0)


@pytest.mark.parametrize("lengths", ["ip", "both"])
@pytest.mark.parametrize("name", ["write_first", "write_only_imm"])
def test_a_trimmed_write_dissects_to_what_is_left_of_it(name: str, lengths: str) -> None:
    whole = with_dscp_of_trimmed(packet_of(vector_of(name, 6)))
    headers = [layer for layer in layers_of(vector_of(name, 6)) if layer is not dissect.ImmDt]
    size = 48 + 12 + sum(len(layer()) for layer in headers[1:])
    cut = whole[:4] + (size - 40).to_bytes(2, "big") + whole[6:size]
    if lengths == "both":
        cut = cut[:44] + (size - 40).to_bytes(2, "big") + cut[46:]
    packet = dissected(cut)
    assert [type(layer) for layer in chain(packet)] == headers
    assert packet[dissect.BTH].trimmed == 1
    assert packet[dissect.BTH].icrc is None
    assert rebuilt(packet) == cut


def test_a_trim_mark_on_a_whole_packet_leaves_it_whole() -> None:
    whole = with_dscp_of_trimmed(packet_of(vector_of("write_only", 6)))
    assert dissected(whole)[dissect.BTH].trimmed == 0
    assert rebuilt(dissected(whole)) == whole


@srh_or_not
def test_the_trim_mark_is_read_from_the_outer_header(srh: bool) -> None:
    vector = vector_of("write_first", 6)
    inner = packet_of(vector)[: 48 + 12 + 4 + 4 * vector["fields"]["ts"] + 16]
    inner = inner[:44] + (len(inner) - 40).to_bytes(2, "big") + inner[46:]
    packet = dissected(bytes(outer(srh=srh, tc=16 << 2) / Raw(inner)))
    assert packet[dissect.BTH].trimmed == 1


def test_a_trimmed_packet_can_be_built() -> None:
    packet = (
        IPv6(src="fd00::1", dst="fd00::2", tc=12 << 2)
        / UDP(sport=7)
        / dissect.BTH(trimmed=1, dest_qp=5, pad=3)
        / dissect.METH(msn=2)
        / dissect.RETH(dma_length=100)
    )
    fields = decode(bytes(packet))["fields"]
    assert (fields["trimmed"], fields["pad"], fields["dma_length"]) == (1, 3, 100)


# ---- Packets that are not sound


@every_vector
def test_no_truncation_breaks_the_dissector(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read is shown raw; the bytes stay what they are.

    Anywhere in the headers, and at the end: inside the payload one place is like another.
    """
    monkeypatch.setattr(conf, "debug_dissector", False)
    packet = packet_of(vector)
    first = bth_at(packet) + 1
    for size in {*range(first, len(packet))} - {*range(first + 48, len(packet) - 8)}:
        for cut in (packet[:size], sound(packet[:size] + bytes(4))):
            assert rebuilt(dissected(cut)) == cut, size


def test_a_pad_count_beyond_the_packet_is_shown_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "debug_dissector", False)
    header = b"\xca\x30" + bytes(10)
    packet = IPv6(bytes(IPv6() / UDP(dport=4791) / Raw(header + bytes(5))))
    assert packet[Raw].load == header + bytes(5)


def test_ethernet_padding_is_not_the_packets() -> None:
    packet = packet_of(vector_of("ack", 4))
    frame = Ether(bytes(Ether(dst="02:00:00:00:00:01") / dissected(packet)) + bytes(10))
    assert frame[Padding].load == bytes(10)
    assert frame[dissect.BTH].icrc == int.from_bytes(packet[-4:], "little")


# ---- Living with others


def roce_packets() -> dict[str, Packet]:
    send = roce.BTH(opcode=roce.opcode("RC", "SEND_ONLY")[0], dqpn=0x123456, psn=7) / Raw(b"data")
    ack = roce.BTH(opcode=roce.opcode("RC", "ACKNOWLEDGE")[0], psn=8) / roce.AETH(msn=3)
    return {"send": send, "ack": ack, "cnp": roce.cnp(dqpn=9)}


@pytest.mark.parametrize("name", roce_packets())
@pytest.mark.parametrize("ip", [IP(), IPv6()], ids=["v4", "v6"])
def test_roce_on_the_same_port_works_as_before(name: str, ip: Packet) -> None:
    packet = ip / UDP(sport=49152) / roce_packets()[name]
    raw = bytes(packet)
    read = dissected(raw)
    assert type(read[UDP].payload) is roce.BTH
    assert read.layers()[3:] == packet.layers()[3:]
    assert read[UDP].dport == 4791
    read[roce.BTH].icrc = None
    assert rebuilt(read) == raw


def test_an_ev_that_looks_like_a_known_port_stays_mrc() -> None:
    """The source port is half of the EV: 53 is no DNS, 4791 no answer."""
    packet = packet_of(vector_of("sack"))
    udp = bth_at(packet) - 8
    for port in (53, 67, 123, 500, 4789, 5353, 4791):
        read = dissected(packet[:udp] + port.to_bytes(2, "big") + packet[udp + 2 :])
        assert dissect.SETH in read, port


def test_other_protocols_are_left_alone() -> None:
    assert DNS in IP(bytes(IP() / UDP() / DNS()))


def test_other_ports_can_be_bound_and_binding_twice_is_binding_once() -> None:
    dissect.bind()
    once = list(UDP.payload_guess)
    dissect.bind()
    assert UDP.payload_guess == once
    assert dissect.BTH not in IP(bytes(IP() / UDP(dport=4971) / dissect.BTH() / dissect.AETH()))
    dissect.bind(port=4971)
    assert dissect.AETH in IP(bytes(IP() / UDP() / dissect.BTH() / dissect.AETH()))
    assert (IP() / UDP() / dissect.BTH())[UDP].dport == 4971
    assert dissect.SETH in dissected(packet_of(vector_of("sack")))


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(dissect.__file__).parent.parent,
    ).stdout


def test_importing_it_changes_nothing_until_it_is_bound() -> None:
    code = """
from scapy.contrib import roce
from scapy.layers.inet import UDP
before = UDP.payload_guess
from mrc import dissect
assert UDP.payload_guess is before
assert type((UDP() / roce.BTH())[roce.BTH]) is roce.BTH
assert type(UDP(bytes(UDP(dport=4791) / (b"\\xd1" + bytes(20)))).payload) is roce.BTH
print("done")
"""
    assert run(code) == "done\n"


def test_the_library_does_not_import_scapy_by_itself() -> None:
    assert run("import sys, mrc, mrc.wire; print('scapy' in sys.modules)") == "False\n"


def test_without_scapy_the_message_says_what_to_install() -> None:
    code = """
import sys
sys.modules["scapy"] = None
try:
    import mrc.dissect
except ImportError as error:
    print(error)
"""
    assert "mrc-transport[scapy]" in run(code)


# ---- Captures


def test_a_capture_of_everything_reads_back(tmp_path: Path) -> None:
    """All vectors and RoCE in one file, in Ethernet and, for a second file, from IP on."""
    roces = [bytes(IP() / UDP() / packet) for packet in roce_packets().values()]
    packets = [packet_of(vector) for vector in VECTORS] + roces
    frames = [Ether(dst="02:00:00:00:00:01") / dissected(packet) for packet in packets]
    wrpcap(str(tmp_path / "ethernet.pcap"), frames)
    wrpcap(str(tmp_path / "ip.pcap"), [dissected(packet) for packet in packets], linktype=101)
    for file in ("ethernet.pcap", "ip.pcap"):
        read = rdpcap(str(tmp_path / file))
        bytes_read = [bytes(each[Ether].payload if Ether in each else each) for each in read]
        assert bytes_read == packets
        names = [dissect.OPCODES[each[dissect.BTH].opcode] for each in read if dissect.BTH in each]
        assert names == [vector["name"] for vector in VECTORS]
        assert sum(roce.BTH in each for each in read) == len(roces)
