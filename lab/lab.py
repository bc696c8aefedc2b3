import json, sys, time, os
import numpy as np, torch
from pathlib import Path
from PIL import Image
torch.set_num_threads(1)
import dpmtv
from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.metrics import exact_match
from dpmtv.models.hooks import record_heads
from dpmtv.types import Prompt, Query
from dpmtv.pipeline import PublicTask, select_heads
from dpmtv.privacy.accounting import noise_multiplier
DATA = "src/dpmtv/embedded/data"
def load(folder):
    return dpmtv.load_model(folder)
@torch.inference_mode()
def acts(model, prompts, bs=128):
    """Batched (public data): [prompts, coordinates]"""
    out = []
    for s in range(0, len(prompts), bs):
        with record_heads(model.projections) as rec:
            model.forward(model.inputs(prompts[s:s+bs]), use_cache=False, logits_to_keep=1)
            out.append(np.concatenate([r.numpy() for r in rec], 1))
    return np.concatenate(out).astype(np.float32)
