"""Checks of what a whole build does besides moving little: noise, payment, and what it tells.

Each draws its own data and asserts. tests/test_planted_faults.py runs them on the code as it is and
on code with a fault in it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from scipy.stats import chi2
from tests.neighbours import (
    BIG_ADDED,
    BIG_UNIT,
    CODES,
    RECORD,
    Adversary,
    builder,
    draw_row,
)

import dpmtv.data
import dpmtv.privacy
from dpmtv import cli, pipeline
from dpmtv.errors import ArtifactError
from dpmtv.privacy import accounting, certificate, ledger, mechanisms
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Demonstration, HeadLayout


class Wide(Adversary):
    """Enough coordinates to measure noise on, and nothing below it."""

    layout = HeadLayout((12,), (64,))
    identity = replace(Adversary.identity, heads=(12,), head_dims=(64,))

    def last_token_heads(self, prompt):
        return np.zeros(self.layout.size)


def noisy(**options):
    """A real build with real noise, without anything else in the vector."""
    rows = [Demonstration("any.png", "1", "a") for _ in range(24)]
    settings = {"epsilon": 1.0, "delta": 1e-5, "selection": "all", "clip": 1.0, "shots": 2}
    return pipeline.build_task_vector(Wide(), rows, **settings | options)


def check_noise_size() -> None:
    """Chi-square of the released noise against the certificate, at a false alarm of 1e-6."""
    vector = noisy()
    (event,) = vector.certificate.privacy.events
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(vector.values))
    statistic = float(np.square(vector.values.astype(float) / event.sigma).sum())
    assert low < statistic < high, "the noise is not of the certified size"


def check_fresh_noise() -> None:
    """No seed of any library makes two builds alike."""
    seeds = random.seed, np.random.seed, torch.manual_seed
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        values = []
        for _ in range(2):
            for seed in seeds:
                seed(1)
            values.append(noisy().values)
    finally:
        for restore, state in zip(
            (random.setstate, np.random.set_state, torch.set_rng_state), states, strict=True
        ):
            restore(state)
    assert (values[0] != values[1]).all(), "the noise can be drawn again"


def check_no_seed() -> None:
    """Nothing on the way from records to vector takes a seed, nor does the command."""
    functions = [pipeline.build_task_vector]
    for package in (dpmtv.privacy, dpmtv.data):
        for found in pkgutil.iter_modules(package.__path__):
            if found.name == "synthetic":  # draws public pictures
                continue
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            for _, item in inspect.getmembers(module):
                inside = inspect.getmembers(item) if inspect.isclass(item) else [("", item)]
                functions += [f for _, f in inside if inspect.isfunction(f)]
    names = {name for f in functions for name in inspect.signature(f).parameters}
    assert {"charge", "epsilon", "key"} <= names, "the check sees too little"
    build = typer.main.get_command(cli.app).commands["build"]
    names |= {str(p.name) for p in build.params} | {o for p in build.params for o in p.opts}
    words = ("seed", "rng", "random", "generator", "entropy")
    assert not [n for n in names if any(w in n.lower() for w in words)], "a seed is accepted"


def check_charge() -> None:
    """A real ledger has the charge on disk when the noise is drawn, and the release after it."""
    sampler, draws = mechanisms._discrete_gaussian, []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        book = Path(folder) / "book"

        def states() -> list[str]:
            return [entry.state for entry in ledger.history(book).entries]

        def watched(values, scale):
            assert states() == ["charged"], "noise before the charge"
            draws.append(scale)
            return sampler(values, scale)

        patch.setattr(mechanisms, "_discrete_gaussian", watched)
        terms = {
            "epsilon": 1.0,
            "delta": 1e-5,
            "unit": None,
            "relation": NeighbourRelation.REPLACE_ONE,
        }
        ledger.create(book, **terms)
        noisy(ledger=book)
        assert states() == ["released"]
    assert len(draws) == 1


def check_bad_numbers() -> None:
    """One number that is not finite makes its chunk null, whole."""
    with builder(RECORD) as build:
        for code in (8, 16, 40, 48):  # three rows of one of these codes lead to such an answer
            assert not np.isfinite(Adversary.table[9 * code % CODES]).all()
            rows = [Demonstration("any.png", f"{code} {i}", "a") for i in range(27)]
            total = build([[row] for row in rows], rows, b"key").total
            assert not total.any(), "a chunk with a bad number counts"


def check_places() -> None:
    """The same file with other content: the same places serve, bad rows among them."""
    for case in (BIG_UNIT, BIG_ADDED):
        rng, served = random.Random(2), []  # test data
        with builder(case) as build:
            for _ in range(20):
                units = [[draw_row(rng, f"unit {i}") for _ in range(7)] for i in range(18)]
                place = {
                    id(row): (u, i) for u, unit in enumerate(units) for i, row in enumerate(unit)
                }
                chunks = build(units, [row for unit in units for row in unit], b"key").places
                served.append([[place[row] for row in chunk] for chunk in chunks])
        assert all(chunks == served[0] for chunks in served), "content decides which rows serve"


def check_public_numbers() -> None:
    """The certificate is the same whatever the records are and, under add_remove, their number."""
    for relation, counts in (("replace_one", (24, 24)), ("add_remove", (0, 1, 8, 9, 16, 50))):
        seen = set()
        declared = {"unit": "patient", "population": 24} if relation == "add_remove" else {}
        for count in counts:
            rng = random.Random(count + len(seen))  # test data
            named = f"unit {rng.random()}" if declared else None
            rows = [draw_row(rng, named and f"{named} {i}") for i in range(count)]
            vector = pipeline.build_task_vector(
                Adversary(),
                rows,
                epsilon=1.0,
                delta=1e-5,
                selection="all",
                clip=1.0,
                shots=2,
                relation=relation,
                **declared,
            )
            seen.add(replace(vector.certificate, tensor_sha256="0" * 64))
        assert len(seen) == 1, "the certificate tells of the records"


def check_verify() -> None:
    """A certificate that states another ε than its noise is worth, less or more, is refused.

    Rényi accounting gives other figures, see test_planted_faults.py.
    """
    honest = noisy().certificate
    certificate.verify(honest, honest.tensor_sha256)
    for epsilon in (0.5, 0.999, 1.001, 1.0926):
        with pytest.raises(ArtifactError, match="epsilon"):
            restate(honest, epsilon)


def restate(honest: certificate.Certificate, epsilon: float) -> None:
    """Verify the certificate with another ε, everything that follows from ε included."""
    (event,) = honest.privacy.events
    slack = accounting.discreteness_slack(epsilon, event.d, event.scale)
    claim = replace(honest, privacy=replace(honest.privacy, epsilon=epsilon, slack=slack))
    certificate.verify(claim, claim.tensor_sha256)
