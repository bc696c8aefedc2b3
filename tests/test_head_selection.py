from __future__ import annotations

import numpy as np

from dpmtv.head_selection import reinforce


class Fake:
    """Losses that fall by one for each good head and rise by one for each harmful one."""

    def __init__(self, worth: np.ndarray, noise: float = 0.0) -> None:
        self.worth, self.noise = worth, noise
        self.rng = np.random.default_rng(1)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 5

    def __call__(self, masks: np.ndarray, example: int) -> np.ndarray:
        self.seen.append(example)
        return -(masks @ self.worth) + self.rng.normal(0, self.noise, len(masks))


def test_finds_the_heads_that_lower_the_loss():
    worth = np.array([1.0, -1.0] * 12)
    for noise in (0.0, 1.0):
        found = reinforce(Fake(worth, noise), 24, steps=150)
        assert np.array_equal(found.heads, worth > 0)
        assert found.losses[-20:].mean() < found.losses[:20].mean() - 5


def test_scale_and_shift_of_the_loss_do_not_matter():
    worth = np.array([1.0, -0.5, 0.25, -2.0])
    plain = reinforce(Fake(worth), 4, steps=60)

    class Scaled(Fake):
        def __call__(self, masks, example):
            return 1000 * super().__call__(masks, example) + 77

    assert np.allclose(
        plain.probabilities, reinforce(Scaled(worth), 4, steps=60).probabilities, atol=1e-6
    )


def test_every_example_is_used_evenly_and_the_search_repeats():
    fake = Fake(np.ones(3))
    first = reinforce(fake, 3, steps=25, seed=4)
    assert np.bincount(fake.seen).tolist() == [5] * 5
    assert np.array_equal(
        first.probabilities, reinforce(Fake(np.ones(3)), 3, steps=25, seed=4).probabilities
    )


def test_never_returns_an_empty_mask():
    found = reinforce(Fake(np.array([-1.0, -2.0, -3.0])), 3, steps=100)
    assert found.heads.sum() == 1


def test_reports_progress():
    seen = []
    reinforce(Fake(np.ones(2)), 2, steps=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
