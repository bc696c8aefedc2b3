"""Shared fixtures: the embedded model and data, and a small random model of the same family."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.adapters import VisionLanguageModel, load_model

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes: a thread each, also for their children
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


@pytest.fixture(scope="session")
def model(_quiet: None) -> VisionLanguageModel:
    return load_model("embedded", max_new_tokens=6)


@pytest.fixture(scope="session")
def random_model(model: VisionLanguageModel) -> VisionLanguageModel:
    """Same family and processor, random weights: every head matters a little everywhere."""
    torch.manual_seed(0)
    fresh = type(model.model)(model.model.config).float()
    fresh.generation_config = model.model.generation_config
    return VisionLanguageModel(fresh, model.processor, weights_sha256="0" * 64, max_new_tokens=4)


@pytest.fixture
def data() -> Path:
    return EMBEDDED_DATA


@pytest.fixture
def picture() -> Image.Image:
    rng = np.random.default_rng(3)
    return Image.fromarray(rng.integers(0, 256, (48, 80, 3), dtype=np.uint8))
