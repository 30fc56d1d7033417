# SPDX-License-Identifier: Apache-2.0
"""Settings are checked when made, and each says what it is."""

from __future__ import annotations

import inspect
import re
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


ENTRY = re.compile(r"^ {8}(\w+): ([^\[]+)\[([^\]]+)\]$", re.M)
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20}


def test_every_setting_is_documented_with_unit_default_and_source_in_its_order() -> None:
    entries = {name: told.split("; ") for name, _, told in ENTRY.findall(Config.__doc__ or "")}
    assert list(entries) == [f.name for f in fields(Config)]
    for setting in fields(Config):
        *unit, default, source = entries[setting.name]
        value, _, size = default.partition(" ")
        if isinstance(setting.default, int | float) and not isinstance(setting.default, bool):
            assert float(value) * SIZES.get(size, 1) == setting.default, setting.name
        else:
            assert default == str(setting.default), setting.name
        assert ("s" in unit) == isinstance(setting.default, float), setting.name
        assert source.partition(",")[0] in {"MRC", "RoCEv2", "choice"}, setting.name


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"dead_aftr": 1}, "did you mean dead_after"),
        ({"nonsense": 1}, "help"),
        ({"mtu": 1500}, "4096"),
        ({"ring": 1000}, "512 or 1024"),
        ({"burst": 16}, "1..15"),
        ({"linger": "2"}, "seconds"),
    ],
)
def test_a_refusal_says_what_would_do(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        Config(**settings)


def test_the_signature_shows_every_setting() -> None:
    assert list(inspect.signature(Config).parameters) == [f.name for f in fields(Config)]
