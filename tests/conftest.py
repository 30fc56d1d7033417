# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the seed of random ones, the rules for skips, nothing left behind."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

EXPECT_ALL = os.environ.get("MRC_EXPECT_ALL", "") not in {"", "0"}
"""Whether a skipped test is a failure: in CI, where everything a test needs is there."""

NO_FAULT_OF_THE_MACHINE = "this processor"
"""How the reason of a skip begins that stays one: an instruction cannot be installed."""

NAMESPACES = Path("/run/netns")

hypothesis.settings.register_profile("mrc", deadline=None, print_blob=True)
hypothesis.settings.load_profile("mrc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, help="seed of the random tests; new at each run unless given"
    )


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a random test draws from: --seed, else another at each run.

    When the test fails, the command that repeats it is printed.
    """
    given: int | None = request.config.getoption("--seed")
    value = secrets.randbits(32) if given is None else given
    request.node.user_properties.append(("seed", value))
    return value


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip into a failure where everything is expected to run."""
    if not (EXPECT_ALL and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith(NO_FAULT_OF_THE_MACHINE):
        report.outcome = "failed"
        report.longrepr = f"MRC_EXPECT_ALL is set, and this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    value = dict(item.user_properties).get("seed")
    if report.failed and value is not None:
        command = f"python -m pytest '{item.nodeid}' --seed {value}"
        report.sections.append(("Repeat this with", command))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rig") and os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces")


def _children() -> list[str]:
    """The command lines of this process's children, but for a helper of Python's own."""
    tasks = Path("/proc/self/task").glob("*/children")
    lines = []
    for child in " ".join(task.read_text() for task in tasks).split():
        try:
            line = Path("/proc", child, "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except FileNotFoundError:
            continue  # it ended meanwhile
        if "multiprocessing.resource_tracker" not in line:
            lines.append(f"{child} {line}")
    return lines


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails the run when it leaves a network namespace of its own or a process behind.

    The rig puts the process id into its namespaces' names: other runs' do not count.
    """
    yield
    names = [path.name for path in NAMESPACES.glob("*")] if NAMESPACES.exists() else []
    assert [name for name in names if str(os.getpid()) in name] == []
    assert _children() == []
