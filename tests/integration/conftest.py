"""Fixtures: those of the unit tests."""

from tests.unit.conftest import _nothing_said, clock, make_runtime

__all__ = ["_nothing_said", "clock", "make_runtime"]
