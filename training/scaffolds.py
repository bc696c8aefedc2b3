"""Crutches of the text model's training that fade to a tenth; without them reading starts late.

None of their weights is in the model that comes out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from conventions import CLASSES
from sequences import N_CLASSES, Rule, Sequences

WIDTH = 128
COPIERS = (4, 5, 6, 7)  # heads
MOST = max(CLASSES.values())
# Of every class: its number in its family, and the family.
NUMBER = torch.tensor([n for count in CLASSES.values() for n in range(count)])
FAMILY = torch.tensor([f for f, count in enumerate(CLASSES.values()) for _ in range(count)])


class Scaffold:
    """Losses on what the text model holds and looks at while it reads demonstrations.

    (a) class: linear readers of the picture's class at ':' after the first layer, and of a
    demonstration's class at its answer after the second; (b) look: four heads of the third layer
    should look from ':' to the earlier answers of the same class; (c) bound: from the mean over a
    sequence's answers after the third layer, the word of each class, by one linear map for the
    first class of a family, one for the second and so on: which word goes with which class then
    survives averaging, in a form that the families share; (d) gather: four heads of the fourth
    layer should look from ':' at all earlier answers, where they find that.
    """

    def __init__(self, text: nn.Module):
        self.readers = nn.ModuleList([nn.Linear(WIDTH, N_CLASSES) for _ in range(2)])
        self.maps = nn.Parameter(torch.randn(MOST, WIDTH, WIDTH) * 0.02)
        self.text, self.states = text, {}
        for index in (0, 1, 2):
            text.layers[index].register_forward_hook(self._keep(index))
        for index in (2, 3):
            attention = text.layers[index].self_attn
            attention.q_proj.register_forward_hook(self._keep(f"q{index}"))
            attention.k_proj.register_forward_hook(self._keep(f"k{index}"))
        self.on = False

    def _keep(self, name: int | str):
        def hook(_m: nn.Module, _a: tuple, out: Tensor | tuple) -> None:
            if self.on:
                self.states[name] = out[0] if isinstance(out, tuple) else out

        return hook

    def losses(self, batch: dict, words: Tensor) -> dict[str, Tensor]:
        """The four losses by name; ``words`` are the embeddings [vocabulary, 128]."""
        colon, label = batch["colon"], batch["label"]
        rows = torch.arange(len(colon))[:, None]
        pictured = label >= 0
        at_colon = self.states[0][rows, colon][pictured]
        at_answer = self.states[1][rows, colon + 1][pictured]
        target = label[pictured]
        if not len(target):  # dictionaries alone
            zero = words.sum() * 0
            return dict.fromkeys(("class", "look", "gather", "bound"), zero)
        guess = nn.functional.cross_entropy(self.readers[0](at_colon), target)
        guess = guess + nn.functional.cross_entropy(self.readers[1](at_answer), target)
        same = (label[:, :, None] == label[:, None, :]) & pictured[:, :, None]
        same &= torch.tril(torch.ones(same.shape[1:], dtype=torch.bool), -1)
        earlier = torch.tril(torch.ones(same.shape[1:], dtype=torch.bool), -1).expand_as(same)
        return {
            "class": guess,
            "look": self._looking(2, batch, same),
            "gather": self._looking(3, batch, earlier),
            "bound": self._bound(batch, words),
        }

    def _looking(self, layer: int, batch: dict, wanted: Tensor) -> Tensor:
        """−log of the attention mass from every ':' on the wanted answers, [rows, from, to]."""
        asked = wanted.any(2)
        if not asked.any():
            return wanted.new_zeros((), dtype=torch.float32)
        colon = batch["colon"]
        q, k = (
            self.states[f"{n}{layer}"].unflatten(2, (8, -1))[:, :, COPIERS].transpose(1, 2)
            for n in "qk"
        )
        places = torch.arange(q.shape[2])[None]
        q, k = apply_rotary_pos_emb(q, k, *self.text.rotary_emb(q, places))
        q = q.gather(2, colon[:, None, :, None].expand(-1, 4, -1, q.shape[3]))
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5  # [rows, 4, records, tokens]
        scores = scores.masked_fill(places[:, None, None] > colon[:, None, :, None], -1e4)
        answers = (colon + 1)[:, None, None].expand(-1, 4, wanted.shape[1], -1)
        mass = (scores.softmax(3).gather(3, answers) * wanted[:, None]).sum(3)
        return -mass.transpose(1, 2)[asked].clamp_min(1e-4).log().mean()

    def _bound(self, batch: dict, words: Tensor) -> Tensor:
        """Loss of the word of each class that a sequence shows."""
        colon, label = batch["colon"], batch["label"]
        rows = torch.arange(len(colon))[:, None]
        families = FAMILY[label.clamp_min(0)]
        # No dictionaries, and no rules for two families, whose classes would share numbers.
        usable = (label >= 0).all(1) & (families == families[:, :1]).all(1)
        if not usable.any():
            return words.sum() * 0
        state = self.states[2][rows, colon + 1]
        mean = nn.functional.layer_norm(state, (WIDTH,)).mean(1)
        of = rows.expand_as(label)[usable].flatten()
        which = NUMBER[label[usable].flatten()]
        said = batch["ids"][rows, colon + 1][usable].flatten()
        value = nn.functional.layer_norm(mean, (WIDTH,))[of]
        read = torch.einsum("nd,ndw->nw", value, self.maps[which])
        return nn.functional.cross_entropy(read @ words.T, said)


class Binder(nn.Module):
    """Reads the word of each class from an injected mean, by one linear map a number of class.

    Naming a rule's words needs none of this; that a mean tells which class means which does. It
    reads one layer, so that the layers behind it can learn to use what it finds.
    """

    LAYER = 3

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.randn(MOST, width, WIDTH) * 0.02)

    def loss(self, means: Tensor, rules: list[Rule], data: Sequences, words: Tensor) -> Tensor:
        """Loss of the first token of every class's answer; ``means`` [layers, rules, width]."""
        known = [
            (place, number, data.encode(f" {answer}")[0])
            for place, rule in enumerate(rules)
            if len(rule.parts) == 1
            for part in rule.parts
            for number, answer in enumerate(part.answers)
        ]
        if not known:
            return means.sum() * 0
        where, which, target = (list(column) for column in zip(*known, strict=True))
        value = nn.functional.layer_norm(means[self.LAYER], means.shape[2:])[where]
        read = torch.einsum("nd,ndw->nw", value, self.maps[which])
        return nn.functional.cross_entropy(read @ words.T, torch.tensor(target))
