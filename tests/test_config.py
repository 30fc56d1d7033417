# SPDX-License-Identifier: Apache-2.0
"""Settings are checked when made, and each says what it is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from mrc import _native
from mrc.config import Config, is_engine_setting
from mrc.errors import ConfigError


def test_the_defaults_are_valid() -> None:
    assert Config() == Config()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("udp_port", 0),
        ("udp_port", 65536),
        ("udp_port", "4791"),
        ("udp_port", True),
        ("policy", "best"),
        ("mtu", 1500),
        ("burst", 16),
        ("trimming", 1),
        ("ring", 1000),
        ("dead_after", float("nan")),
        ("dead_after", -1.0),
        ("ev_min_active", 200),
        ("plane_probe", 10.0),
        ("dscp_trimmable", 12),
    ],
)
def test_a_wrong_value_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Config(**{name: value})


def test_an_integer_serves_as_a_time() -> None:
    assert Config(dead_after=3).dead_after == 3


def test_a_config_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().mtu = 1024  # type: ignore[misc]


def test_the_defaults_are_the_engines_own() -> None:
    settings = _native.ffi.new("mrc_engine_config *")
    _native.lib.mrc_engine_config_default(settings)
    theirs = {**_native._as_dict(settings.core), **_native._as_dict(settings[0])}
    ours = {
        f.name: round(getattr(Config(), f.name) * scale)
        for f in fields(Config)
        if (scale := is_engine_setting(f.name)) and f.name != "policy"
    }
    for name in ("max_qps", "max_peers"):  # a listener has many that linger
        assert ours.pop(name) > theirs[name]
    assert ours == {name: theirs[name] for name in ours}


def test_every_setting_is_documented() -> None:
    text = Config.__doc__ or ""
    assert [f.name for f in fields(Config) if f"        {f.name}: " not in text] == []
