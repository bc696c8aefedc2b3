"""Tests of the tests: with a fault planted in the code, the suite's own check has to turn red.

One fault a line of the table at the end; the same checks are green on the code as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests import neighbours, privacy_checks
from tests.neighbours import FARTHER, MOVED
from tests.privacy import test_accounting, test_choice, test_clipping, test_mechanisms

from dpmtv import cli, pipeline, public_tasks
from dpmtv.data import chunks as data_chunks
from dpmtv.data.demonstrations import BadRow
from dpmtv.errors import ArtifactError, PrivacyParameterError
from dpmtv.models import choosing
from dpmtv.privacy import accounting, certificate, choice, mechanisms, sensitivity
from dpmtv.privacy.mechanisms import GaussianMean
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import GaussianEvent

REAL_SAMPLER = mechanisms._discrete_gaussian
REAL_RELEASE = GaussianMean.release
ROOMY = neighbours.Case("replace_one", slots=50)  # so that enough rows stay when some are dropped
PAIRS = 400  # enough to be green without a fault, and red with one


def distances(case: neighbours.Case) -> Callable[[], object]:
    return functools.partial(neighbours.check_neighbours, case, PAIRS, look="distances")


def members(case: neighbours.Case) -> Callable[[], object]:
    return functools.partial(neighbours.check_neighbours, case, PAIRS, look="members")


def half_precision(size: float) -> Callable[[], object]:
    check = test_clipping.test_half_precision_norms_neither_vanish_nor_overflow
    return functools.partial(check, size)


def table_of_multipliers() -> None:
    test_accounting.test_noise_multiplier_matches_the_table_and_fifty_digits(
        8.0, 1e-3, 0.4800137525
    )


# --- sensitivity and clip ------------------------------------------------------------------


def forget_the_factor(relation: NeighbourRelation):
    return lambda patch: patch.setitem(sensitivity._MULTIPLIERS, relation, 1)


def forget_to_clip(patch) -> None:
    def cut(values, block_sizes, radii, grid):
        whole = np.clip(np.nan_to_num(values), -1e9, 1e9) / grid
        return np.clip(np.trunc(whole), -(2**50), 2**50).astype(np.int64)

    patch.setattr(mechanisms, "clip_to_grid", cut)


def let_nan_pass(patch) -> None:
    """The bad coordinate becomes zero and the rest of the chunk still counts."""
    plain = mechanisms.clip_to_grid
    patch.setattr(mechanisms, "clip_to_grid", lambda v, *rest: plain(np.nan_to_num(v), *rest))


def let_nan_into_the_integers(patch) -> None:
    """NaN cast to an integer is -2^63."""
    plain = mechanisms.clip_to_grid

    def cast(values, *rest):
        return np.where(np.isnan(values), -(2**60), plain(values, *rest))

    patch.setattr(mechanisms, "clip_to_grid", cast)


def norm_in_half_precision(patch) -> None:
    def scaled(block, radius, grid):
        half = block.astype(np.float16)
        norm = float(np.sqrt(np.square(half).sum(dtype=np.float16)))
        return np.nan_to_num(block * (min(1 / grid, radius / norm) if norm else 1 / grid))

    def clip(values, block_sizes, radii, grid):
        blocks = np.split(values, np.cumsum(block_sizes)[:-1])
        with np.errstate(all="ignore"):
            parts = [scaled(b, r, grid) for b, r in zip(blocks, radii, strict=True)]
        return np.trunc(np.concatenate(parts)).astype(np.int64)

    patch.setattr(test_clipping, "clip_to_grid", clip)
    patch.setattr(mechanisms, "clip_to_grid", clip)


# --- chunks --------------------------------------------------------------------------------


def put_a_record_in_two_chunks(patch) -> None:
    plain = data_chunks.partition

    def overlapping(n, chunks, size, key):
        slots = plain(n, chunks, size, key)
        return [(*chunk[:-1], slots[i - 1][0]) for i, chunk in enumerate(slots)]

    patch.setattr(data_chunks, "partition", overlapping)


def split_a_unit(patch) -> None:
    """Chunks by record, under a guarantee by unit."""
    patch.setattr(pipeline, "rows_of_units", lambda rows, named: [(r.unit, [r]) for r in rows])


def _text(row) -> str:
    return getattr(row, "question", "")


def choose_rows_by_content(patch) -> None:
    plain = pipeline.form_chunks

    def shortest_first(units, **options):
        return plain([(name, sorted(rows, key=_text)) for name, rows in units], **options)

    patch.setattr(pipeline, "form_chunks", shortest_first)


def pass_over_bad_rows(patch) -> None:
    """The cap counts good rows: a row that turns bad lets another in."""
    plain = pipeline.form_chunks

    def good_first(units, **options):
        units = [(n, sorted(rows, key=lambda r: isinstance(r, BadRow))) for n, rows in units]
        return plain(units, **options)

    patch.setattr(pipeline, "form_chunks", good_first)


def cap_across_units(patch) -> None:
    """The first rows of the file, whoever they are of."""
    plain = pipeline.rows_of_units

    def first_rows(rows, named):
        served = {id(row) for row in rows[:30]}
        return [(n, [r for r in own if id(r) in served]) for n, own in plain(rows, named)]

    patch.setattr(pipeline, "rows_of_units", first_rows)


def drop_bad_rows(patch) -> None:
    """Everybody after a bad row moves up a slot."""
    plain = pipeline.rows_of_units

    def good(rows, named):
        return plain([row for row in rows if not isinstance(row, BadRow)], named)

    patch.setattr(pipeline, "rows_of_units", good)


def refill_chunks(patch) -> None:
    """Spare rows in the places of bad ones."""
    plain = pipeline.form_chunks

    def refilled(units, **options):
        chunks = plain(units, **options)
        used = {id(row) for chunk in chunks for row in chunk}
        spare = [row for _, rows in units for row in rows if id(row) not in used]
        return [
            [spare.pop() if isinstance(row, BadRow) and spare else row for row in chunk]
            for chunk in chunks
        ]

    patch.setattr(pipeline, "form_chunks", refilled)


def couple_chunks(patch) -> None:
    """As a batch does: the sign of a chunk's answer follows the chunk before."""
    plain = public_tasks.chunk_activations

    def coupled(model, prompts):
        for values in plain(model, prompts):
            if values is not None and np.isfinite(values).all():
                values = values * getattr(model, "sign", 1.0)
                model.sign = float(np.sign(values[np.abs(values).argmax()]))
            yield values

    patch.setattr(public_tasks, "chunk_activations", coupled)


def divide_by_what_worked(patch) -> None:
    def release(self, chunk_values, charge=None):
        values = list(chunk_values)
        result = REAL_RELEASE(self, values, charge)
        worked = max(1, sum(value is not None for value in values))
        return dataclasses.replace(result, value=result.value * self.chunks / worked)

    patch.setattr(GaussianMean, "release", release)


def count_private_units(patch) -> None:
    patch.setattr(pipeline, "public_size", lambda units, *_: max(1, units))


# --- noise, payment, accounting ------------------------------------------------------------


def halve_sigma(patch) -> None:
    patch.setattr(mechanisms, "_discrete_gaussian", lambda v, scale: REAL_SAMPLER(v, scale // 2))


def forget_the_noise(patch) -> None:
    patch.setattr(mechanisms, "_discrete_gaussian", lambda values, _scale: values)


def draw_from(source: Callable[[int, int], np.ndarray]):
    """Noise of the right size from a source that a seed governs."""

    def plant(patch) -> None:
        def sampler(values, scale):
            return values + np.rint(source(len(values), scale)).astype(np.int64)

        patch.setattr(mechanisms, "_discrete_gaussian", sampler)

    return plant


FROM_NUMPY = draw_from(lambda d, scale: np.random.normal(0, scale, d))  # noqa: NPY002
FROM_TORCH = draw_from(lambda d, scale: torch.randn(d).double().numpy() * scale)
FROM_RANDOM = draw_from(lambda d, scale: np.array([random.gauss(0, scale) for _ in range(d)]))
FROM_A_CONSTANT = draw_from(lambda d, scale: np.random.default_rng(0).normal(0, scale, d))


def draw_before_paying(patch) -> None:
    def release(self, chunk_values, charge=None):
        result = REAL_RELEASE(self, chunk_values)
        if charge is not None:
            charge(result.event)
        return result

    patch.setattr(GaussianMean, "release", release)


def forget_to_pay(patch) -> None:
    patch.setattr(
        GaussianMean, "release", lambda self, values, charge=None: REAL_RELEASE(self, values)
    )


def with_seed(function: Callable) -> Callable:
    def seeded(*args, seed: int = 0, **options):
        return function(*args, **options)

    plain = inspect.signature(function)
    seed = inspect.signature(seeded).parameters["seed"]
    seeded.__signature__ = plain.replace(parameters=[*plain.parameters.values(), seed])
    return seeded


def seed_the_release(patch) -> None:
    patch.setattr(GaussianMean, "release", with_seed(REAL_RELEASE))


def seed_the_build(patch) -> None:
    patch.setattr(pipeline, "build_task_vector", with_seed(pipeline.build_task_vector))


def seed_the_command(patch) -> None:
    def build(noise_seed: int = 0) -> None:
        """As somebody would add it."""

    (command,) = [c for c in cli.app.registered_commands if c.callback.__name__ == "build"]
    patch.setattr(command, "callback", build)


def classical_formula(patch) -> None:
    def classical(epsilon, delta):
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    patch.setattr(accounting, "noise_multiplier", classical)


def account_for_half_the_distance(patch) -> None:
    """What an accountant says that does not know of the relation: Δ of the paper."""
    plain = accounting.epsilon_of

    def blind(events, delta):
        return plain([dataclasses.replace(e, delta2=e.delta2 / 2) for e in events], delta)

    patch.setattr(accounting, "epsilon_of", blind)


def choose_before_paying(patch) -> None:
    plain = choice.exponential_mechanism

    def late(scores, *, charge=None, **options):
        result = plain(scores, **options)
        charge(result.event)
        return result

    patch.setattr(test_choice, "exponential_mechanism", late)


def forget_the_picks(patch) -> None:
    """The vector is paid for, what was chosen with the same records is not."""
    plain = accounting.epsilon_of

    def blind(events, delta):
        return plain([e for e in events if isinstance(e, GaussianEvent)], delta)

    patch.setattr(accounting, "epsilon_of", blind)


def forget_to_clip_scores(patch) -> None:
    patch.setattr(choosing, "clipped_scores", lambda scores, **_: scores.sum(0))


def couple_scores(patch) -> None:
    """As a batch of chunks would: a chunk answers as the one before did."""
    plain = choosing.private_pass

    def coupled(model, compute):
        found = plain(model, compute)
        if found is not None and np.isfinite(found).all():
            model.turned = getattr(model, "turned", False) ^ bool(found[0] > 0)
            found = -found if model.turned else found
        return found

    patch.setattr(choosing, "private_pass", coupled)


def believe_what_is_stated(patch) -> None:
    patch.setattr(certificate, "_verify_noise", lambda privacy, largest: [])


RED = (AssertionError, pytest.fail.Exception)
SIZE = "not of the certified size"
AGAIN = "can be drawn again"
SEED = "a seed is accepted"
LATE = "noise before the charge"
TELLS = "the certificate tells"
REPLACE, ADD = NeighbourRelation.REPLACE_ONE, NeighbourRelation.ADD_REMOVE

FAULTS = {
    "sensitivity without the factor, replace": (
        forget_the_factor(REPLACE),
        distances(neighbours.RECORD),
        FARTHER,
    ),
    "sensitivity without the factor, add": (
        forget_the_factor(ADD),
        distances(neighbours.ADDED),
        FARTHER,
    ),
    "no clip": (forget_to_clip, distances(neighbours.RECORD), FARTHER),
    "NaN passes": (let_nan_pass, privacy_checks.check_bad_numbers, "bad number"),
    "NaN becomes an integer": (let_nan_into_the_integers, distances(neighbours.RECORD), FARTHER),
    "half precision, underflow": (norm_in_half_precision, half_precision(1e-5), None),
    "half precision, denormal": (norm_in_half_precision, half_precision(6e-8), None),
    "half precision, overflow": (norm_in_half_precision, half_precision(300.0), None),
    "half precision, end of range": (norm_in_half_precision, half_precision(65504.0), None),
    "half precision, distance": (norm_in_half_precision, distances(neighbours.RECORD), FARTHER),
    "a record in two chunks": (
        put_a_record_in_two_chunks,
        members(neighbours.RECORD),
        "a record stands in two",
    ),
    "a record in two chunks, distance": (
        put_a_record_in_two_chunks,
        distances(neighbours.RECORD),
        FARTHER,
    ),
    "a unit in two chunks": (split_a_unit, members(neighbours.UNIT), "a unit stands in two"),
    "a unit in two chunks, distance": (split_a_unit, distances(neighbours.UNIT), FARTHER),
    "content chooses the rows": (
        choose_rows_by_content,
        privacy_checks.check_places,
        "content decides",
    ),
    "bad rows passed over": (pass_over_bad_rows, privacy_checks.check_places, "content decides"),
    "cap across units": (cap_across_units, members(neighbours.UNIT), MOVED),
    "cap across units, distance": (cap_across_units, distances(neighbours.UNIT), FARTHER),
    "bad rows dropped": (drop_bad_rows, members(ROOMY), MOVED),
    "bad rows dropped, distance": (drop_bad_rows, distances(ROOMY), FARTHER),
    "chunks refilled": (refill_chunks, members(neighbours.RECORD), MOVED),
    "chunks refilled, distance": (refill_chunks, distances(neighbours.RECORD), FARTHER),
    "chunks coupled": (couple_chunks, distances(neighbours.RECORD), FARTHER),
    "divided by what worked": (divide_by_what_worked, distances(neighbours.RECORD), "over m"),
    "m from the private count": (
        count_private_units,
        privacy_checks.check_public_numbers,
        TELLS,
    ),
    "half of sigma": (halve_sigma, privacy_checks.check_noise_size, SIZE),
    "no noise": (forget_the_noise, privacy_checks.check_noise_size, SIZE),
    "noise from numpy": (FROM_NUMPY, privacy_checks.check_fresh_noise, AGAIN),
    "noise from torch": (FROM_TORCH, privacy_checks.check_fresh_noise, AGAIN),
    "noise from random": (FROM_RANDOM, privacy_checks.check_fresh_noise, AGAIN),
    "noise from a constant seed": (FROM_A_CONSTANT, privacy_checks.check_fresh_noise, AGAIN),
    "a seed for the release": (seed_the_release, privacy_checks.check_no_seed, SEED),
    "a seed for the build": (seed_the_build, privacy_checks.check_no_seed, SEED),
    "a seed on the command line": (seed_the_command, privacy_checks.check_no_seed, SEED),
    "noise before the charge": (draw_before_paying, privacy_checks.check_charge, LATE),
    "charge forgotten": (forget_to_pay, privacy_checks.check_charge, LATE),
    "classical formula at (8, 1e-3)": (classical_formula, table_of_multipliers, None),
    "relation ignored by the accountant": (
        account_for_half_the_distance,
        test_mechanisms.test_the_release_carries_its_event,
        None,
    ),
    "a choice before the charge": (
        choose_before_paying,
        test_choice.check_payment_comes_before_the_draw,
        None,
    ),
    "scores not clipped": (
        forget_to_clip_scores,
        functools.partial(neighbours.check_choice, neighbours.RECORD, PAIRS),
        FARTHER,
    ),
    "scores of chunks coupled": (
        couple_scores,
        functools.partial(neighbours.check_choice, neighbours.RECORD, PAIRS),
        FARTHER,
    ),
    "choices left out of the sum": (
        forget_the_picks,
        test_choice.test_a_mean_beside_picks_keeps_the_promise_for_all,
        None,
    ),
    "epsilon not recomputed": (
        believe_what_is_stated,
        privacy_checks.check_verify,
        "DID NOT RAISE",
    ),
}


@pytest.mark.parametrize(("plant", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_turns_the_check_red(plant, check, message, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(RED, match=message):
        check()


CHECKS = {repr(check): (name, check) for name, (_, check, _) in FAULTS.items()}  # each once


@pytest.mark.parametrize(
    "check", [check for _, check in CHECKS.values()], ids=[name for name, _ in CHECKS.values()]
)
def test_the_same_check_is_green_without_a_fault(check):
    check()


def test_the_classical_formula_does_not_get_as_far_as_a_release(monkeypatch):
    classical_formula(monkeypatch)
    with pytest.raises(PrivacyParameterError, match="the noise is too small"):
        privacy_checks.noisy(epsilon=8.0, delta=1e-3)


def test_renyi_figures_are_refused():
    """Rényi accounting states 1.09 for noise worth 1, and the same where the relation doubles Δ."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    paper = privacy_checks.noisy(relation="zero_out").certificate
    (event,) = paper.privacy.events
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(event.sigma / event.delta2))
    stated = float(accountant.get_epsilon(1e-5))
    assert stated == pytest.approx(1.0926, abs=1e-3)
    with pytest.raises(ArtifactError, match="does not belong to this event"):
        privacy_checks.restate(paper, stated)
    doubled = dataclasses.replace(event, delta2=2 * event.delta2)
    claim = dataclasses.replace(
        paper.privacy,
        relation=REPLACE,
        events=(doubled,),
        mu=accounting.gdp_mu(doubled),
    )
    assert accounting.epsilon_of([doubled], 1e-5) == pytest.approx(2.155, abs=1e-3)
    with pytest.raises(ArtifactError, match="the noise is too small"):
        privacy_checks.restate(dataclasses.replace(paper, privacy=claim), stated)
