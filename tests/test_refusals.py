# SPDX-License-Identifier: Apache-2.0
"""What a peer refuses for want of room (NACK NO_RESOURCE), over a network in virtual time.

The pool of immediates of host 1 holds a few; its application does not take them, or they wait for
a packet that was lost.
"""

from __future__ import annotations

from collections import Counter

from vnet import (
    MS,
    NACK,
    ON_QP,
    ON_RECEIVE,
    ON_WRITE,
    RETRY_EXCEEDED,
    SACK,
    SECOND,
    WRITES,
    Connection,
    Net,
)

ROOM = 4


def crowd(**config: int) -> tuple[Net, Connection]:
    """Twice as many immediates as host 1 has room for, which host 0 has just posted."""
    net = Net(1, config={"burst": 1, "max_immediates": ROOM, **config}, stall=0)
    connection = net.connect(psn=0)
    net.settle()
    net.hold(1, held=True)
    for number in range(2 * ROOM):
        connection.write(0, 8, imm=number)
    return net, connection


def test_what_is_refused_is_tried_less_and_less_often_until_the_application_makes_room() -> None:
    net, connection = crowd()
    net.pass_time(2 * SECOND)
    tries = Counter(record.psn for record in net.trace("sent", WRITES))
    assert [tries[psn] for psn in range(ROOM)] == [1] * ROOM
    # At once, 7 times after 5 ms, then after 10, 20, 40 ... ms: 16 in 2 s.
    assert all(10 < tries[psn] <= 20 for psn in range(ROOM, 2 * ROOM))
    net.hold(1, held=False)
    net.run(2 * SECOND)
    received = [event.immediate for event in net.events(ON_RECEIVE)]
    assert received == list(range(2 * ROOM))
    assert connection.stats(0).error == 0


def test_a_peer_that_refuses_for_ever_is_given_up_when_the_budget_is_used_up_and_not_before() -> (
    None
):
    """linear_cnt times the timeout, then doubled exp_cnt times: 10 + 10 + 20 + 40 + 80 ms."""
    net, connection = crowd(ack_timeout=10 * MS, linear_cnt=2, exp_cnt=3)
    net.pass_time(150 * MS)
    assert connection.stats(0).error == 0
    net.pass_time(30 * MS)
    assert [event.status for event in net.events(ON_QP)] == [RETRY_EXCEEDED]


def test_an_application_that_is_slow_for_less_than_the_budget_costs_no_connection() -> None:
    net, connection = crowd(ack_timeout=10 * MS, linear_cnt=2, exp_cnt=3)
    net.pass_time(70 * MS)
    net.hold(1, held=False)
    net.run(SECOND)
    assert [event.status for event in net.events(ON_WRITE)] == [0] * 2 * ROOM
    assert connection.stats(0).error == 0


def test_refusals_do_not_put_off_the_timer_of_what_was_lost() -> None:
    """The first packet and all that could tell of its loss are lost; what follows it is refused."""
    net = Net(1, config={"burst": 1, "max_immediates": ROOM})
    connection = net.connect(psn=0)
    net.settle()
    net.rule("drop", psn=0)
    net.rule("drop", host=1, opcodes=[SACK], count=ROOM)
    for number in range(2 * ROOM):
        connection.write(0, 8, imm=number)
    net.run(100 * MS)
    assert net.sent(1, [NACK]) > 0
    received = [event.immediate for event in net.events(ON_RECEIVE)]
    assert received == list(range(2 * ROOM))
