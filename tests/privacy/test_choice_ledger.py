"""Picks in the ledger: reserved with the vector, charged once, composed with what came before."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.privacy.test_ledger import FAST, RELATION, create, sql, stored

from dpmtv import console
from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.privacy import accounting, choice, ledger, mechanisms
from dpmtv.types import BoundedRangeEvent, Event, GaussianEvent

DELTA = 1e-5
SHAPE = {"relation": RELATION, "chunks": 2, "clip_norms": [1.0], "block_sizes": [3]}
complains = partial(pytest.raises, ledger.LedgerError)
refuses = partial(pytest.raises, PrivacyParameterError)


def pick(range_: float, count: int = 1) -> BoundedRangeEvent:
    return BoundedRangeEvent(range=range_, count=count)


def gaussian(mu: float) -> GaussianEvent:
    return GaussianEvent(delta2=mu, sigma=1.0, scale=2**50, d=1)


def reserve(book: ledger.Ledger, *events: Event, part: str = "") -> ledger.Reservation:
    return book.reserve(events, relation=RELATION, unit=None, part=part)


def charge(book: ledger.Ledger, *events: Event, part: str = "") -> None:
    with reserve(book, *events, part=part) as reservation:
        reservation.charge()
        reservation.released()


@pytest.fixture
def book():
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        yield create(Path(folder) / "x")


def test_a_choice_and_its_vector_spend_exactly_the_budget(book, capsys):
    mechanism = mechanisms.calibrate(epsilon=1.0, delta=DELTA, beside=[pick(0.2)], **SHAPE)
    book.check(mechanism.events, relation=RELATION, unit=None)
    charge(book, *mechanism.events)
    told = ledger.history(book.path)
    assert told.entries[0].events == mechanism.events
    assert told.spent[""] == pytest.approx(1, rel=1e-9)
    assert told.remaining[""] == 0
    again = json.loads(json.dumps(asdict(told), allow_nan=False))
    assert again["entries"][0]["events"][1] == {"range": 0.2, "count": 1}
    for events in ([pick(0.01)], [gaussian(0.01)]):
        with refuses(match="1 is spent or reserved"):
            book.check(events, relation=RELATION, unit=None)
    console.print_ledger(told)
    assert "E = 0.2" in capsys.readouterr().out


@pytest.mark.parametrize("first", [(pick(0.2),), (gaussian(0.1), pick(0.2, 2))])
def test_gaussians_after_picks_are_composed_with_their_losses(book, first):
    charge(book, *first)
    left = book.history().remaining[""]
    assert 0 < left < 1
    with refuses(match="fits"):
        book.check(
            [gaussian(1 / accounting.noise_multiplier(left + 1e-3, DELTA))],
            relation=RELATION,
            unit=None,
        )
    further = gaussian(1 / accounting.noise_multiplier(left, DELTA))
    charge(book, further)
    exact = accounting.epsilon_of([*first, further], 0.99 * DELTA)
    assert book.history().spent[""] == exact


def test_picks_of_later_entries_count_as_gaussians(book):
    """Their size may follow from what was seen before; only Gaussians add up then."""
    charge(book, gaussian(0.1))
    charge(book, pick(0.2))
    exact = accounting.epsilon_of([gaussian(0.1), pick(0.2)], DELTA)
    mu = math.hypot(0.1, accounting.gdp_mu(pick(0.2)))
    assert book.history().spent[""] == pytest.approx(
        accounting.gaussian_epsilon(1 / mu, 0.99 * DELTA), rel=1e-9
    )
    assert book.history().spent[""] > exact
    # What was given back was never seen: the next is the first again.
    other = create(book.path.with_name("y"))
    reserve(other, gaussian(0.1)).cancel()
    charge(other, pick(0.2))
    assert other.history().spent[""] == accounting.epsilon_of([pick(0.2)], DELTA)


def test_parts_have_their_own_first_entry(book):
    charge(book, gaussian(0.1), part="january")
    charge(book, pick(0.3), part="february")
    spent = book.history().spent
    assert spent["february"] == accounting.epsilon_of([pick(0.3)], DELTA)
    with refuses(match="together"):
        reserve(book, pick(0.9))


def test_one_charge_pays_for_each_event_once(book, monkeypatch):
    seen, draw, noise = [], choice._noisy_max, mechanisms._discrete_gaussian
    watched = lambda *args: seen.append(stored(book)) or draw(*args)  # noqa: E731
    monkeypatch.setattr(choice, "_noisy_max", watched)
    watched_too = lambda *args: seen.append(stored(book)) or noise(*args)  # noqa: E731
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", watched_too)
    mechanism = mechanisms.calibrate(epsilon=0.9, delta=DELTA, beside=[pick(0.2)], **SHAPE)

    def choose(paid: ledger.Reservation, range_: float = 0.2) -> None:
        scores = np.array([0, 5, 9])
        choice.exponential_mechanism(scores, sensitivity=9, range_=range_, charge=paid.charge)

    with reserve(book, *mechanism.events) as paid:
        with pytest.raises(InternalError, match="not the one that was reserved"):
            choose(paid, 0.3)
        choose(paid)
        with complains(match="is charged, not reserved; one reservation allows one charge"):
            choose(paid)
        mechanism.release([None, None], charge=paid.charge)
        with complains(match="one reservation allows one charge"):
            mechanism.release([None, None], charge=paid.charge)
    assert seen == [["charged"], ["charged"]]
    with complains(match="was given back"):
        choose(paid)


def test_a_second_draw_is_refused_where_the_charge_is_gone(book):
    with reserve(book, gaussian(0.1), pick(0.1)) as paid:
        paid.charge(pick(0.1))
        sql(book.path, "UPDATE entries SET state = 'reserved'")
        with complains(match="is reserved, not charged"):
            paid.charge(gaussian(0.1))
    with reserve(book, gaussian(0.1), pick(0.1)) as paid:
        paid.charge()  # for all at once
        with complains(match="is charged, not reserved"):
            paid.charge(pick(0.1))


def test_picks_that_cannot_be_used_are_refused_and_bits_that_flip_are_found(book):
    for bad in (pick(0.0), pick(-1.0), pick(math.nan), pick(0.1, 0)):
        with refuses(match="numbers must be positive"):
            reserve(book, bad)
    with refuses(match="asks for inf"):
        reserve(book, pick(200.0))
    charge(book, pick(0.25))
    book.path.write_bytes(book.path.read_bytes().replace(b": 0.25", b": 0.15"))
    with complains(match="is damaged"):
        ledger.open(book.path)
