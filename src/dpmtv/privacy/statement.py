"""The guarantee in plain words, for whoever is responsible for the data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from dpmtv.privacy import accounting
from dpmtv.privacy.certificate import ALARMS
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import BoundedRangeEvent, GaussianEvent

if TYPE_CHECKING:
    from dpmtv.privacy.certificate import Certificate, Privacy
    from dpmtv.types import Event


def statement(certificate: Certificate) -> list[str]:
    """Sentences made for the certificate's relation and unit; ε and power are rounded up."""
    privacy = certificate.privacy
    if privacy.delta is None or privacy.mu is None:
        return [
            "NOT PRIVATE: no noise was added (ε = inf).",
            "The vector may reveal the records that it was made from. Do not pass it on.",
        ]
    epsilon, delta = privacy.epsilon, privacy.delta
    whose, change, question, limit = _words(privacy)
    _, power, _ = _power(privacy)
    if privacy.relation is NeighbourRelation.ZERO_OUT:
        limit = _worth_under_replace_one(privacy.events, delta)
    return [
        f"The vector is (ε = {epsilon:.12g}, δ = {delta:.12g})-differentially private under the "
        f"relation {privacy.relation}: what it reveals about {whose} is bounded by these two.",
        f"If {change}, the probability of any outcome grows at most by the factor "
        f"{_up(math.exp(min(epsilon, 700)), 2):.15g}, plus {delta:g}.",
        f"Someone who sees the vector and may raise 5 % false alarms tells {question} at most "
        f"{_up(100 * power, 2):.15g} % of the time.",
        limit,
        *_choices(privacy),
        "Using the vector costs nothing more, however many questions are asked.",
        *_budget(privacy),
        "It holds towards those who get the vector; whoever built it has seen the records.",
    ]


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Statement of privacy</title>
<style>
 @page {{ size: A4; margin: 18mm }}
 body {{ font: 11pt/1.45 Georgia, serif; max-width: 42em; margin: 2em auto; padding: 0 1em;
        color: #111; background: #fff }}
 h1 {{ font-size: 1.5em; margin: 0 0 .2em }} .sub {{ color: #555; margin: 0 0 1.2em }}
 li {{ margin: .35em 0 }} .bad {{ color: #b00; font-weight: bold }}
 table {{ border-collapse: collapse; width: 100%; font: 9.5pt/1.4 Arial, sans-serif }}
 th {{ text-align: left; font-weight: normal; color: #555; white-space: nowrap;
      padding: .15em 1em .15em 0; vertical-align: top }} td {{ overflow-wrap: anywhere }}
 .sign {{ display: flex; gap: 2em; margin-top: 3.2em; font: 9pt Arial, sans-serif; color: #555 }}
 .sign div {{ flex: 1; border-top: 1px solid #111; padding-top: .3em }}
</style>
<h1>Statement of privacy</h1>
<p class="sub">for one private task vector, made {created} with dpmtv {version}</p>
<ul>{lines}</ul>
<h2>Checked</h2>
<ul>{checked}</ul>
<h2>Figures</h2>
<table>{rows}</table>
<div class="sign"><div>place and date</div><div>responsible for the data</div></div>
"""


def statement_page(certificate: Certificate, checked: Sequence[str]) -> str:
    """One page to print: the statement, what `verify` recomputed, the figures, room to sign.

    Args:
        certificate: of the vector.
        checked: the lines of a successful verification.
    """
    privacy, model = certificate.privacy, certificate.model
    weights = f"{model.id} at {model.revision}" if model.id else f"weights {model.weights_sha256}"
    rows = {
        "model": f"{model.architecture}, {weights}",
        "relation and unit": f"{privacy.relation}, per {privacy.unit}",
        "released": f"{sum(map(len, privacy.released_heads))} of {sum(model.heads)} heads, "
        f"{sum(privacy.block_sizes)} numbers; m = {privacy.chunks} chunks, K = {privacy.shots}",
        "tensor file": f"SHA-256 {certificate.tensor_sha256}",
    }
    if privacy.delta is not None and privacy.mu is not None:
        power = (f"{_up(100 * share, 2):.15g} %" for share in _power(privacy))
        rows |= {
            "price": f"ε = {privacy.epsilon:.12g}, δ = {privacy.delta:.12g}, "
            f"μ = {_up(privacy.mu, 4):.15g}",
            "an attacker finds": f"{', '.join(power)} at 1, 5 and 10 % false alarms",
            "noise": f"{privacy.sampler}; {privacy.accountant}",
            "budget ledger": privacy.ledger or "none",
        }

    def items(lines: Sequence[str]) -> str:
        return "".join(
            f"<li{' class=bad' if 'NOT PRIVATE' in line else ''}>{escape(line)}</li>"
            for line in lines
        )

    return _PAGE.format(
        created=certificate.created,
        version=escape(certificate.product_version),
        lines=items(statement(certificate)),
        checked=items(checked),
        rows="".join(f"<tr><th>{k}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items()),
    )


def figures_in(text: str) -> set[str]:
    """Every ε and δ that a text names with a number."""
    return set(re.findall(r"[εδ]\s*=\s*(inf|[-+.\de]*\d)", text))


def _power(privacy: Privacy) -> tuple[float, ...]:
    """What an attacker finds at most; older certificates leave it to their events."""
    return privacy.power or tuple(accounting.power_of(privacy.events, a) for a in ALARMS)


def _budget(privacy: Privacy) -> list[str]:
    places = "the data files that it was told of"
    places = f"this ledger and {places}" if privacy.ledger else places
    looked = {
        "none-found": f"Before, dpmtv looked beside {places}, and found no other ledger that is "
        "known to have paid for any of these records.",
        "ignored": "Its operator told dpmtv to ignore other ledgers. If one has paid for any of "
        "these records, what was spent there comes on top of this ε and δ.",
        None: "",
    }[privacy.other_ledgers]
    if privacy.ledger is None:
        return [
            "No budget ledger was kept: every other build from the same data, before or after, "
            f"adds its own ε and δ. {looked}".rstrip()
        ]
    later = (
        "A later build from any of these records that would not be charged there is refused, if "
        "dpmtv knows them again and its operator does not insist. Records that were changed, or "
        "copied to another place, it may not know again: what is spent on them comes on top."
        if privacy.other_ledgers
        else "A build that is charged to another ledger, or to none, adds its own ε and δ."
    )
    return [
        f"It was paid from the budget ledger {privacy.ledger[:8]}…, which adds up all builds that "
        f"are charged there. {looked}".rstrip(),
        later,
    ]


def _words(privacy: Privacy) -> tuple[str, str, str, str]:
    """Whose data; what changes; what an attacker would like to tell; what is not covered."""
    unit, per_unit = privacy.unit, privacy.per_unit
    if privacy.relation is NeighbourRelation.ZERO_OUT:
        change = "one whole chunk becomes the null vector"
        return "the presence of a chunk", change, "whether a chunk was there", ""
    if per_unit is None:
        return (
            "one record",
            "one record is replaced by another",
            "which of two versions of a record was used",
            "The guarantee is per record: a person with several records is protected less.",
        )
    serve = f"At most {per_unit} record{'s' if per_unit > 1 else ''} of each were used"
    limit = (
        f"The guarantee is for everything of one {unit} together. {serve}. It holds as "
        f"far as {unit} tells persons apart: whoever stands in the data under two values is "
        "protected less. Two are values that differ in more than blanks around them, the Unicode "
        "form of letters, or a fraction of zero (3.0 and 3); capitals and leading zeros count."
    )
    if privacy.relation is NeighbourRelation.ADD_REMOVE:
        return (
            f"one {unit}, its presence included",
            f"all records of one {unit} are added or removed",
            f"whether the records of a given {unit} were used at all",
            f"{limit} The number of {unit} values is private; declared was {privacy.population}.",
        )
    return (
        f"all records of one {unit}",
        f"all records of one {unit} are replaced by others",
        f"which of two versions of the records of one {unit} was used",
        limit,
    )


def _choices(privacy: Privacy) -> list[str]:
    beside = privacy.events[1:]  # the first is the vector's
    count = sum(event.count if isinstance(event, BoundedRangeEvent) else 1 for event in beside)
    if not count:
        return []
    made = "one choice that was" if count == 1 else f"{count} choices that were"
    return [
        f"These two cover the vector together with {made} made privately from the same records."
    ]


def _worth_under_replace_one(events: Sequence[Event], delta: float) -> str:
    doubled = [_doubled(event) for event in events]
    epsilon = accounting.epsilon_of(doubled, delta)
    if epsilon < math.inf:
        worth = f"ε = {_up(epsilon, 4):.15g}"
    else:  # the bound on the slack grows with e^ε and has used δ up
        least = accounting.gaussian_epsilon(1 / accounting.gdp_mu(doubled[0]), delta)
        worth = f"an ε above {math.floor(least)}"
    return (
        "zero_out is the relation of the paper. It protects against a whole chunk becoming null, "
        "not against one record being replaced by another: under replace_one the same noise "
        f"gives {worth} at the same δ."
    )


def _doubled(event: Event) -> Event:
    if isinstance(event, GaussianEvent):
        return replace(event, delta2=2 * event.delta2)
    # A score moves twice as far where a chunk is exchanged, not only emptied.
    return replace(event, range=2 * event.range)


def _up(value: float, digits: int) -> float:
    """Rounded up, because privacy must not look better than it is."""
    step: int = 10**digits
    return math.ceil(value * step) / step
