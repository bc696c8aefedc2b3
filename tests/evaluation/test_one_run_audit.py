"""The one-run audit on real builds, with and without planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from dpmtv.errors import PrivacyParameterError
from dpmtv.evaluation.one_run_audit import audit_one_run, canary_rows
from dpmtv.privacy import mechanisms
from dpmtv.privacy.sensitivity import NeighbourRelation

SAMPLER = mechanisms._discrete_gaussian


@pytest.mark.parametrize("relation", NeighbourRelation)
def test_a_real_build_keeps_its_certificate_and_shows_the_coins(relation):
    found = audit_one_run(relation=relation, epsilon=8.0, canaries=400)
    assert not found.violation
    assert found.bounds.coins == 400
    assert found.claim.mu == pytest.approx(1.666, abs=1e-3)
    reach = 0.5 if relation is NeighbourRelation.ADD_REMOVE else 1.0
    assert found.mu_estimate == pytest.approx(reach * found.claim.mu, abs=0.45)
    assert found.bounds.mu_low > 0


@pytest.mark.parametrize("relation", NeighbourRelation)
def test_a_build_without_noise_is_found(relation, monkeypatch):
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda values, scale: values)
    found = audit_one_run(relation=relation, epsilon=1.0, canaries=200)
    assert found.violation


def test_a_quarter_of_the_noise_is_found(monkeypatch):
    monkeypatch.setattr(
        mechanisms, "_discrete_gaussian", lambda values, scale: SAMPLER(values, scale // 4)
    )
    assert audit_one_run(epsilon=1.0, canaries=2000).violation


def test_one_coin_changes_the_rows_of_one_person():
    for relation in NeighbourRelation:
        coins = np.array([True, False, True])
        rows, options, words = canary_rows(relation, coins)
        assert words.startswith(str(relation))
        for place in range(3):
            turned = coins.copy()
            turned[place] = not turned[place]
            others = canary_rows(relation, turned)
            assert others[1] == options
            kept = [[r for r in some if int(r.unit) != place] for some in (rows, others[0])]
            assert kept[0] == kept[1]
    with pytest.raises(PrivacyParameterError, match="choose one of"):
        canary_rows("add_one", coins)
