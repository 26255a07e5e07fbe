"""What `load_defaults` varies is there: a constant that has moved would leave no figure."""

from __future__ import annotations

from unittest import mock

import pytest

from benchmarks import load_defaults
from storage_loader.loader.tuning import TUNING, Tuning

CHOICES = [
    choice
    for choices in (
        load_defaults.FETCHING,
        load_defaults.FETCHING_FAR,
        load_defaults.FETCHING_PART,
        load_defaults.BY_INDEX,
        load_defaults.BY_INDEX_LARGE,
        load_defaults.READ,
        load_defaults.FRESH,
        load_defaults.GATHERING,
    )
    for choice in choices
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice[0])
def test_what_is_varied_is_there(choice: load_defaults.Choice) -> None:
    for constant, value in choice[2].items():
        with mock.patch(constant, value):  # raises where there is none
            pass


def test_every_field_is_varied() -> None:
    tunings = [value for choice in CHOICES for value in choice[2].values()]
    assert TUNING not in tunings, "the default beside itself"
    for field in Tuning.__dataclass_fields__:
        values = {getattr(t, field) for t in tunings if isinstance(t, Tuning)}
        assert len(values) > 1, field
