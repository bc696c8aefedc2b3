"""Train the embedded model: vision, then reading demonstrations, then reading an injected mean.

Each stage saves a checkpoint under the work folder and is skipped when its checkpoint is there:
clear the folder after changing the recipe. The second and third also save every 250 steps, so that
an interrupted run goes on, with newly drawn data and without the rules that were to be asked again.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from conventions import CLASSES, CONVENTIONS
from pictures import Picture, augment, to_model
from scaffolds import Binder, Scaffold
from sequences import SHARED, Rule, RuleSource, Sequences
from words import DEV_HELD_OUT


def schedule(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 60 steps, then a cosine down to 3 % of the peak."""
    warm = min(1.0, (step + 1) / 60)
    return peak * warm * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps)))


# --- stage 1: vision -----------------------------------------------------------------------


def train_vision(
    model: nn.Module, splits: dict[str, list[Picture]], steps: int, work: Path, seed: int
) -> None:
    """Supervised on digit, colour and shape; the tower is frozen afterwards."""
    done = work / "vision.pt"
    tower = model.model.vision_model
    if done.exists():
        tower.load_state_dict(torch.load(done))
        return
    rng = np.random.default_rng(seed + 1)
    torch.manual_seed(seed + 1)
    heads = nn.ModuleDict({"digit": nn.Linear(64, 10), "color": nn.Linear(64, 8)})
    heads["shape"] = nn.Linear(64, 3)
    parameters = [*tower.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.05, betas=(0.9, 0.98))
    train = splits["train"]
    by_source = [[p for p in train if p.source == s] for s in ("digits", "shapes")]

    def logits(pixels: np.ndarray) -> dict[str, Tensor]:
        batch = torch.from_numpy(to_model(pixels))
        patches = torch.ones(len(batch), 8, 8, dtype=torch.bool)
        features = tower(pixel_values=batch, patch_attention_mask=patches).last_hidden_state
        return {name: head(features.mean(1)) for name, head in heads.items()}

    def scores(pictures: list[Picture], out: dict[str, Tensor]) -> dict[str, tuple[Tensor, float]]:
        result = {}
        for name, values in out.items():
            rows = [i for i, p in enumerate(pictures) if getattr(p, name) is not None]
            target = torch.tensor([getattr(pictures[i], name) for i in rows])
            picked = values[rows]
            loss = nn.functional.cross_entropy(picked, target)
            result[name] = (loss, (picked.argmax(1) == target).float().mean().item())
        return result

    started = time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, 2e-3)
        pictures = [by_source[i % 2][rng.integers(len(by_source[i % 2]))] for i in range(96)]
        got = scores(pictures, logits(np.stack([augment(p, rng) for p in pictures])))
        optimizer.zero_grad()
        sum(loss for loss, _ in got.values()).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 100 == 99:
            with torch.no_grad():
                dev = scores(splits["dev"], logits(np.stack([p.pixels for p in splits["dev"]])))
            figures = {name: round(accuracy, 3) for name, (_, accuracy) in dev.items()}
            log(work, stage="vision", step=step + 1, seconds=time.time() - started, dev=figures)
    torch.save(tower.state_dict(), done)


@torch.no_grad()
def cache_features(model: nn.Module, pictures: list[Picture], copies: int, seed: int) -> Tensor:
    """Tower outputs of the pictures, [copies, pictures, 64 patches, 64]; copy 0 is unchanged."""
    rng = np.random.default_rng(seed)
    result = []
    for copy in range(copies):
        pixels = [p.pixels if copy == 0 else augment(p, rng) for p in pictures]
        parts = []
        for start in range(0, len(pixels), 200):
            batch = torch.from_numpy(to_model(np.stack(pixels[start : start + 200])))
            patches = torch.ones(len(batch), 8, 8, dtype=torch.bool)
            out = model.model.vision_model(pixel_values=batch, patch_attention_mask=patches)
            parts.append(out.last_hidden_state.half())
        result.append(torch.cat(parts))
    return torch.stack(result)


def embed(model: nn.Module, batch: dict, image_id: int) -> Tensor:
    """Token embeddings with the connector's picture tokens in place."""
    embeds = model.model.text_model.embed_tokens(batch["ids"])
    if batch["features"] is None:
        return embeds
    pictures = model.model.connector(batch["features"])
    mask = (batch["ids"] == image_id)[..., None].expand_as(embeds)
    return embeds.masked_scatter(mask, pictures.reshape(-1))  # rows in the order shown


def answer_loss(model: nn.Module, hidden: Tensor, batch: dict) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of all answer tokens, and hits at every wanted token."""
    rows = batch["want"] != -100
    logits = model.lm_head(hidden[rows])
    want, weight = batch["want"][rows], batch["weight"][rows]
    losses = nn.functional.cross_entropy(logits, want, reduction="none")
    hits = torch.full(batch["want"].shape, -1)
    hits[rows] = (logits.argmax(-1) == want).long()
    return (losses * weight).sum() / weight.sum(), hits


FIRST_TASK_LAYER = 2

# --- stages 2 and 3: text ------------------------------------------------------------------


class Patcher:
    """Records or replaces the inputs of the attention output projections of the text model."""

    def __init__(self, text_model: nn.Module):
        self.records: list[Tensor] = []
        self.values: Tensor | None = None  # [layers, rows, width]
        self.where: Tensor | None = None  # bool [rows, tokens]
        self.heads: Tensor | None = None  # bool [layers, width]
        self.colon: Tensor | None = None  # [rows]: record here
        for index, layer in enumerate(text_model.layers):
            layer.self_attn.o_proj.register_forward_pre_hook(self._hook(index))

    def _hook(self, index: int):
        def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
            (x,) = args
            if self.colon is not None:
                self.records.append(x[torch.arange(len(x)), self.colon])
            if self.values is None:
                return None
            swap = self.where[..., None] & self.heads[index]
            return (torch.where(swap, self.values[index][:, None], x),)

        return hook


@dataclass
class Stage:
    """One stage of the text model's training."""

    name: str
    steps: int
    peak: float
    shares: dict[str, float]  # kinds of sequences in context
    records: int  # in context, a step
    injected: dict[str, float] | None = None  # kinds of rules whose mean is injected


EARLY = {
    "fixed": 0.2,
    "turned": 0.1,
    "random": 0.33,
    "swapped": 0.05,
    "styled": 0.1,
    "mixed": 0.04,
    "dictionary": 0.18,
}
READING = {
    "fixed": 0.18,
    "turned": 0.12,
    "random": 0.25,
    "swapped": 0.07,
    "styled": 0.12,
    "mixed": 0.06,
    "dictionary": 0.2,
}


INJECTED = {
    "fixed": 0.15,
    "turned": 0.12,
    "random": 0.5,
    "swapped": 0.15,
    "styled": 0.02,
    "mixed": 0.04,
    "dictionary": 0.02,
}
# Chunks injected in a step. They are of many rules: with eight rules a step the decoding of a mean
# was memorised, and did not carry over to other rules. RECENT rules are kept from the last steps,
# and AGAIN of them are asked again.
MANY, RECENT, AGAIN = 64, 240, 96
STAGES = (
    Stage("text", 1800, 2e-3, EARLY, 160),
    Stage("bind", 2200, 1e-3, READING, 90, INJECTED),
)


def train_text(
    model: nn.Module,
    tokenizer: object,
    pictures: list[Picture],
    features: Tensor,
    dev: tuple[list[Picture], Tensor],
    work: Path,
    stage: Stage,
    seed: int,
    scaffold: Scaffold,
    patcher: Patcher,
) -> None:
    """Answer loss on every answer that can be known; with ``injected`` also under a mean."""
    done, part = work / f"{stage.name}.pt", work / f"{stage.name}.part.pt"
    if done.exists():
        saved = torch.load(done)
        model.load_state_dict(saved["model"])
        scaffold.readers.load_state_dict(saved["readers"])
        scaffold.maps.data.copy_(saved["maps"])
        return
    torch.manual_seed(seed)
    model.model.vision_model.requires_grad_(False)
    text = model.model.text_model
    parameters = [p for p in model.parameters() if p.requires_grad]
    binder = Binder(text.layers[0].self_attn.o_proj.in_features)
    parameters += scaffold.readers.parameters()
    maps = [scaffold.maps, *binder.parameters()]  # they begin in the middle: let them catch up
    groups = [
        {"params": parameters, "times": 1.0},
        {"params": maps, "times": 4.0 if stage.injected else 1.0},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.05, betas=(0.9, 0.98))
    start, before = 0, 0.0
    if part.exists():
        saved = torch.load(part)
        model.load_state_dict(saved["model"])
        scaffold.readers.load_state_dict(saved["readers"])
        scaffold.maps.data.copy_(saved["maps"])
        binder.load_state_dict(saved["binder"])
        optimizer.load_state_dict(saved["optimizer"])
        start, before = saved["step"], saved["seconds"]
    data = Sequences(tokenizer, pictures, features, seed=1000 * seed + start + len(stage.name))
    rules = RuleSource(data.rng)
    recent: list[tuple[Rule, Tensor]] = []
    started, window = time.time() - before, {}

    def note(name: str, value: float) -> None:
        window.setdefault(name, []).append(value)

    for step in range(start, stage.steps):
        done_share = step / stage.steps
        fade = 0.1 if stage.injected else max(0.1, 1 - done_share / 0.7)
        # It begins after a fifth of the text stage; in the last one it fades to a tenth between 30
        # and 75 % of the steps.
        bind = max(0.1, min(1.0, 1.6 - 2 * done_share))
        bind = bind if stage.injected else min(0.3, max(0.0, done_share - 0.2))
        data.one_question = 0.0 if stage.injected else max(0.0, 0.9 * (1 - done_share / 0.6))
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, stage.steps, stage.peak) * group["times"]
        optimizer.zero_grad()
        length = int(data.rng.integers(3, 10))
        batch = data.batch(rules.draw(stage.records // length, stage.shares), length)
        scaffold.on = True
        hidden = text(inputs_embeds=embed(model, batch, data.image), use_cache=False)
        scaffold.on = False
        loss, hits = answer_loss(model, hidden.last_hidden_state, batch)
        extra = scaffold.losses(batch, model.lm_head.weight)
        helped = fade * (0.5 * extra["class"] + 0.3 * extra["look"])
        helped = helped + bind * (1.5 * extra["bound"] + 0.1 * extra["gather"])
        (loss + helped).backward()
        last = [hits[r, f[-1]].item() for r, f in enumerate(batch["firsts"]) if f[-1] >= 0]
        note("loss", loss.item())
        for name, value in extra.items():
            note(f"{name}_loss", value.item())
        note("last_record", float(np.mean(last)))
        if step % 4 == 0:  # the true words listed in the question, no demonstration
            listed = data.batch(
                rules.draw(24, {"fixed": 0.7, "random": 0.15, "swapped": 0.15}), 1, options=True
            )
            out = text(inputs_embeds=embed(model, listed, data.image), use_cache=False)
            loss, _ = answer_loss(model, out.last_hidden_state, listed)
            (0.5 * loss).backward()
            note("listed", loss.item())
        if stage.injected:
            # Few heads change sides at first, so that the mapping is learned; more in the end.
            loose = min(1.0, max(0.2, (done_share - 0.6) / 0.3))
            heads = task_heads(model, data.rng, loose)
            every = bool(data.rng.random() < 0.5)
            chunks = int(data.rng.choice([2, 4, 6], p=[0.5, 0.3, 0.2]))
            count = MANY // chunks
            drawn = [replace(r, noise=0.0) for r in rules.draw(count, stage.injected)]
            means = chunk_means(model, data, patcher, drawn, chunks)
            tools = (heads, every, 96 // count)
            loss, right = under_means(model, data, patcher, drawn, means, *tools)
            read = binder.loss(means, drawn, data, model.lm_head.weight)
            (loss + bind * read).backward()
            names = [r.parts[0].name if r.parts else "" for r in drawn]
            new = [i for i, n in enumerate(names) if n in ("random", "swapped") or "turned" in n]
            note("injected", loss.item())
            note("binder", read.item())
            note(f"injected_right_{'every' if every else 'prompt'}", right.float().mean().item())
            if new:
                note("new_right", right[new].float().mean().item())
            if recent:  # the same again with rules of the last steps, for their decoding alone
                picked = [recent[i] for i in data.rng.integers(len(recent), size=AGAIN)]
                again = torch.stack([mean for _, mean in picked], 1)
                tools = (heads, every, 2)
                loss, _ = under_means(model, data, patcher, [r for r, _ in picked], again, *tools)
                loss.backward()
                note("again", loss.item())
            recent.extend((drawn[i], means[:, i].detach()) for i in new)
            del recent[:-RECENT]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 50 == 49:
            figures = {k: round(float(np.mean(v)), 4) for k, v in window.items()}
            log(work, stage=stage.name, step=step + 1, seconds=time.time() - started, **figures)
            window.clear()
        if step % 250 == 249 or step + 1 == stage.steps:
            state = {"model": model.state_dict(), "readers": scaffold.readers.state_dict()}
            state |= {"binder": binder.state_dict(), "maps": scaffold.maps.detach()}
            state |= {"optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save({**state, "seconds": time.time() - started}, part)
            figures = dev_accuracy(model, tokenizer, patcher, *dev)
            log(work, stage=stage.name, step=step + 1, dev=figures)
    state = {"model": model.state_dict(), "readers": scaffold.readers.state_dict()}
    torch.save({**state, "maps": scaffold.maps.detach()}, done)


def chunk_means(
    model: nn.Module,
    data: Sequences,
    patcher: Patcher,
    rules: list[Rule],
    chunks: int,
    length: int | None = None,
) -> Tensor:
    """Mean over each rule's chunks of what every head sends on, [layers, rules, width].

    ``length`` records a chunk, two to six by default; gradients go through.
    """
    length = length or int(data.rng.integers(2, 7))
    shown = data.batch([r for r in rules for _ in range(chunks)], length, last_only=True)
    patcher.records, patcher.colon = [], shown["colon"][:, -1]
    model.model.text_model(inputs_embeds=embed(model, shown, data.image), use_cache=False)
    means = torch.stack(patcher.records).unflatten(1, (len(rules), chunks)).mean(2)
    patcher.records, patcher.colon = [], None
    return means


def under_means(
    model: nn.Module,
    data: Sequences,
    patcher: Patcher,
    rules: list[Rule],
    means: Tensor,
    heads: Tensor,
    every: bool,
    queries: int,
) -> tuple[Tensor, Tensor]:
    """Zero-shot prompts under their rule's mean: answer loss, whole-answer hits [rules, queries].

    Patched at the prompt's last token, or (``every``) there and at every answer token, so that
    answers end rightly in both modes. ``heads`` bool [layers, 8].
    """
    asked = data.batch([r for r in rules for _ in range(queries)], 1, ask_all=True)
    position = torch.arange(asked["ids"].shape[1])[None]
    patcher.values = means.repeat_interleave(queries, dim=1)
    patcher.where = (position >= asked["colon"]) if every else (position == asked["colon"])
    patcher.heads = heads.repeat_interleave(means.shape[2] // 8, dim=1)
    hidden = model.model.text_model(inputs_embeds=embed(model, asked, data.image), use_cache=False)
    patcher.values = None
    loss, hits = answer_loss(model, hidden.last_hidden_state, asked)
    return loss, ((hits == 1) | (hits == -1)).all(1).view(len(rules), queries)


def task_heads(model: nn.Module, rng: np.random.Generator, loose: float) -> Tensor:
    """Heads to patch, bool [layers, 8]: those of all layers but the first two, more or less.

    In these two a demonstration's answer does not know its class yet, and the query reads its
    picture. At ``loose`` 1 all but 15 % of the others are patched, and 10 % of these.
    """
    task = np.arange(len(model.model.text_model.layers))[:, None] >= FIRST_TASK_LAYER
    share = np.where(task, 1 - 0.15 * loose, 0.1 * loose)
    return torch.from_numpy(rng.random((len(share), 8)) < share)


@torch.no_grad()
def dev_accuracy(
    model: nn.Module,
    tokenizer: object,
    patcher: Patcher,
    pictures: list[Picture],
    features: Tensor,
) -> dict[str, dict[str, float]]:
    """Whole answers on unseen pictures: 0-shot, 4-shot, and a vector in both patch modes."""
    data = Sequences(tokenizer, pictures, features, seed=5)
    usual = RuleSource(data.rng)
    rare = RuleSource(data.rng, image_words=DEV_HELD_OUT)
    kinds = {
        "fixed": [Rule((c,), known=True) for c in CONVENTIONS[::2]],
        "turned": [Rule((c,), known=True) for c in SHARED if CLASSES[c.family] >= 8],
        "pairs": [usual.random() for _ in range(40)],
        "words": [rare.random() for _ in range(40)],
        "styled": [rare.styled() for _ in range(20)],
        "mixed": [usual.mixed() for _ in range(20)],
    }
    heads = task_heads(model, data.rng, 0.0)
    result = {}
    for kind, rules in kinds.items():
        scores: dict[str, list[float]] = {}
        for start in range(0, len(rules), 10):
            some = rules[start : start + 10]
            batch = data.batch([r for r in some for _ in range(3)], 5, ask_all=True)
            hidden = model.model.text_model(
                inputs_embeds=embed(model, batch, data.image), use_cache=False
            )
            _, hits = answer_loss(model, hidden.last_hidden_state, batch)
            for shots in (0, 4):
                for row, colon in enumerate(batch["colon"].tolist()):
                    stop = colon[shots + 1] if shots < 4 else None
                    wanted = hits[row, colon[shots] : stop]
                    right = bool(((wanted == 1) | (wanted == -1)).all())
                    scores.setdefault(f"{shots}-shot", []).append(right)
            for every in (False, True):
                means = chunk_means(model, data, patcher, some, 8, 5)
                _, right = under_means(model, data, patcher, some, means, heads, every, 8)
                name = "vector, every step" if every else "vector, prompt"
                scores.setdefault(name, []).extend(right.flatten().tolist())
        result[kind] = {k: round(float(np.mean(v)), 3) for k, v in scores.items()}
    return result


def log(work: Path, **values: object) -> None:
    """One JSON line to the screen and to log.jsonl."""
    line = json.dumps({k: round(v, 2) if k == "seconds" else v for k, v in values.items()})
    print(line, flush=True)
    with (work / "log.jsonl").open("a") as file:
        file.write(line + "\n")
