"""Arguments of mechanisms (options, answers, noise, runs, random words) are accepted or refused as specified."""

from __future__ import annotations

from dataclasses import fields, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms import (
    Adjacency,
    ClippedSum,
    Composition,
    ExponentialMechanism,
    GaussianSparseVector,
    HybridEstimates,
    HybridIdentity,
    Identity,
    KeyedSampler,
    Law,
    Neighbours,
    Noise,
    NoisyMaxGumbel,
    Outcomes,
    Run,
    TopK,
    UnboundedQuantile,
    Uncorrected,
    above_threshold,
    adaptive,
    draw_threshold,
    exact_draw,
    gaussian,
    ladder,
    multiple_quantiles,
    numeric_sparse,
    sparse,
    sparse_vector,
)
from stream_svt.mechanisms.contract import mechanism_id
from stream_svt.mechanisms.correction import least_variance_split
from stream_svt.mechanisms.noise import head, mean, tail, variance
from stream_svt.mechanisms.selection.exponential_mechanism import draw_gap, draw_index

ONE = Fraction(1)
SALT = (1, 2)
HALF = Fraction(1, 2)

SEVERAL = {"epsilon": ONE, "cutoff": 2, "monotonic": True}
STREAMS = {
    build.__name__: partial(build, **SEVERAL, correction=Uncorrected())
    for build in (sparse_vector, adaptive, ladder)
} | {
    "above_threshold": partial(above_threshold, epsilon=ONE, monotonic=True),
    "sparse": partial(sparse, **SEVERAL),
    "numeric_sparse": partial(numeric_sparse, **SEVERAL),
}
SELECTIONS = {
    "top_k": partial(TopK, epsilon=ONE, k=1, monotonic=True),
    "hybrid_identity": partial(HybridIdentity, epsilon=ONE, k=1, threshold=0, monotonic=True),
    "hybrid_estimates": partial(HybridEstimates, epsilon=ONE, k=1, threshold=0, monotonic=True),
    "noisy_max": partial(NoisyMaxGumbel, epsilon=ONE, monotonic=True),
}
QUANTILE = partial(
    UnboundedQuantile, epsilon=ONE, level=HALF, adjacency=Adjacency.ADD_REMOVE, base=Fraction(2)
)
NOISY = STREAMS | SELECTIONS | {"quantile": QUANTILE}
"""All mechanisms that add noise to answers."""

ALL = NOISY | {"exponential": partial(ExponentialMechanism, epsilon=ONE, monotonic=True)}
GAUSSIAN = partial(gaussian, epsilon=1.0, delta=1e-6, cutoff=2, monotonic=True, tests=10)


def stepped(mechanism, values, noise=None, *, run=None, **options):
    """Make one step on values, with noise 0 or the given noise by branch."""
    noise = noise or (lambda _: np.zeros(len(values), dtype=np.int64))
    run = run or mechanism.open(0, SALT)
    if isinstance(mechanism, GaussianSparseVector):
        return mechanism.step(run, values, 0, noise(0))
    if isinstance(mechanism, ExponentialMechanism):
        return mechanism.step(run, values, options.get("word", lambda: 2**63))
    if hasattr(mechanism, "per_top") or hasattr(mechanism, "branches"):
        return mechanism.step(run, values, options.get("thresholds", 0), options.get("attempts", 0), noise)
    return mechanism.step(run, values, noise)


def refused(reason, call):
    """Return the message of the error."""
    with pytest.raises(MisuseError, match=reason) as refusal:
        call()
    return str(refusal.value)


@pytest.mark.parametrize("make", [*ALL.values(), GAUSSIAN], ids=[*ALL, "gaussian"])
def test_a_run_that_could_not_be_stored_is_not_opened(make):
    """The message does not contain the numbers, which are secret."""
    mechanism = make()
    for salt in ((2**64, 0), (0, -1)):
        refused(r"a salt must be two integers of 64 bits$", partial(mechanism.open, 0, salt))
    if getattr(mechanism, "threshold_law", True):
        refused(r"threshold noise lies beyond 2\^60 grid steps", partial(mechanism.open, 2**60 + 1, SALT))
    assert Run.from_bytes(mechanism.open(0, SALT).to_bytes()) == mechanism.open(0, SALT)


def options(kind):
    """Mechanisms with each of their options of a kind, and its choices."""
    return [
        (make, field.name, type(getattr(make(), field.name)))
        for make in ALL.values()
        for field in fields(make())
        if isinstance(getattr(make(), field.name), kind) and field.name != "answer_noise"
    ]


@pytest.mark.parametrize(
    ("make", "field", "choices"),
    [
        *options(StrEnum),
        (STREAMS["sparse"], "query_noise", Noise),
        (partial(numeric_sparse, **SEVERAL), "answer_noise", (Noise.LAPLACE,)),
        (partial(Law, rate=HALF), "noise", Noise),
        (partial(least_variance_split, 3, monotonic=True), "query_noise", Noise),
        (partial(STREAMS["sparse"]().loss, delta=1e-6), "composition", Composition),
        (
            partial(sparse, **SEVERAL | {"epsilon": 50 * ONE}, delta=1e-6),
            "composition",
            (Composition.ZCDP, Composition.ADVANCED),
        ),
    ],
)
def test_the_name_of_an_option_means_the_option_and_other_words_are_refused(make, field, choices):
    built = {choice: make(**{field: choice}) for choice in choices}
    for choice, expected in built.items():
        assert make(**{field: choice.value}) == make(**{field: choice.value.upper()}) == expected
    for wrong in ("cauchy", "", None, 1, ["laplace"]):
        refused(f"Use .*'{next(iter(choices)).value}'", partial(make, **{field: wrong}))


def test_gaussian_noise_is_refused_with_the_reason_wherever_a_family_is_named():
    for call in (
        partial(STREAMS["sparse_vector"], query_noise="gaussian"),
        partial(SELECTIONS["top_k"], noise="Gaussian"),
        partial(QUANTILE, threshold_noise="gaussian"),
        partial(Law, "gaussian", HALF),
        partial(drawn, "gaussian"),
    ):
        refused(r"2\.3 times the charge", call)


@pytest.mark.parametrize("law", [tail, head, lambda noise, rate, _: mean(noise, rate)])
def test_laws_and_moments_know_families_by_name(law):
    assert law("laplace", HALF, 3) == law(Noise.LAPLACE, HALF, 3) != law(Noise.EXPONENTIAL, HALF, 3)
    assert variance("laplace", HALF) == variance(Noise.LAPLACE, HALF)
    refused("no such option", partial(law, "cauchy", HALF, 3))


def test_a_replaced_option_is_checked_like_a_first_one():
    mechanism = STREAMS["sparse_vector"]()
    assert replace(mechanism, query_noise="laplace").branch_laws[0].noise is Noise.LAPLACE
    refused("True or False", partial(replace, mechanism, monotonic=1))


def test_neighbours_are_known_by_name():
    mechanism = STREAMS["sparse_vector"]()
    moved = partial(mechanism.shifts, Outcomes(consumed=2, tops=()), np.array([1, 2]), np.array([1, 2]))
    assert moved("down").threshold == moved(Neighbours.DOWN).threshold == 0
    refused("'up', 'down' or 'mixed'", partial(moved, "side"))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2, np.nan]),
        np.array([True, False, True]),
        np.array([1, 2, 3], dtype=object),
        np.array([[1, 2, 3]]),
        np.array(3),
        [1, 2, 3],
        np.array([1, 2, 2**63], dtype=np.uint64),
        np.array([0, 1, -(2**63)]),
        np.array([0, 1, 2**47]),
        np.array([0, 1, -(2**47)]),
    ],
    ids=lambda values: (
        f"{getattr(values, 'dtype', 'list')}-{getattr(values, 'shape', '')}-{np.ravel(values)[-1]}"
    ),
)
def test_answers_that_are_no_whole_numbers_of_the_grid_are_refused_and_never_shown(make, values):
    def noise(*_):
        pytest.fail("noise was drawn")

    shown = refused("answers", partial(stepped, make(), values, noise, word=noise))
    assert str(np.ravel(values)[-1]) not in shown.replace("2^47", "").replace("int64", "")


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, ">i8"])
def test_answers_of_any_integer_dtype_are_those_of_int64(make, dtype):
    mechanism, values = make(), np.array([3, 120, 7, 119])
    assert stepped(mechanism, values.astype(dtype)) == stepped(mechanism, values)


def test_narrow_answers_do_not_wrap_around():
    mechanism = STREAMS["sparse_vector"]()
    low = np.array([0, 1], dtype=np.uint64)
    assert stepped(mechanism, low, thresholds=10)[1].tops == ()
    narrow = {"values": np.array([127], dtype=np.int8), "thresholds": np.array([-128], dtype=np.int8)}
    assert stepped(mechanism, **narrow)[1].tops[0].gap == 255
    assert stepped(SELECTIONS["noisy_max"](), np.array([1, 127], dtype=np.int8))[1].tops[0].gap == 125


@pytest.mark.parametrize("make", NOISY.values(), ids=NOISY)
@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (np.array([4]), "never share a draw"),
        (np.array(4), "never share a draw"),
        (np.zeros(4, dtype=np.int64), "never share a draw"),
        (np.zeros((3, 1), dtype=np.int64), "never share a draw"),
        (np.zeros(3), "int64"),
        (np.zeros(3, dtype=np.int32), "int64"),
        (np.zeros(3, dtype=np.uint64), "int64"),
        ([0, 0, 0], "int64"),
        (4, "int64"),
        (None, "int64"),
        (np.array([0, 0, 2**63 - 1]), "saturates"),
        (np.array([0, 0, -(2**63)]), "saturates"),
    ],
    ids=str,
)
def test_noise_that_is_not_one_draw_for_each_answer_is_refused_and_never_shown(make, noise, message):
    assert "922337" not in refused(message, partial(stepped, make(), np.array([11, 22, 33]), lambda _: noise))


def test_the_numbers_of_tops_have_noise_of_their_own_too():
    def noise(branch):
        return np.zeros(3, dtype=np.int64) if branch == 0 else np.array([4])

    refused("never share a draw", partial(stepped, STREAMS["numeric_sparse"](), np.array([1, 2, 3]), noise))


@pytest.mark.parametrize("name", ["sparse_vector", "ladder", "sparse"])
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("thresholds", 1.5),
        ("thresholds", np.array([1.0, 2.0, 3.0])),
        ("thresholds", np.array([1])),
        ("thresholds", np.array([[1], [2], [3]])),
        ("thresholds", [1, 2, 3]),
        ("thresholds", 2**47),
        ("thresholds", np.array([0, 0, -(2**63)])),
        ("attempts", -1),
        ("attempts", np.array([0, 0, -1])),
        ("attempts", np.array([0])),
        ("attempts", 0.0),
    ],
    ids=str,
)
def test_thresholds_and_attempts_are_one_for_all_tests_or_one_for_each(name, field, given):
    refused(field[:-1], partial(stepped, STREAMS[name](), np.array([1, 2, 3]), **{field: given}))


OTHERS = (
    ALL
    | {"poorer_" + name: partial(make, epsilon=ONE / 2) for name, make in ALL.items()}
    | {"sensitive_" + name: partial(make, sensitivity=2) for name, make in (STREAMS | SELECTIONS).items()}
    | {"general_" + name: partial(make, monotonic=False) for name, make in (STREAMS | SELECTIONS).items()}
    | {"gaussian": partial(GAUSSIAN, tests=9)}
)


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_is_stepped_by_the_mechanism_that_opened_it_and_by_no_other(name):
    """Another mechanism could charge too little for the noise: at half of the sensitivity the loss is double."""
    mechanism, values = OTHERS[name](), np.array([1, 2, 3])
    for make in OTHERS.values():
        run = Run.from_bytes(make().open(0, SALT).to_bytes())
        if make() == mechanism:
            stepped(mechanism, values, run=run)
            richer = replace(run, left_units=run.left_units + 1)
            refused("more units left than any run", partial(stepped, mechanism, values, run=richer))
        else:
            refused("opened by another mechanism", partial(stepped, mechanism, values, run=run))


def test_a_mechanism_has_one_name_however_its_parameters_are_given():
    first = STREAMS["sparse_vector"]()
    second = replace(first, epsilon_units=np.int64(10**9), query_noise="exponential")
    mechanism_id.cache_clear()
    name = mechanism_id(first)
    mechanism_id.cache_clear()
    assert mechanism_id(second) == name
    assert name.hex() == "756eefa425d8309fb685cdd31f1b9994"
    with pytest.raises(TypeError, match="has no name"):
        mechanism_id(frozenset())


def test_a_run_of_a_richer_mechanism_is_refused_before_its_threshold_is_renewed():
    rich = STREAMS["sparse"](epsilon=3 * ONE)
    refused("another mechanism", partial(STREAMS["sparse"]().resample, rich.open(0, SALT), 0, SALT))


@pytest.mark.parametrize("rho", [2**60 + 1, -(2**63), 0.5])
@pytest.mark.parametrize("make", [STREAMS["sparse_vector"], SELECTIONS["hybrid_identity"]])
def test_a_threshold_noise_of_no_sampler_is_refused_and_never_shown(make, rho):
    run = replace(make().open(0, SALT), threshold_noise=rho)
    assert str(rho) not in refused("threshold noise", partial(stepped, make(), np.array([1, 2]), run=run))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_records_that_are_not_sorted_are_refused_with_the_reason(adjacency):
    """In unsorted data one record of 9 changes the bisected count below 4 from 6 to 0."""
    mechanism = QUANTILE(adjacency=adjacency)
    unsorted = np.array([1, 2, 3, 4, 98765, 0, 1, 2, 3])
    assert "98765" not in refused("not sorted", partial(mechanism.answers, unsorted, 0, 5))
    for data in (np.array([2, 2, 3], dtype=np.uint8), np.array([], dtype=np.int64), np.array([7])):
        assert len(mechanism.answers(data, 0, 5)) == 5


SUMS = ClippedSum(quantile=QUANTILE(), charge=ONE)


@pytest.mark.parametrize(
    "data", [[1, 2], np.array([0.5, 1.5]), np.array([[1, 2]]), np.array([1, 2**63], dtype=np.uint64)]
)
def test_records_are_whole_numbers(data):
    refused("records", partial(QUANTILE().answers, data, 0, 3))
    refused("records", partial(SUMS.release, data, 9, 0))


def test_clipped_sums_are_exact_for_narrow_records_and_refuse_bounds_and_noise_without_a_meaning():
    assert SUMS.release(np.array([127, 127, -128], dtype=np.int8), 200, 1) == 255
    assert SUMS.release(np.array([255], dtype=np.uint8), 1000, np.int64(-5)) == 250
    for bound in (0, -3, 2.5, 2**63):
        refused("bound must be an integer", partial(SUMS.clipped, np.array([1, 2]), bound))
    refused("noise of a sum", partial(SUMS.release, np.array([1, 2]), 5, 0.25))


@pytest.mark.parametrize("level", [0.1, "1/10", Decimal("0.1")])
def test_a_level_is_the_decimal_that_its_author_wrote(level):
    """The denominator of a binary float would scale the noise by 2^55."""
    assert QUANTILE(level=level) == QUANTILE(level=Fraction(1, 10))
    assert multiple_quantiles(QUANTILE(), [level, 0.5])[0].level == Fraction(1, 10)


@pytest.mark.parametrize("bits", [-1, 2**64, 0.5, None, "1"])
def test_a_word_that_has_not_64_bits_is_refused(bits):
    values = np.array([1, 5])
    for call in (
        partial(stepped, ALL["exponential"](), values, word=lambda: bits),
        partial(draw_index, values, HALF, lambda: bits),
        partial(draw_gap, values, 1, HALF, lambda: bits),
        partial(exact_draw, Noise.EXPONENTIAL, lambda: bits, HALF),
        partial(exact_draw, Noise.GUMBEL, lambda: bits, HALF),
    ):
        refused("64 uniform bits", call)


def test_a_word_of_numpy_is_one_of_python():
    for first, further, row in ((2**63, 2**64 - 1, 1), (2**63 - 1, 5, 0)):
        words = iter(np.array([first, further], dtype=np.uint64))
        assert draw_index(np.array([4, 4]), HALF, lambda words=words: next(words)) == row


def drawn(noise=Noise.LAPLACE, **identity):
    """Draws of four tests."""
    four = np.arange(4)
    usual = {"salt": SALT, "offset": four, "row": 0, "attempt": 0, "branch": 0, "value": four}
    law = Law(noise, Fraction(1, 10**6))
    return KeyedSampler(bytes(32)).draw(law, Identity(**usual | identity)).tolist()


def test_a_sampler_draws_the_family_of_a_name():
    families = {noise: drawn(noise) for noise in Noise}
    assert {noise: drawn(noise.value) for noise in Noise} == families
    assert min(families[Noise.LAPLACE]) < 0 <= min(families[Noise.EXPONENTIAL])


@pytest.mark.parametrize("count", [0, 7, 9])
def test_entropy_of_another_length_draws_no_threshold(count):
    refused("number of bytes", partial(draw_threshold, Law(Noise.EXPONENTIAL, HALF), lambda _: bytes(count)))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *(
            (field, wrong)
            for field in ("row", "attempt", "value")
            for wrong in (np.arange(3), np.arange(5), np.array([0]), np.zeros((4, 1), dtype=np.int64))
        ),
        *((field, np.zeros(4)) for field in ("offset", "row", "attempt", "value")),
        *((field, [0, 1, 2, 3]) for field in ("offset", "row", "attempt", "value")),
        ("offset", np.zeros((2, 2), dtype=np.int64)),
        ("offset", 4),
        ("value", 0),
        ("row", 1.0),
        ("attempt", None),
        ("branch", 0.0),
        ("branch", np.zeros(4, dtype=np.int64)),
        ("salt", (1, 2**64)),
        ("salt", (-1, 2)),
        ("salt", (np.zeros(3, dtype=np.uint64),) * 2),
        ("salt", (np.zeros(4, dtype=np.int64),) * 2),
        ("salt", (1.0, 2.0)),
    ],
)
def test_an_identity_that_is_not_one_for_each_test_draws_nothing(field, given):
    refused(f"the ({field}|value) of|a salt must be", partial(drawn, **{field: given}))


def test_identities_of_any_integer_type_draw_the_same_noise():
    plain = drawn(row=9, attempt=3, branch=8)
    assert drawn(row=np.int64(9), attempt=np.int32(3), branch=np.int8(8)) == plain
    narrow = {field: np.full(4, number, dtype=np.uint8) for field, number in (("row", 9), ("attempt", 3))}
    small = np.arange(4, dtype=np.int8)
    assert drawn(**narrow, branch=8, offset=small, value=small) == plain


REFUSED = {
    "sparse": [
        ({"epsilon": "1e-9"}, "epsilon"),
        ({"delta": 1e-6}, "pure composition takes no delta"),
        ({"composition": Composition.ZCDP}, "delta must be a number greater than 0 and less than 1"),
    ],
    "numeric_sparse": [
        ({"answer_noise": Noise.EXPONENTIAL}, "only up"),
        ({"answer_noise": Noise.GUMBEL}, "only up"),
        ({"epsilon": "5e-9"}, "too small"),
        (
            {"epsilon": 9 * ONE, "cutoff": 1, "sensitivity": 2**11, "answer_share": Fraction(1, 9 * 2**29)},
            "wider",
        ),
    ],
    "top_k": [({"last_gap": "random"}, "has no proof"), ({"last_gap": "delta"}, "coarse grid")],
    "noisy_max": [({"refinement": 2**50}, "wider than the grid")],
    "hybrid_estimates": [({"epsilon": "2e-9", "k": 9}, "wider than the grid")],
    "quantile": [({"epsilon": "1e-7", "level": Fraction(1, 10**6)}, "wider than the grid")],
    "gaussian": [
        ({"tests": None}, "number of tests"),
        ({"as_published": True}, "tests=None"),
        ({"sensitivity": 10**9}, "wide"),
    ],
}
"""Besides what tests/mechanisms/test_wrong_arguments.py tries."""

BUILT = [
    ({"cutoff": 0}, "^cutoff must be an integer at least 1; found 0$"),
    ({"epsilon": "3e-9"}, "too small"),
    ({"epsilon": "1e-6", "sensitivity": 10**6}, r"wider than the grid|2\^48"),
]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        *((name, *one) for name, several in REFUSED.items() for one in several),
        *((name, *one) for name in ("sparse_vector", "adaptive", "ladder") for one in BUILT),
        *((name, {"sensitivity": 2**60}, "wider") for name in ("exponential", *SELECTIONS)),
    ],
)
def test_an_option_without_a_meaning_or_a_proof_is_refused_with_the_reason(name, options, reason):
    refused(reason, partial((ALL | {"gaussian": GAUSSIAN})[name], **options))


def test_what_a_mechanism_cannot_do_is_refused_with_the_reason():
    few, top_k, sums = np.array([], dtype=np.int64), SELECTIONS["top_k"](), STREAMS["sparse"]()
    for reason, call in (
        ("no threshold", partial(top_k.open, 1, SALT)),
        ("no threshold", partial(ALL["exponential"]().open, 1, SALT)),
        ("at least one answer", partial(stepped, SELECTIONS["hybrid_identity"](), few)),
        ("lower the refinement", partial(stepped, SELECTIONS["noisy_max"](), np.array([2**46, 0]))),
        ("one branch and one top", partial(replace, sums, per_top=STREAMS["adaptive"]())),
        ("lower k", partial(stepped, top_k, few)),
        ("lower k", partial(stepped, SELECTIONS["noisy_max"](), few)),
        ("at least two", partial(stepped, ALL["exponential"](), few)),
        (
            "after a top",
            partial(sums.resample, sums.open(0, SALT), 1, SALT),
        ),  # a second draw would cost again
    ):
        refused(reason, call)
