# SPDX-License-Identifier: Apache-2.0
"""The rules of conftest.py, each seen at work on a small test file in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow  # each is a run of pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text()


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder of tests with our conftest.py; MRC_EXPECT_ALL is not set."""
    monkeypatch.delenv("MRC_EXPECT_ALL", raising=False)
    pytester.makeconftest(CONFTEST)
    return pytester


SKIPPED = "import pytest\ndef test_it() -> None:\n    pytest.skip('{}')\n"


def test_a_skip_stays_one_where_not_everything_is_expected(tests: pytest.Pytester) -> None:
    tests.makepyfile(SKIPPED.format("no nft"))
    tests.runpytest_subprocess().assert_outcomes(skipped=1)


def test_a_skip_is_a_failure_where_everything_is_expected(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRC_EXPECT_ALL", "1")
    tests.makepyfile(SKIPPED.format("no nft"))
    result = tests.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["MRC_EXPECT_ALL is set, and this was skipped: *no nft"])


def test_a_module_that_skips_itself_is_a_failure_too(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRC_EXPECT_ALL", "1")
    tests.makepyfile("import pytest\npytest.importorskip('no_such_module')\n")
    tests.runpytest_subprocess().assert_outcomes(errors=1)


def test_what_the_processor_lacks_may_always_be_skipped(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRC_EXPECT_ALL", "1")
    tests.makepyfile(SKIPPED.format("this processor has no vpclmul"))
    tests.runpytest_subprocess().assert_outcomes(skipped=1)


def test_a_failing_random_test_prints_the_command_that_repeats_it(tests: pytest.Pytester) -> None:
    path = tests.makepyfile("def test_it(seed: int) -> None:\n    assert seed == -1\n")
    failed = tests.runpytest_subprocess("--seed", "42")
    failed.stdout.fnmatch_lines([f"python -m pytest '{path.name}::test_it' --seed 42"])


def test_a_seed_that_is_given_is_the_one_that_is_used(tests: pytest.Pytester) -> None:
    tests.makepyfile("def test_it(seed: int) -> None:\n    assert seed == 42\n")
    tests.runpytest_subprocess("--seed", "42").assert_outcomes(passed=1)


def test_a_process_that_is_left_behind_fails_the_run(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        "import subprocess\n"
        "left = []\n"
        "def test_it() -> None:\n"
        "    command = ['sh', '-c', 'echo; sleep 5; exit']\n"
        "    left.append(subprocess.Popen(command, stdout=subprocess.PIPE))\n"
        "    left[0].stdout.readline()  # before its exec a child has no command line\n"
    )
    result = tests.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*sleep 5*"])
