"""Tests of `jitney.config.definitions`: every setting has all that its users need of it."""

from typing import get_args

import pytest

from jitney.backends.kinds import NAMES
from jitney.config import Setting, Settings, known_settings
from jitney.config.definitions import flag_name, variable_name
from jitney.config.settings import BackendName


@pytest.mark.parametrize("known", known_settings(), ids=lambda known: known.name)
def test_every_setting_is_described_and_its_default_is_valid(known: Setting) -> None:
    """Guards a new field: a line of help, a default of its own form, flag and variable."""
    assert known.help.endswith(".")
    assert "\n" not in known.help
    assert known.form.expected
    assert flag_name(known.name) == "--" + known.name.replace("_", "-")
    assert variable_name(known.name) == "JITNEY_" + known.name.upper()
    value = getattr(Settings(), known.name)
    if value is not None:
        assert known.form.read(value) == value


def test_the_backends_that_can_be_set_are_those_that_can_be_loaded() -> None:
    """Guards `backend`: a name that is offered must exist, and one that exists be offered."""
    assert sorted(get_args(BackendName)) == sorted(["auto", *NAMES])
