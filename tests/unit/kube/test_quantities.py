import math
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.quantities import LARGEST, QuantityError, format_bytes, parse_quantity, parse_whole

GI = 1024**3


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("16Gi", 16 * GI, id="binary suffix"),
        pytest.param("15472384Ki", 15472384 * 1024, id="the source's device memory"),
        pytest.param("16G", 16 * 10**9, id="decimal suffix"),
        pytest.param("1.5Gi", 3 * GI // 2, id="fraction of a binary unit"),
        pytest.param(".5k", 500, id="no digit before the point"),
        pytest.param("5.", 5, id="no digit behind the point"),
        pytest.param("+7", 7, id="plus sign"),
        pytest.param("2e3", 2000, id="exponent"),
        pytest.param("2E3", 2000, id="capital exponent"),
        pytest.param("2E", 2 * 10**18, id="capital E alone is exa"),
        pytest.param("25e-1", 2, id="negative exponent rounds down"),
        pytest.param("1500m", 1, id="milli rounds down"),
        pytest.param("0", 0, id="zero"),
        pytest.param("-0", 0, id="minus zero"),
        pytest.param("000008", 8, id="leading zeros"),
        pytest.param(8, 8, id="int"),
        pytest.param(8.0, 8, id="whole float"),
        pytest.param(1e18, 10**18, id="float with an exponent in its text"),
        pytest.param(str(LARGEST), LARGEST, id="the largest"),
        pytest.param("8388607Ti", 8388607 * 1024**4, id="large binary"),
    ],
)
def test_quantities_are_read_exactly(value, want):
    """DEV-1 a quantity is read exactly, in whole units."""
    assert parse_quantity(value) == want


@pytest.mark.parametrize(
    ("value", "want_text"),
    [
        pytest.param("16GB", "did you mean 16G or 16Gi?", id="GB"),
        pytest.param("16GiB", "did you mean 16Gi?", id="GiB"),
        pytest.param("16gb", "did you mean 16G or 16Gi?", id="gb"),
        pytest.param("16KB", "did you mean 16k or 16Ki?", id="KB"),
        pytest.param("16gi", "did you mean 16Gi?", id="wrong case"),
        pytest.param("16K", "did you mean 16k?", id="capital kilo"),
        pytest.param("NaN", "is not a quantity", id="NaN text"),
        pytest.param("inf", "is not a quantity", id="inf text"),
        pytest.param(math.nan, "is not a finite number", id="nan"),
        pytest.param(math.inf, "is not a finite number", id="inf"),
        pytest.param(-math.inf, "is not a finite number", id="minus inf"),
        pytest.param("-1", "negative", id="negative text"),
        pytest.param("-1Gi", "negative", id="negative memory"),
        pytest.param(-1, "negative", id="negative int"),
        pytest.param(-0.5, "negative", id="negative float"),
        pytest.param("1e400", "out of range", id="huge exponent"),
        pytest.param("1e-400", "out of range", id="tiny exponent"),
        pytest.param("1e99999999999999999999", "out of range", id="absurd exponent"),
        pytest.param("8Ei", "out of range", id="2^63"),
        pytest.param("9223372036854775807500m", "out of range", id="a fraction above the largest"),
        pytest.param(1e300, "out of range", id="huge float"),
        pytest.param(10**5000, "out of range", id="an int too long to print"),
        pytest.param("9" * 65, "at most 64 characters", id="too long"),
        pytest.param("", "is not a quantity", id="empty"),
        pytest.param(".", "is not a quantity", id="point alone"),
        pytest.param("Gi", "is not a quantity", id="suffix alone"),
        pytest.param(" 16Gi", "is not a quantity", id="leading space"),
        pytest.param("16Gi\n", "is not a quantity", id="trailing newline"),
        pytest.param("1_000", "is not a quantity", id="underscore"),
        pytest.param("0x10", "is not a quantity", id="hexadecimal"),
        pytest.param("١٦", "is not a quantity", id="digits of another script"),
        pytest.param("1e1.5", "is not a quantity", id="fractional exponent"),
        pytest.param("500m", "less than one whole unit", id="less than a byte"),
        pytest.param(True, "not bool", id="bool"),
        pytest.param(None, "not NoneType", id="none"),
        pytest.param([1], "not list", id="list"),
    ],
)
def test_bad_quantities_are_refused_with_a_reason(value, want_text):
    """DEV-1 what is no quantity is refused, and the text says why."""
    with pytest.raises(QuantityError) as caught:
        parse_quantity(value)
    assert want_text in str(caught.value)
    with pytest.raises(QuantityError):
        parse_whole(value)


@pytest.mark.parametrize(
    ("value", "want"),
    [(2, 2), ("2", 2), ("1k", 1000), ("1000m", 1), ("2.0", 2), (2.0, 2), ("2e2", 200), ("0", 0)],
)
def test_whole_counts(value, want):
    assert parse_whole(value) == want


@pytest.mark.parametrize("value", ["0.5", "500m", "1500m", 0.5, "1.0001k", "25e-1"])
def test_fractions_are_no_counts(value):
    with pytest.raises(QuantityError, match="is not a whole number"):
        parse_whole(value)


@pytest.mark.parametrize(
    ("units", "want"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1000"),
        (1024, "1Ki"),
        (16 * GI, "16Gi"),
        (1536 * 1024**2, "1536Mi"),
        (GI + 1, str(GI + 1)),
    ],
    ids=["zero", "one", "a thousand", "1 Ki", "16 Gi", "Mi where Gi is not whole", "no unit fits"],
)
def test_bytes_are_written_in_canonical_form(units, want):
    assert format_bytes(units) == want


def test_negative_bytes_are_never_written():
    with pytest.raises(QuantityError):
        format_bytes(-1)


@given(st.integers(0, LARGEST))
def test_what_is_written_reads_back(units):
    assert parse_whole(format_bytes(units)) == units


@given(
    st.integers(0, 10**15),
    st.integers(0, 6),
    st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi"]),
)
def test_agrees_with_exact_fractions(digits, places, suffix):
    text = f"{digits:0{places + 1}d}"
    text = f"{text[: len(text) - places]}.{text[len(text) - places :]}{suffix}"
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}[suffix]
    exact = Fraction(digits, 10**places) * factor
    if exact > LARGEST or 0 < exact < 1:
        with pytest.raises(QuantityError):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == math.floor(exact)


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans(), st.lists(st.integers())))
def test_nothing_raises_anything_else(value):
    for parse in (parse_quantity, parse_whole):
        with suppress(QuantityError):
            assert 0 <= parse(value) <= LARGEST
