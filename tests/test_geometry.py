from __future__ import annotations

import numpy as np
import pytest

from dpmtv.errors import PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry, geometry_from_public
from dpmtv.types import HeadLayout

RAGGED = HeadLayout(heads=(2, 3, 1), head_dims=(4, 2, 5))


def test_layout_counts():
    assert (RAGGED.layers, RAGGED.n_heads, RAGGED.size) == (3, 6, 19)
    assert RAGGED.widths == (8, 6, 5)
    mask = np.array([0, 1, 1, 0, 0, 1], bool)
    assert np.flatnonzero(RAGGED.coordinates(mask)).tolist() == [
        4,
        5,
        6,
        7,
        8,
        9,
        14,
        15,
        16,
        17,
        18,
    ]
    assert [part.tolist() for part in RAGGED.split(mask)] == [[0, 1], [1, 0, 0], [1]]
    assert [len(part) for part in RAGGED.split(np.zeros((2, 19)).T[:, 0])] == [8, 6, 5]


def test_round_trip_keeps_released_heads_and_zeroes_the_rest():
    mask = np.array([0, 1, 0, 0, 0, 1], bool)
    geometry = ReleaseGeometry(RAGGED, mask, (2.5, 2.5))
    assert geometry.block_sizes == (4, 5), "the middle layer releases nothing"
    values = np.arange(1.0, 20.0)
    there = geometry.to_release(values)
    assert there.tolist() == [5, 6, 7, 8, 15, 16, 17, 18, 19]
    back = geometry.from_release(there)
    kept = RAGGED.coordinates(mask)
    assert np.array_equal(back[kept], values[kept])
    assert not back[~kept].any()


def test_public_clip_norms_are_layer_medians_of_released_coordinates():
    rng = np.random.default_rng(0)
    activations = rng.normal(size=(7, 19))
    mask = np.array([1, 0, 0, 1, 1, 0], bool)
    geometry = geometry_from_public(RAGGED, mask, activations, factor=2.0, per_layer=True)
    expected = [
        2 * np.median(np.linalg.norm(activations[:, 0:4], axis=1)),
        2 * np.median(np.linalg.norm(activations[:, 10:14], axis=1)),
    ]
    assert np.allclose(geometry.clip_norms, expected)


def test_one_clip_norm_is_for_all_released_coordinates_together():
    rng = np.random.default_rng(1)
    activations, centre = rng.normal(size=(7, 19)), rng.normal(size=19)
    mask = np.array([1, 0, 0, 1, 1, 0], bool)
    geometry = geometry_from_public(RAGGED, mask, activations, factor=0.5, centre=centre)
    assert geometry.block_sizes == (8,)
    kept = RAGGED.coordinates(mask)
    norms = np.linalg.norm((activations - centre)[:, kept], axis=1)
    assert geometry.clip_norms == (pytest.approx(0.5 * np.median(norms)),)


def test_a_centre_is_taken_off_and_put_back_where_heads_are_released():
    centre = np.linspace(-1, 1, 19)
    mask = np.array([0, 1, 0, 0, 0, 1], bool)
    geometry = ReleaseGeometry(RAGGED, mask, (1.0,), centre)
    values = np.arange(1.0, 20.0)
    kept = RAGGED.coordinates(mask)
    assert geometry.to_release(values).tolist() == (values - centre)[kept].tolist()
    assert np.allclose(
        geometry.from_release(geometry.to_release(values)), np.where(kept, values, 0)
    )
    null = geometry.from_release(np.zeros(9))
    assert np.array_equal(null, np.where(kept, centre, 0)), "a null chunk counts as the centre"


def test_weights_are_multiplied_before_and_divided_out_after_and_gains_are_applied():
    centre = np.linspace(-1, 1, 19)
    mask = np.array([0, 1, 0, 0, 0, 1], bool)
    weights, gains = np.array([9, 2.0, 9, 9, 9, 0.5]), np.array([7, 3.0, 7, 7, 7, 1.0])
    geometry = ReleaseGeometry(RAGGED, mask, (1.0,), centre, weights, gains)
    kept = RAGGED.coordinates(mask)
    values = np.arange(1.0, 20.0)
    there = geometry.to_release(values)
    factors = np.repeat([2.0, 0.5], [4, 5])
    assert np.allclose(there, (values - centre)[kept] * factors)
    want = centre[kept] + (values - centre)[kept] * np.repeat([3.0, 1.0], [4, 5])
    assert np.allclose(geometry.from_release(there)[kept], want)
    null = geometry.from_release(np.zeros(kept.sum()))
    assert np.array_equal(null, np.where(kept, centre, 0)), "a null chunk counts as the centre"


def test_every_part_of_a_geometry_is_in_its_hash():
    mask = np.array([0, 1, 0, 0, 0, 1], bool)
    ones, flat = np.ones(6), np.ones(19)
    made = [
        ReleaseGeometry(RAGGED, mask, (1.0,)),
        ReleaseGeometry(RAGGED, ~mask, (1.0,)),
        ReleaseGeometry(RAGGED, mask, (2.0,)),
        ReleaseGeometry(RAGGED, mask, (1.0,), flat),
        ReleaseGeometry(RAGGED, mask, (1.0,), 2 * flat),
        ReleaseGeometry(RAGGED, mask, (1.0,), flat, ones),
        ReleaseGeometry(RAGGED, mask, (1.0,), flat, ones, ones),
        ReleaseGeometry(RAGGED, mask, (1.0,), flat, None, ones),
    ]
    assert len({geometry.sha256 for geometry in made}) == len(made)


def test_a_weight_of_zero_is_refused():
    with pytest.raises(PrivacyParameterError, match="weight"):
        ReleaseGeometry(RAGGED, np.ones(6, bool), (1.0,), None, np.zeros(6))


def test_nothing_to_release_is_refused():
    with pytest.raises(PrivacyParameterError, match="no head"):
        ReleaseGeometry(RAGGED, np.zeros(6, bool), (1.0,))
    with pytest.raises(PrivacyParameterError, match="one each"):
        ReleaseGeometry(RAGGED, np.ones(6, bool), (1.0, 2.0))
    with pytest.raises(PrivacyParameterError, match="clip"):
        geometry_from_public(RAGGED, np.ones(6, bool), np.zeros((3, 19)), 1.0)
