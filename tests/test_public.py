"""The public names, and that they work."""

from __future__ import annotations

import pytest

import ortune


def test_public_names_are_frozen() -> None:
    assert sorted(ortune.__all__) == [
        "HostError",
        "InputsError",
        "MeasureError",
        "ModelError",
        "OrtuneError",
        "Record",
        "RecordError",
        "UsageError",
        "__version__",
        "create_session",
        "install",
        "read_record",
        "run_options",
        "search",
        "session_options",
    ]


@pytest.mark.parametrize("name", ortune.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(ortune, name) is not None


def test_other_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        ortune.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_errors_say_what_failed_and_what_to_do() -> None:
    error = ortune.UsageError("It is wrong.", "Do it right.")
    assert isinstance(error, ortune.OrtuneError)
    assert str(error) == "It is wrong.\nDo it right."
