"""Casts, held against exact arithmetic in Python's integers and fractions."""

from __future__ import annotations

import cmath
import functools
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader.errors import CastError
from storage_loader.saver.cast import cast
from storage_loader.schema import DTYPES, Attribute

INTEGERS = {name: DTYPES[name] for name in DTYPES if "int" in name or name == "bool"}
FLOATS = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}
"""Bits of significance and the greatest exponent, as IEEE 754 and bfloat16 have them."""
PARTS = {"complex64": "float32", "complex128": "float64"}
KINDS = {"complex64": 2, "complex128": 2, **dict.fromkeys(FLOATS, 1), **dict.fromkeys(INTEGERS, 0)}


# The oracle


def integer_fits(value: int, target: str) -> bool:
    """Whether an integer is exactly a value of the dtype `target`."""
    if target == "bool":
        return value in (0, 1)
    if target in INTEGERS:
        bits = DTYPES[target].itemsize * 8
        signed = target.startswith("int")
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        return low <= value < high
    bits, top = FLOATS[PARTS.get(target, target)]
    value = abs(value)
    while value and value % 2 == 0 and value >= 2**bits:
        value, top = value // 2, top - 1
    return value < 2**bits and value.bit_length() <= top + 1


def rounded(value: Fraction, target: str) -> Fraction | None:
    """The nearest value of a float dtype, ties to even; None where that is infinite."""
    bits, top = FLOATS[target]
    if not value:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    exponent = max(exponent, 1 - top)  # below lie the subnormal numbers
    quantum = Fraction(2) ** (exponent - bits + 1)
    result = round(size / quantum) * quantum
    if result >= Fraction(2) ** (top + 1):
        return None
    return result if value > 0 else -result


def float_fits(value: float | np.floating, source: str, target: str) -> bool:
    """Whether a float stays finite, or was not."""
    if not math.isfinite(value):
        return True
    fraction = Fraction(float(value))
    if source == "float64" and target == "bfloat16":  # ml_dtypes takes the way over float32
        through = rounded(fraction, "float32")
        return through is not None and rounded(through, target) is not None
    return rounded(fraction, target) is not None


def fits(value: object, source: str, target: str) -> bool:
    if source == target:
        return True
    if KINDS[source] > KINDS[target]:
        return False
    if source in INTEGERS:
        return integer_fits(int(value), target)  # type: ignore[call-overload]
    aim = PARTS.get(target, target)
    if source in PARTS:
        parts = [value.real, value.imag]  # type: ignore[attr-defined]
        return all(float_fits(part, PARTS[source], aim) for part in parts)
    return float_fits(value, source, aim)  # type: ignore[arg-type]


# The values


@functools.cache
def boundaries(source: str) -> np.ndarray:
    """Values of a dtype at which some cast changes its mind."""
    dtype = DTYPES[source]
    if source in PARTS:
        parts = boundaries(PARTS[source])
        turned = np.roll(parts, len(parts) // 3)
        zero = np.zeros_like(parts)
        pairs = [(parts, zero), (zero, parts), (parts, turned), (turned, parts)]
        values = np.empty((len(pairs), len(parts)), dtype)
        for row, (real, imag) in zip(values, pairs, strict=True):
            row.real, row.imag = real, imag
        return values.reshape(-1)
    near = {s * 2**k + d for k in range(65) for s in (1, -1) for d in (-2, -1, 0, 1, 2)}
    near |= {s * (2**16 - 2**k) for k in range(8) for s in (1, -1)}  # 65504, 65520: float16's end
    near |= {3, 7 * 2**20, 255 * 2**56, 257 * 2**54, -(257 * 2**54)}
    if source in INTEGERS:
        info = (0, 1) if source == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return np.array(sorted(n for n in near if info[0] <= n <= info[1]), dtype)
    limits = [Fraction(2) ** (top + 1) for _, top in FLOATS.values()]
    limits += [Fraction(2) ** (t + 1) - Fraction(2) ** (t - b) for b, t in FLOATS.values()]
    limits += [Fraction(2) ** (t + 1) - Fraction(2) ** (t + 1 - b) for b, t in FLOATS.values()]
    limits += [Fraction(2) ** (2 - t - b) for b, t in FLOATS.values()]  # the least above zero
    finite = [float(f) for f in {*limits, *map(Fraction, near)} if rounded(f, source) is not None]
    with np.errstate(over="ignore"):
        values = np.array(finite, np.float64).astype(dtype)
    values = values[np.isfinite(values)]
    bits = values.view(f"u{dtype.itemsize}")
    neighbours = [values, (bits + 1).view(dtype), (bits - 1).view(dtype)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float64).astype(dtype)
    signalling = np.array([np.inf], np.float64).astype(dtype).view(bits.dtype) + 1
    both = np.concatenate([*neighbours, special, signalling.view(dtype)])
    return np.concatenate([both, -both])


def bits_of(values: np.ndarray) -> bytes:
    """The bytes, with one kind of NaN."""
    if values.dtype.kind == "c":
        return bits_of(values.real.copy()) + bits_of(values.imag.copy())
    if values.dtype.kind in "fV":
        with np.errstate(invalid="ignore"):
            values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return values.tobytes()


def exact(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """The cast values: floats from fractions, the rest as numpy has them."""
    if target in INTEGERS or target in PARTS or not all(map(cmath.isfinite, values)):
        with np.errstate(invalid="ignore"):
            return values.astype(DTYPES[target])
    results = []
    for value in values:
        fraction = Fraction(int(value)) if source in INTEGERS else Fraction(float(value))
        if source == "float64" and target == "bfloat16":
            fraction = rounded(fraction, "float32") or Fraction(0)
        result = rounded(fraction, target)
        assert result is not None
        results.append(float(result) or (-0.0 if np.signbit(float(value)) else 0.0))
    return np.array(results, np.float64).astype(DTYPES[target])  # exact: float64 holds them all


PAIRS = list(itertools.product(DTYPES, DTYPES))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_every_pair_of_dtypes_at_every_boundary(source: str, target: str) -> None:
    attribute = Attribute("x", target)
    values = boundaries(source)
    if KINDS[source] > KINDS[target]:
        values = values[:3]  # refused whatever they are
    expected = np.array([fits(value, source, target) for value in values])
    for value, fine in zip(values.reshape(-1, 1), expected, strict=True):
        if fine:
            assert bits_of(cast(value, attribute)) == bits_of(exact(value, source, target))
        else:
            with pytest.raises(CastError) as error:
                cast(value, attribute)
            assert f"attribute 'x': row 0 holds {value[0]!s} ({source})" in str(error.value)
    # All values in one array: the first wrong one is named, and only it.
    if expected.all():
        assert cast(values, attribute).dtype == DTYPES[target]
    elif KINDS[source] <= KINDS[target]:
        first = int(np.argmin(expected))
        with pytest.raises(CastError) as error:
            cast(values, attribute)
        assert f"row {first} holds {values[first]!s} ({source})" in str(error.value)


@settings(max_examples=400)
@given(st.data(), st.sampled_from(PAIRS), st.integers(1, 6))
def test_random_values(data: st.DataObject, pair: tuple[str, str], size: int) -> None:
    source, target = pair
    dtype = DTYPES[source]
    if source == "bool":
        raw = bytes(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    else:
        nbytes = size * dtype.itemsize
        raw = data.draw(st.binary(min_size=nbytes, max_size=nbytes))
    values = np.frombuffer(raw, dtype)
    if all(fits(value, source, target) for value in values):
        result = cast(values, Attribute("x", target))
        assert result.dtype == DTYPES[target]
        assert result.shape == values.shape
        pieces = [exact(values[i : i + 1], source, target) for i in range(size)]
        assert bits_of(result) == bits_of(np.concatenate(pieces))
    else:
        with pytest.raises(CastError):
            cast(values, Attribute("x", target))


@pytest.mark.parametrize(
    ("values", "target", "reason"),
    [
        (np.array([0, 2**24 + 1]), "float32", "row 1 holds 16777217 (int64), not exact in float32"),
        (np.array([2**53 + 1]), "float64", "row 0 holds 9007199254740993 (int64), not exact in"),
        (np.array([-(2**53) - 1]), "complex128", "row 0 holds -9007199254740993 (int64), not"),
        (np.array([2049]), "float16", "row 0 holds 2049 (int64), not exact in float16"),
        (np.array([257]), "bfloat16", "row 0 holds 257 (int64), not exact in bfloat16"),
        (np.array([2**16]), "float16", "row 0 holds 65536 (int64), not exact in float16"),
        (np.array([2**64 - 1], "u8"), "float64", "row 0 holds 18446744073709551615 (uint64), not"),
        (np.array([2**64 - 1], "u8"), "int64", "row 0 holds 18446744073709551615 (uint64), out of"),
        (np.array([-1]), "uint64", "row 0 holds -1 (int64), out of range in uint64"),
        (np.array([3, 256]), "uint8", "row 1 holds 256 (int64), out of range in uint8"),
        (np.array([1, 2]), "bool", "row 1 holds 2 (int64), out of range in bool"),
        (np.array([65520.0]), "float16", "row 0 holds 65520.0 (float64), would become inf"),
        (np.array([-1e39]), "float32", "row 0 holds -1e+39 (float64), would become inf in float32"),
        (np.array([3.4e38], "f4"), "bfloat16", "row 0 holds 3.4e+38 (float32), would become inf"),
        (np.array([1e300j]), "complex64", "row 0 holds 1e+300j (complex128), would become inf in"),
        (
            np.array([complex(np.nan, 1e300)]),
            "complex64",
            "row 0 holds (nan+1e+300j) (complex128), would become inf in complex64",
        ),
        (
            np.array([1.0]),
            "int64",
            "row 0 holds 1.0 (float64), but the dataset stores int64; convert it yourself if that "
            "is meant",
        ),
        (np.array([0.0]), "bool", "row 0 holds 0.0 (float64), but the dataset stores bool; "),
        (np.array([1j]), "float64", "row 0 holds 1j (complex128), but the dataset stores float64;"),
        (np.array([1], ml_dtypes.bfloat16), "int8", "row 0 holds 1 (bfloat16), but the dataset"),
    ],
)  # fmt: skip
def test_the_error_names_attribute_row_and_value(
    values: np.ndarray, target: str, reason: str
) -> None:
    with pytest.raises(CastError) as error:
        cast(values, Attribute("some name", target))
    assert str(error.value).startswith(f"attribute 'some name': {reason}")
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (np.array([2**24, -(2**24), 2**24 + 2]), "float32"),
        (np.array([2**53, -(2**53)]), "float64"),
        (np.array([2048, 65504, -65504]), "float16"),
        (np.array([256, 255 * 2**50]), "bfloat16"),
        (np.array([-(2**63)]), "float32"),
        (np.array([2**63], "u8"), "complex64"),
        (np.array([True, False]), "bfloat16"),
        (np.array([0, 1]), "bool"),
        (np.array([255]), "uint8"),
        (np.array([np.inf, -np.inf, np.nan]), "float16"),
        (np.array([65519.99]), "float16"),
    ],
)
def test_what_just_fits(values: np.ndarray, target: str) -> None:
    result = cast(values, Attribute("x", target))
    assert result.dtype == DTYPES[target]
    np.testing.assert_allclose(result.astype(complex), values.astype(complex), rtol=1e-3)


@pytest.mark.parametrize("target", ["int64", "uint8", "bool"])
def test_a_missing_value_among_floats_is_what_is_named(target: str) -> None:
    values = np.array([[0.0, 1.0], [2.0, np.nan], [np.nan, 1.5]])
    with pytest.raises(CastError) as caught:
        cast(values, Attribute("x", target, (2,)))
    assert str(caught.value) == (
        f"attribute 'x': row 1 holds nan (float64), which {target} cannot hold; fill or leave out "
        "the rows without a value, then convert the others"
    )


def test_the_row_is_named_in_any_shape() -> None:
    values = np.zeros((5, 2, 3), np.int64)
    values[3, 1, 2] = values[4, 0, 0] = 300
    with pytest.raises(CastError, match=r"attribute 'x': row 3 holds 300 \(int64\), out of range"):
        cast(values, Attribute("x", "uint8", (2, 3)))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_byte_order_and_layout_do_not_matter(dtype: str) -> None:
    values = np.arange(24).reshape(4, 2, 3) % 2
    native = values.astype(dtype)
    for target in [t for t in DTYPES if KINDS[t] >= KINDS[dtype]]:
        expected = cast(native, Attribute("x", target, (2, 3)))
        for form in [
            native.astype(native.dtype.newbyteorder(">")),
            np.asfortranarray(native),
            np.repeat(native, 2, axis=1)[:, ::2],
            native[::-1][::-1],
        ]:
            result = cast(form, Attribute("x", target, (2, 3)))
            np.testing.assert_array_equal(result, expected)
            assert result.dtype.newbyteorder("=") == DTYPES[target]


def test_empty_batches_fit_everything() -> None:
    for source, target in PAIRS:
        result = cast(np.zeros((0, 3), DTYPES[source]), Attribute("x", target, (3,)))
        assert (result.shape, result.dtype) == ((0, 3), DTYPES[target])


def test_an_equal_dtype_is_not_copied() -> None:
    values = np.arange(4)
    assert cast(values, Attribute("x", "int64")) is values


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int4"])
def test_other_dtypes_are_refused(name: str) -> None:
    values = np.zeros(2, getattr(ml_dtypes, name))
    with pytest.raises(CastError) as error:
        cast(values, Attribute("x", "float32"))
    assert str(error.value) == f"values of dtype {name!r} cannot be stored; give numbers"
