# SPDX-License-Identifier: Apache-2.0
"""The exceptions are the tree that their module draws."""

from __future__ import annotations

import inspect
import pickle
import re

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


def test_lost_connections_say_why() -> None:
    error = errors.ConnectionLost("peer crashed", "on all planes")
    assert error.reason in errors.ConnectionLost.REASONS
    assert str(error) == "peer crashed: on all planes"
    assert isinstance(error, ConnectionError)


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_every_exception_is_caught_by_the_base(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.MRCError)


def test_a_lost_connection_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(errors.ConnectionLost("aborted")))
    assert error.reason == "aborted"
