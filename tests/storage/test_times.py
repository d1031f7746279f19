"""Instants as legacy tables hold them and as callers give them."""

import pytest

from storage.times import TimeForm, form_of, instant, iso_or_none, parse_bound

NOW_S = 1_790_000_000.0


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (1_767_225_600, "2026-01-01T00:00:00.000Z"),
        (1_767_225_600.25, "2026-01-01T00:00:00.250Z"),
        (1_767_225_600_250, "2026-01-01T00:00:00.250Z"),
        (1_767_225_600_250_000, "2026-01-01T00:00:00.250Z"),
        ("2026-01-01 00:00:00", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z"),
        ("1767225600", "2026-01-01T00:00:00.000Z"),
        (None, None),
        ("soon", None),
        ("", None),
        (b"\x00", None),
        (float("inf"), None),
        (1e300, None),
        (-1e10, "1653-02-10T06:13:20.000Z"),
    ],
)
def test_every_stored_form_is_shown_as_one(stored: object, shown: str | None) -> None:
    assert iso_or_none(stored) == shown


@pytest.mark.parametrize("form", TimeForm)
def test_a_written_instant_is_read_back(form: TimeForm) -> None:
    kept_to_s = 1 if form is TimeForm.WHOLE_SECONDS else 0.001
    assert instant(form.stored(NOW_S + 0.125)) == pytest.approx(NOW_S + 0.125, abs=kept_to_s)


@pytest.mark.parametrize(
    ("value", "declared", "form"),
    [
        (1_767_225_600.5, "TEXT", TimeForm.SECONDS),
        (1_767_225_600, "INTEGER", TimeForm.WHOLE_SECONDS),
        (1_767_225_600_000, "REAL", TimeForm.MILLIS),
        ("2026-01-01", "REAL", TimeForm.ISO),
        (None, "REAL", TimeForm.SECONDS),
        (None, "INTEGER", TimeForm.MILLIS),
        (None, "DATETIME", TimeForm.ISO),
        (None, "", TimeForm.SECONDS),
    ],
)
def test_the_newest_value_decides_the_form_else_the_declared_type(value: object, declared: str, form: TimeForm) -> None:
    assert form_of(value, declared) is form


@pytest.mark.parametrize(
    ("text", "end_of_day", "seconds"),
    [
        ("2026-01-01", False, 1_767_225_600.0),
        ("2026-01-01", True, 1_767_225_600.0 + 86_400 - 1e-6),
        ("2026-01-01T00:00:00", True, 1_767_225_600.0),
        ("2026-01-01T02:00+02:00", False, 1_767_225_600.0),
        ("-3d", False, NOW_S - 3 * 86_400),
        ("-12h", False, NOW_S - 12 * 3_600),
        ("-30m", False, NOW_S - 1_800),
    ],
)
def test_bounds_are_dates_instants_or_relative(text: str, end_of_day: bool, seconds: float) -> None:
    assert parse_bound(text, NOW_S, end_of_day=end_of_day) == pytest.approx(seconds, abs=1e-5)


@pytest.mark.parametrize("text", ["last week", "yesterday", "March 2026", "2026-13-45", "tomorrow", "-3x", "3d", ""])
def test_anything_else_is_no_bound(text: str) -> None:
    assert parse_bound(text, NOW_S, end_of_day=False) is None
