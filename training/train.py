"""Train the embedded model: vision, then reading demonstrations, then reading an injected mean.

Each stage saves a checkpoint under the work folder and is skipped when its checkpoint is there;
the second and third also save every 250 steps, so that an interrupted run goes on.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from conventions import CONVENTIONS, QUESTIONS, Convention
from model import END, SPECIAL
from pictures import Picture, augment, to_model

AUGMENTATIONS = 8
CLASSES = {"digit": 0, "color": 10, "shape": 18, "presence": 21}  # first auxiliary class
N_CLASSES = 23
END_WEIGHT = 0.3
TASK_HEADS = 4  # heads 0-3 of each layer mostly carry the rule, the others mostly the picture


def schedule(step: int, steps: int, peak: float, floor: float = 0.03) -> float:
    """Linear warm-up over 60 steps, then a cosine down to ``floor`` of the peak."""
    warm = min(1.0, (step + 1) / 60)
    return peak * warm * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * step / steps)))


# --- stage 1: vision -----------------------------------------------------------------------


def train_vision(
    model: nn.Module, splits: dict[str, list[Picture]], steps: int, work: Path
) -> None:
    """Supervised on digit, colour and shape; the tower is frozen afterwards."""
    done = work / "vision.pt"
    tower = model.model.vision_model
    if done.exists():
        tower.load_state_dict(torch.load(done))
        return
    rng = np.random.default_rng(1)
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


# --- sequences -----------------------------------------------------------------------------


class Sequences:
    """Builds batches of interleaved demonstrations from cached picture features."""

    def __init__(self, tokenizer: object, pictures: list[Picture], features: Tensor, seed: int):
        self.rng = np.random.default_rng(seed)
        self.pictures, self.features = pictures, features
        ids = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
        self.bos, self.pad, self.end, self.image = (
            ids[k] for k in ("<bos>", "<pad>", END, "<image>")
        )
        fake, tag = ids["<fake_token_around_image>"], ids["<global-img>"]
        self.picture_ids = [fake, tag, *[self.image] * 4, fake]
        self.question_ids = {
            q: tokenizer(f"{q} Answer:").input_ids for qs in QUESTIONS.values() for q in qs
        }
        self.answer_ids = {a: tokenizer(f" {a}").input_ids for c in CONVENTIONS for a in c.answers}
        self.digits = [i for i, p in enumerate(pictures) if p.digit is not None]
        self.shapes = [i for i, p in enumerate(pictures) if p.shape is not None]
        self.by_shape = [[i for i in self.shapes if pictures[i].shape == s] for s in range(3)]
        self.one_question = 0.0  # share of presence questions that name the first shape

    def record(self, convention: Convention) -> tuple[int, str, int]:
        """A random picture of the family, a question, and the class asked for."""
        rng, family = self.rng, convention.family
        if family == "digit":
            index = self.digits[rng.integers(len(self.digits))]
            label = self.pictures[index].digit
        elif family == "presence":
            asked = 0 if rng.random() < self.one_question else int(rng.integers(3))
            label = int(rng.integers(2))
            shape = asked if label else int((asked + rng.integers(1, 3)) % 3)
            pool = self.by_shape[shape]
            return pool[rng.integers(len(pool))], QUESTIONS[family][asked], label
        else:
            index = self.shapes[rng.integers(len(self.shapes))]
            label = getattr(self.pictures[index], family)
        questions = QUESTIONS[family]
        return index, questions[rng.integers(len(questions))], label

    def batch(self, conventions: list[Convention], length: int, last_only: bool = False) -> dict:
        """One sequence per convention, each of ``length`` records of the same rule.

        With ``last_only`` the final record has no answer: a prompt that ends at "Answer:".
        """
        ids, wants, weights, colons, labels, shown, firsts = [], [], [], [], [], [], []
        for convention in conventions:
            row, want, weight, colon, label = [self.bos], [], [], [], []
            first = []
            for position in range(length):
                index, question, number = self.record(convention)
                shown.append(index)
                row += self.picture_ids + self.question_ids[question]
                colon.append(len(row) - 1)
                label.append(CLASSES[convention.family] + number)
                want += [-100] * (len(row) - len(want))
                weight += [0.0] * (len(row) - len(weight))
                if last_only and position == length - 1:
                    break
                answer = self.answer_ids[convention.answers[number]]
                first.append(len(row) - 1)
                want[-1], weight[-1] = answer[0], 1.0
                want += [*answer[1:], self.end]
                weight += [1.0] * (len(answer) - 1) + [END_WEIGHT]
                row += [*answer, self.end]
            want += [-100] * (len(row) - len(want))
            weight += [0.0] * (len(row) - len(weight))
            ids.append(row)
            wants.append(want)
            weights.append(weight)
            colons.append(colon)
            labels.append(label)
            firsts.append(first)
        width = max(map(len, ids))

        def padded(rows: list[list], fill: float) -> Tensor:
            return torch.tensor([r + [fill] * (width - len(r)) for r in rows])

        copies = self.rng.integers(len(self.features), size=len(shown))
        return {
            "ids": padded(ids, self.pad),
            "want": padded(wants, -100),
            "weight": padded(weights, 0.0),
            "colon": torch.tensor(colons),
            "label": torch.tensor(labels),
            "features": self.features[torch.from_numpy(copies), torch.tensor(shown)].float(),
            "firsts": firsts,
        }


def embed(model: nn.Module, batch: dict, image_id: int) -> Tensor:
    """Token embeddings with the connector's picture tokens in place."""
    embeds = model.model.text_model.embed_tokens(batch["ids"])
    pictures = model.model.connector(batch["features"])
    mask = (batch["ids"] == image_id)[..., None].expand_as(embeds)
    return embeds.masked_scatter(mask, pictures.reshape(-1))


def answer_loss(model: nn.Module, hidden: Tensor, batch: dict) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of all answer tokens, and hits at every wanted token."""
    rows = batch["want"] != -100
    logits = model.lm_head(hidden[rows])
    want, weight = batch["want"][rows], batch["weight"][rows]
    losses = nn.functional.cross_entropy(logits, want, reduction="none")
    hits = torch.full(batch["want"].shape, -1)
    hits[rows] = (logits.argmax(-1) == want).long()
    return (losses * weight).sum() / weight.sum(), hits


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


def train_text(
    model: nn.Module,
    tokenizer: object,
    pictures: list[Picture],
    features: Tensor,
    dev: tuple[list[Picture], Tensor],
    work: Path,
    stage: str,
    steps: int,
    peak: float,
    injected: bool,
) -> None:
    """Answer loss on every record of a sequence; with ``injected`` also under an injected mean."""
    done, part = work / f"{stage}.pt", work / f"{stage}.part.pt"
    if done.exists():
        model.load_state_dict(torch.load(done))
        return
    model.model.vision_model.requires_grad_(False)
    scaffold = nn.Linear(128, N_CLASSES)
    parameters = [p for p in model.parameters() if p.requires_grad] + [*scaffold.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.05, betas=(0.9, 0.98))
    start = 0
    if part.exists():
        saved = torch.load(part)
        model.load_state_dict(saved["model"])
        scaffold.load_state_dict(saved["scaffold"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    data = Sequences(tokenizer, pictures, features, seed=100 + start + (7 if injected else 0))
    rng = data.rng
    seen: list[Tensor] = []
    second = model.model.text_model.layers[1].register_forward_hook(
        lambda _m, _a, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    patcher = Patcher(model.model.text_model) if injected else None
    started, window = time.time(), {}

    def note(name: str, value: float) -> None:
        window.setdefault(name, []).append(value)

    for step in range(start, steps):
        done_share = step / steps
        data.one_question = 0.0 if injected else max(0.0, 0.8 * (1 - done_share / 0.6))
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, peak)
        length = int(rng.integers(3, 10))
        rows = 160 // length
        batch = data.batch(
            [CONVENTIONS[i] for i in rng.integers(len(CONVENTIONS), size=rows)], length
        )
        seen.clear()
        out = model.model.text_model(inputs_embeds=embed(model, batch, data.image), use_cache=False)
        loss, hits = answer_loss(model, out.last_hidden_state, batch)
        at_colon = seen[0][torch.arange(rows)[:, None], batch["colon"]]
        guess = nn.functional.cross_entropy(
            scaffold(at_colon).flatten(0, 1), batch["label"].flatten()
        )
        total = loss + guess * max(0.05, 0.5 * (1 - done_share / 0.6)) * (0.2 if injected else 1)
        note("loss", loss.item())
        note("class_loss", guess.item())
        note("last_record", np.mean([hits[r, f[-1]].item() for r, f in enumerate(batch["firsts"])]))
        optimizer.zero_grad()
        total.backward()
        if injected:
            inject, right, both = injected_loss(model, data, patcher, rng)
            inject.backward()
            note("injected", inject.item())
            note(f"injected_right_{both}", right)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 50 == 49:
            figures = {k: round(float(np.mean(v)), 4) for k, v in window.items()}
            log(work, stage=stage, step=step + 1, seconds=time.time() - started, **figures)
            window.clear()
        if step % 250 == 249:
            state = {"model": model.state_dict(), "scaffold": scaffold.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict(), "step": step + 1}, part)
            figures = dev_accuracy(model, tokenizer, *dev)
            log(work, stage=stage, step=step + 1, dev=figures)
    second.remove()
    torch.save(model.state_dict(), done)


def injected_loss(
    model: nn.Module, data: Sequences, patcher: Patcher, rng: np.random.Generator
) -> tuple[Tensor, float, str]:
    """Mean of six chunks per rule, put into zero-shot prompts, with gradients through both.

    Patched at the prompt's last token, or there and at every answer token (drawn 50/50), so that
    answers end rightly in both modes. Which heads are patched is drawn anew each time.
    """
    text = model.model.text_model
    rules = [CONVENTIONS[i] for i in rng.choice(len(CONVENTIONS), 6, replace=False)]
    length = int(rng.integers(2, 6))
    chunks = data.batch([c for c in rules for _ in range(6)], length, last_only=True)
    patcher.records, patcher.colon = [], chunks["colon"][:, -1]
    text(inputs_embeds=embed(model, chunks, data.image), use_cache=False)
    patcher.colon = None
    means = torch.stack(patcher.records).unflatten(1, (6, 6)).mean(2)  # [layers, rules, width]
    layers, _, width = means.shape
    queries = data.batch([c for c in rules for _ in range(8)], 1)
    share = np.where(np.arange(8) < TASK_HEADS, 0.85, 0.1)
    heads = torch.from_numpy(rng.random((layers, 8)) < share)
    every = rng.random() < 0.5
    position = torch.arange(queries["ids"].shape[1])[None]
    colon = queries["colon"]
    patcher.values = means.repeat_interleave(8, dim=1)
    patcher.where = (position >= colon) if every else (position == colon)
    patcher.heads = heads.repeat_interleave(width // 8, dim=1)
    hidden = text(inputs_embeds=embed(model, queries, data.image), use_cache=False)
    patcher.values = None
    loss, hits = answer_loss(model, hidden.last_hidden_state, queries)
    right = ((hits == 1) | (hits == -1)).all(1).float().mean().item()
    return loss, right, "every" if every else "prompt"


@torch.no_grad()
def dev_accuracy(
    model: nn.Module, tokenizer: object, pictures: list[Picture], features: Tensor
) -> dict[str, dict[str, float]]:
    """First-token accuracy after 0 and 4 demonstrations on unseen pictures, by family."""
    data = Sequences(tokenizer, pictures, features, seed=5)
    result = {}
    for family in CLASSES:
        rules = [c for c in CONVENTIONS if c.family == family]
        batch = data.batch(rules * 12, 5)
        out = model.model.text_model(inputs_embeds=embed(model, batch, data.image), use_cache=False)
        _, hits = answer_loss(model, out.last_hidden_state, batch)
        shots = {
            k: np.mean([hits[r, f[k]].item() for r, f in enumerate(batch["firsts"])])
            for k in (0, 4)
        }
        result[family] = {f"{k}-shot": round(float(v), 3) for k, v in shots.items()}
    return result


def log(work: Path, **values: object) -> None:
    """One JSON line to the screen and to log.jsonl."""
    line = json.dumps({k: round(v, 2) if k == "seconds" else v for k, v in values.items()})
    print(line, flush=True)
    with (work / "log.jsonl").open("a") as file:
        file.write(line + "\n")
