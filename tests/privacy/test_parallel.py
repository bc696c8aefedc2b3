"""Releases from groups of units that share none: the dearest group counts, also among others."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.test_certificate import HASH, HEADS, data_of, make, put, write_data
from tests.privacy.test_choice_ledger import charge, gaussian, pick, reserve
from tests.privacy.test_ledger import FAST, RELATION, create

from dpmtv import console
from dpmtv.errors import ArtifactError, InternalError, LedgerError, PrivacyParameterError
from dpmtv.privacy import accounting, certificate, choice, ledger
from dpmtv.privacy.certificate import Certificate, Selection, privacy_of
from dpmtv.privacy.mechanisms import calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.privacy.statement import statement, statement_page
from dpmtv.types import Event, GaussianEvent, ParallelEvent, SingleEvent

DELTA = 1e-5
MU = 1 / accounting.noise_multiplier(1.0, DELTA)
SHAPE = {"chunks": 100, "clip_norms": [1.5, 2.0], "block_sizes": [8, 6]}


def split(one: list[SingleEvent], other: list[SingleEvent]) -> ParallelEvent:
    return ParallelEvent((tuple(one), tuple(other)))


# --- the price -----------------------------------------------------------------------------


def dear(path: tuple[SingleEvent, ...]) -> float:
    return accounting.epsilon_of(path, DELTA)


@pytest.mark.parametrize(
    "events",
    [
        [split([gaussian(MU)], [pick(1.0)])],
        [split([gaussian(MU)], [pick(0.1)])],
        [split([gaussian(MU), pick(0.2)], [pick(0.5), pick(0.5)]), gaussian(0.1)],
        [pick(0.3), split([gaussian(0.2)], [gaussian(0.05), pick(0.2)]), pick(0.1, 2)],
        [split([gaussian(MU)], [pick(0.4)]), split([pick(0.3)], [gaussian(0.3)]), gaussian(0.1)],
    ],
)
def test_the_dearest_way_of_one_unit_counts(events):
    """Every way written out by hand; the sum of all groups is never less."""
    groups = [e.groups if isinstance(e, ParallelEvent) else ((e,),) for e in events]
    ways = [tuple(itertools.chain(*way)) for way in itertools.product(*groups)]
    found = accounting.epsilon_of(events, DELTA)
    assert found == max(map(dear, ways))
    assert found < dear(accounting.singles(events)), "the groups share no unit"
    assert accounting.gdp_mu(*events) == pytest.approx(max(accounting.gdp_mu(*w) for w in ways))
    left = accounting.further_epsilon(events, 3.0, DELTA)
    assert left == min(accounting.further_epsilon(way, 3.0, DELTA) for way in ways)
    beside = accounting.gaussian_beside(events, 3.0, DELTA)
    assert beside == max(accounting.gaussian_beside(way, 3.0, DELTA) for way in ways)


def test_an_independent_accountant_agrees():
    """Laplace has range 2ε as well; here Gaussians of two groups beside one from all units."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    def theirs(*mus: float) -> float:
        plds = [from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4) for mu in mus]
        total = plds[0]
        for other in plds[1:]:
            total = total.compose(other)
        return float(total.get_epsilon_for_delta(DELTA))

    events = [gaussian(0.2), split([gaussian(0.1), gaussian(0.1)], [gaussian(0.17)])]
    worst = max(theirs(0.2, 0.1, 0.1), theirs(0.2, 0.17))
    assert accounting.epsilon_of(events, DELTA) == pytest.approx(worst, abs=1e-4)


def test_a_lone_pick_costs_no_more_than_its_range_at_any_delta():
    for range_ in (0.1, 0.7, 1.0, 3.3):
        for delta in (1e-5, 1e-9, 1e-12, 1e-15):
            assert accounting.epsilon_of([pick(range_)], delta) <= range_
        both = [pick(math.nextafter(range_ - 0.03, 0)), pick(0.03)]
        assert accounting.epsilon_of(both, 1e-15) <= range_


def test_groups_that_hold_nothing_cost_everything():
    for groups in ((), ((),), ((gaussian(0.1),), ())):
        assert accounting.epsilon_of([ParallelEvent(groups)], DELTA) == math.inf


@given(
    mus=st.lists(st.floats(0.01, 0.5), min_size=4, max_size=4),
    scales=st.lists(st.sampled_from([2**20, 2**23, 2**30]), min_size=4, max_size=4),
    d=st.integers(1, 10**5),
)
@settings(max_examples=40, deadline=None)
def test_one_gaussian_stands_for_every_group(mus, scales, d):
    made = [GaussianEvent(mu, 1.0, s, d) for mu, s in zip(mus, scales, strict=True)]
    event = split(made[:3], [made[3], pick(0.3)])
    one = accounting.as_gaussian(event)
    for group in event.groups:
        assert accounting.gdp_mu(one) >= accounting.gdp_mu(*group) * (1 - 1e-15)
        slack = sum(
            accounting.discreteness_slack(1.0, e.d, e.scale)
            for e in group
            if isinstance(e, GaussianEvent)
        )
        assert accounting.discreteness_slack(1.0, one.d, one.scale) >= slack * (1 - 1e-12)
    coarse = split([gaussian(0.1)], [GaussianEvent(0.1, 1.0, 2**10, 1)])
    assert accounting.epsilon_of([accounting.as_gaussian(coarse)], DELTA) == math.inf


# --- a mean and votes of other chunks ------------------------------------------------------


def test_votes_of_other_chunks_cost_the_mean_no_noise():
    terms = {"epsilon": 1.0, "delta": DELTA, "relation": NeighbourRelation.REPLACE_ONE}
    alone = calibrate(**terms, **SHAPE)
    mechanism = calibrate(**terms, **SHAPE, apart=[pick(1.0)])
    assert mechanism.event == alone.event
    assert mechanism.events == (split([alone.event], [pick(1.0)]),)
    beside = calibrate(**terms, **SHAPE, beside=[pick(0.2)], apart=[pick(0.9), pick(0.1)])
    assert beside.event == calibrate(**terms, **SHAPE, beside=[pick(0.2)]).event
    with pytest.raises(PrivacyParameterError, match="voting chunks cost more than epsilon 1"):
        calibrate(**terms, **SHAPE, apart=[pick(1.1)])
    with pytest.raises(PrivacyParameterError, match="noise is too small"):
        dataclasses.replace(mechanism, apart=(pick(1.1),))
    with pytest.raises(PrivacyParameterError, match="noise is too small"):
        dataclasses.replace(mechanism, beside=(pick(0.01),))


# --- the certificate -----------------------------------------------------------------------


VOTE = (pick(1.0),)


def voted(
    relation=NeighbourRelation.REPLACE_ONE, beside=(), apart=VOTE, clip="public"
) -> Certificate:
    every = 3 * (4 + 4 + 6)  # coordinates of all heads of the certificate's model
    of = {"relation": relation, "beside": beside, "apart": apart, "largest": every}
    mechanism = calibrate(epsilon=1.0, delta=DELTA, **of, **SHAPE)
    privacy = privacy_of(
        mechanism,
        voting_chunks=25,
        shots=4,
        query="public",
        queries_sha256=HASH,
        clip_source=clip,
        released_heads=HEADS,
    )
    source = HASH if clip == "public" else None
    return make(privacy=privacy, selection=Selection("private", source))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "certificate.json"


@pytest.mark.parametrize(
    "original",
    [
        voted(),
        voted(beside=[pick(0.2)]),
        voted(apart=[pick(0.8), pick(0.1)], clip="private"),
        voted(apart=[pick(0.5), gaussian(0.03), gaussian(0.03)], clip="private-steps"),
        voted(NeighbourRelation.ZERO_OUT),
    ],
)
def test_a_certificate_of_a_split_comes_back_and_is_recomputed(path, original):
    certificate.write(original, path)
    assert certificate.read(path) == original
    events = json.loads(path.read_text("utf-8"))["privacy"]["events"]
    kinds = [[e["type"] for e in group] for group in events[0]["groups"]]
    assert [e["type"] for e in events] == ["parallel"]
    assert kinds[0][0] == "gaussian"
    assert kinds[1][0] == "bounded_range"
    lines = certificate.verify(original, HASH)
    assert "100 chunks" in lines[2]
    assert "25 chunks that voted share no unit with them" in lines[2]


def test_every_flipped_bit_of_a_split_is_refused(path):
    certificate.write(voted(), path)
    intact = path.read_bytes()
    chance = random.Random(0)
    begin, end = intact.index(b'"events"'), intact.index(b'"geometry_sha256"')
    for place in [*range(begin, end), intact.index(b'"voting_chunks": 25') + 17]:
        content = bytearray(intact)
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with pytest.raises(ArtifactError):
            certificate.read(path)


EVENT = "privacy.events.0"
NOISE, PICKED = f"{EVENT}.groups.0.0", f"{EVENT}.groups.1.0"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("selection.mode", "public", "voting_chunks goes with a private selection"),
        (f"{EVENT}.type", "sequential", "type is unknown"),
        (f"{EVENT}.type", "gaussian", "is unknown|is missing"),
        (f"{EVENT}.seed", 1, "seed is unknown"),
        (f"{EVENT}.groups", [], "events must be one parallel event"),
        (f"{EVENT}.groups", {}, "groups must be a list"),
        (f"{EVENT}.groups.0", [], "events must be one parallel event"),
        (f"{EVENT}.groups.1", [], "events must be one parallel event"),
        (f"{NOISE}.sigma", 0.0, "sigma must be positive"),
        (f"{NOISE}.seed", 1, "seed is unknown"),
        (f"{PICKED}.range", -1.0, "range must be positive"),
        (f"{PICKED}.range", math.nan, "range must be a finite"),
        (f"{PICKED}.count", 1.0, "count must be of type int"),
        (f"{PICKED}.type", "parallel", "type is unknown"),
        ("privacy.voting_chunks", None, "voting_chunks goes with votes"),
        ("privacy.voting_chunks", 0, "voting_chunks must be positive"),
        ("privacy.voting_chunks", 25.0, "voting_chunks must be of type int"),
    ],
)
def test_a_bad_parallel_event_is_refused_by_name(path, key, value, named):
    data = data_of(path, voted())
    put(data, key, value)
    write_data(path, data)
    with pytest.raises(ArtifactError, match=named):
        certificate.read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda event: [event, event],
        lambda event: [event["groups"][0][0], event],
        lambda event: [event | {"groups": event["groups"][::-1]}],
        lambda event: [event | {"groups": [*event["groups"], event["groups"][1]]}],
        lambda event: [event | {"groups": [event["groups"][0], event["groups"][0]]}],
        lambda event: [event | {"groups": [event["groups"][0] * 2, event["groups"][1]]}],
        lambda event: event["groups"][0] + event["groups"][1],
    ],
)
def test_events_of_a_split_have_one_form(path, change):
    data = data_of(path, voted())
    data["privacy"]["events"] = change(data["privacy"]["events"][0])
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.(events|voting_chunks)"):
        certificate.read(path)


def test_votes_without_a_voting_chunk_are_refused(path):
    data = data_of(path, make())
    put(data, "privacy.voting_chunks", 25)
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.voting_chunks goes with votes"):
        certificate.read(path)


def test_the_vectors_own_pick_does_not_pay_for_the_heads():
    """Named are the voters' choices: what stays beside the vector is another one."""
    with pytest.raises(ArtifactError, match=r"privacy\.events lack a private choice"):
        voted(beside=[pick(0.2)], apart=[pick(0.9)], clip="private")


def changed(groups=None, **parts) -> Certificate:
    original = voted()
    events = (ParallelEvent(groups),) if groups else original.privacy.events
    return make(
        privacy=dataclasses.replace(original.privacy, events=events, **parts),
        selection=original.selection,
    )


@pytest.mark.parametrize(
    ("tampered", "reason"),
    [
        (changed(((voted().privacy.groups[0][0],), (pick(1.1),))), "too small"),
        (changed(((voted().privacy.groups[0][0],), (pick(0.9),))), "privacy.mu"),
        (changed(((voted().privacy.groups[0][0], pick(0.1)), (pick(1.0),))), "too small"),
        (changed(chunks=125), "events.delta2"),
        (changed(mu=MU), "privacy.mu"),
        (changed(epsilon=0.999), "too small"),
    ],
)
def test_verify_refuses_a_split_that_the_claim_does_not_cover(tampered, reason):
    certificate.verify(voted(), HASH)
    with pytest.raises(ArtifactError, match=reason):
        certificate.verify(tampered, HASH)


def test_the_statement_says_whose_votes_they_were():
    text = "\n".join(statement(voted()))
    assert "one choice that was made privately by 25 chunks of records other than those" in text
    assert "of the 100 that the vector was made of. Since no record is in both" in text
    assert "together with" not in text
    assert "at most 15.37 %" in text  # of whom votes: μ of a pick of range 1
    both = "\n".join(statement(voted(beside=[pick(0.2)])))
    assert "the vector together with one choice" in both
    assert "25 chunks" in both
    page = statement_page(voted(), certificate.verify(voted(), HASH))
    assert "m = 100 chunks and 25 that vote" in page
    paper = "\n".join(statement(voted(NeighbourRelation.ZERO_OUT)))
    doubled = accounting.epsilon_of([split([gaussian(2 * MU)], [pick(2.0)])], DELTA)
    assert f"gives ε = {math.ceil(doubled * 1e4) / 1e4:g}" in paper


# --- the ledger ----------------------------------------------------------------------------


@pytest.fixture
def book():
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        yield create(Path(folder) / "x")


def test_a_split_spends_exactly_the_budget(book, capsys):
    mechanism = calibrate(epsilon=1.0, delta=DELTA, relation=RELATION, apart=[pick(1.0)], **SHAPE)
    charge(book, *mechanism.events)
    told = book.history()
    assert told.entries[0].events == mechanism.events
    assert told.spent[""] == pytest.approx(1, rel=1e-9)
    assert told.remaining[""] == 0
    console.print_ledger(told)
    assert "or E = 1" in capsys.readouterr().out
    assert ledger.open(book.path).history() == told


@pytest.mark.parametrize("event", [split([gaussian(0.2)], [pick(0.4)])])
def test_a_unit_pays_for_its_own_group_beside_other_entries(book, event):
    charge(book, event)
    charge(book, gaussian(0.1))
    ways: list[list[Event]] = [[*group, gaussian(0.1)] for group in event.groups]
    worst = max(accounting.epsilon_of(way, 0.99 * DELTA) for way in ways)
    assert book.history().spent[""] == worst
    left = book.history().remaining[""]
    assert left == min(accounting.further_epsilon(way, 1.0, DELTA, 0.99) for way in ways)
    charge(book, gaussian(1 / accounting.noise_multiplier(left, DELTA)))
    assert book.history().spent[""] <= 1


def test_a_split_in_a_later_entry_counts_as_its_dearest_gaussian(book):
    charge(book, gaussian(0.1))
    charge(book, split([gaussian(0.15)], [pick(0.1)]))
    assert book.history().spent[""] == pytest.approx(
        accounting.epsilon_of([gaussian(math.hypot(0.1, 0.15))], 0.99 * DELTA), rel=1e-9
    )
    with pytest.raises(PrivacyParameterError, match="one with epsilon"):
        reserve(book, split([gaussian(0.1)], [pick(0.9)]))


def test_each_event_of_a_split_is_drawn_once(book, monkeypatch):
    mechanism = calibrate(
        epsilon=0.9, delta=DELTA, relation=RELATION, beside=[pick(0.2)], apart=[pick(0.2)], **SHAPE
    )

    def choose(paid: ledger.Reservation, range_: float = 0.2) -> None:
        scores = np.array([0, 5, 9])
        choice.exponential_mechanism(scores, sensitivity=9, range_=range_, charge=paid.charge)

    with reserve(book, *mechanism.events) as paid:
        with pytest.raises(InternalError, match="not the one that was reserved"):
            choose(paid, 0.3)
        choose(paid)
        mechanism.release([None] * 100, charge=paid.charge)
        choose(paid)  # the like one of the other group
        monkeypatch.setattr(choice, "_noisy_max", lambda *_: pytest.fail("drawn"))
        with pytest.raises(LedgerError, match="one reservation allows one charge"):
            choose(paid)


def test_a_split_that_cannot_be_used_is_not_booked(book):
    for bad in (split([gaussian(0.1)], [pick(0.0)]), ParallelEvent(())):
        with pytest.raises(PrivacyParameterError, match="must be positive"):
            reserve(book, bad)
    with pytest.raises(PrivacyParameterError, match="asks for inf"):
        reserve(book, split([gaussian(0.1)], []))
    charge(book, split([gaussian(0.1)], [pick(0.25)]))
    book.path.write_bytes(book.path.read_bytes().replace(b": 0.25", b": 0.15"))
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.open(book.path)
