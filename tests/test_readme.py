# SPDX-License-Identifier: Apache-2.0
"""The README says nothing that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_test_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", README))
    texts = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert {name for name in named if f"def {name}(" not in texts} == set()


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"make (\w+)", README)) <= targets


def test_the_program_of_the_readme_is_twenty_lines_and_compiles() -> None:
    program = re.search(r"```python\n(.*?)```", README, re.S)
    assert program is not None
    ast.parse(program.group(1))
    lines = [line for line in program.group(1).splitlines() if line.strip()]
    assert len(lines) <= 20


def test_the_simulation_of_the_readme_prints_about_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = README.split("## The simulator")[1]
    program = re.search(r"```python\n(.*?)```", section, re.S)
    said = re.search(r"It prints about (\d+) and (\d+) us", section)
    assert program is not None
    assert said is not None
    exec(program.group(1), {})
    printed = re.findall(r"after (\d+) us", capsys.readouterr().out)
    assert [int(each) for each in printed] == pytest.approx(
        [int(s) for s in said.groups()], rel=0.2
    )


def test_every_public_name_that_the_readme_uses_exists() -> None:
    source = (ROOT / "mrc" / "__init__.py").read_text()
    used = set(re.findall(r"\bmrc\.([A-Za-z]\w*)", README)) - {"verbs", "sim"}
    assert {name for name in used if f'"{name}"' not in source} == set()
