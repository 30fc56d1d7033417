# SPDX-License-Identifier: Apache-2.0
"""The exceptions are the tree that their module draws."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

from mrc import errors


def test_the_docstring_is_the_tree() -> None:
    drawn = re.findall(
        r"(?:─ |    )([A-Z]\w+)(?: \((\w+)\))?(?: {2,}|\n *[│├└])", errors.__doc__ or "", re.M
    )
    builtins = dict(drawn)
    classes = {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.MRCError)
    }
    assert set(builtins) == set(classes) == set(errors.__all__)
    for name, builtin in builtins.items():
        assert not builtin or builtin in {cls.__name__ for cls in classes[name].__mro__}


def test_what_the_library_raises_is_documented() -> None:
    """Case D77: of the tree, or one of the builtins that the docstring names."""
    documented = {*errors.__all__, "TypeError", "ValueError", "BufferError", "OSError"}
    # Of `recv`, and of mrc.dissect without scapy; the others end inside the set-up.
    documented |= {"MemoryError", "ImportError"}
    documented |= {"EOFError", "_Refused", "TableFull", "VersionMismatch"}
    documented |= {"self.end_told", "link.end_told"}  # copies of a ConnectionClosed
    documented |= {"self.error", "reader.error"}  # a ConfigError with file and line
    raised = set()
    for path in Path(errors.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = node.exc.func
                raised.add(name.id if isinstance(name, ast.Name) else ast.unparse(name))
    assert raised
    assert raised <= documented


def test_lost_connections_say_why() -> None:
    error = errors.ConnectionLost("peer crashed", "on all planes")
    assert error.reason in errors.ConnectionLost.REASONS
    assert str(error) == "peer crashed (on all planes)"
    assert isinstance(error, ConnectionError)


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_every_exception_is_caught_by_the_base(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.MRCError)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConnectionLost("aborted", "by this side"),
        errors.MessageTooLarge(3, 2),
        errors.CapabilityError("what to do"),
        errors.ConnectRefused("nobody listens"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_survives_pickling(error: errors.MRCError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
