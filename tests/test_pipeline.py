"""The whole build: guarantee on the certificate, noise in the tensor, bad input, no leaks."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from dpmtv import pipeline, public_tasks
from dpmtv.artifact import TaskVector
from dpmtv.data.demonstrations import BadRow, read_demonstrations
from dpmtv.errors import DataError, ModelError, PrivacyParameterError, UserError
from dpmtv.models import atoms, choosing, lexicon, synthetic
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy import certificate, ledger, mechanisms
from dpmtv.privacy.accounting import gdp_mu
from dpmtv.privacy.choice import Choice
from dpmtv.types import BoundedRangeEvent, Demonstration


@pytest.fixture
def private(data):
    return read_demonstrations(data / "tasks/digit-french/private.jsonl")[:60]


@pytest.fixture(scope="module")
def public():
    from dpmtv.evaluation.benchmark import EMBEDDED_DATA

    rows = read_demonstrations(EMBEDDED_DATA / "public.jsonl")
    return [r for r in rows if r.task in {"digit-english", "digit-greek"}][:80]


def build(model, private, public, **options):
    settings = {"epsilon": 1.0, "delta": 1e-5, "shots": 2, "search_steps": 5} | options
    return build_task_vector(model, private, public=public, **settings)


@pytest.mark.parametrize("selection", ["public", "released", "all"])
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
def test_certificate_says_what_was_done(model, private, public, selection, relation):
    vector = build(model, private, public, selection=selection, relation=relation, chunks=15)
    privacy = vector.certificate.privacy
    assert (privacy.epsilon, privacy.delta, privacy.relation) == (1.0, 1e-5, relation)
    assert (privacy.chunks, privacy.shots, privacy.unit) == (15, 2, "record")
    assert gdp_mu(privacy.events[0]) == pytest.approx(1 / 3.7306316348, rel=1e-3)
    factor = {"replace_one": 2, "zero_out": 1}[relation]
    expected = factor * np.linalg.norm(privacy.clip_norms) / 15
    assert privacy.events[0].delta2 == pytest.approx(expected, rel=1e-12)
    released = sum(len(heads) for heads in privacy.released_heads)
    if selection == "public":
        assert released == vector.heads.sum() < model.layout.n_heads
    else:
        assert released == model.layout.n_heads
    assert vector.certificate.selection.mode == selection


def test_released_noise_has_the_certified_size(model, private, public, monkeypatch):
    """Chi-square over every coordinate of real builds, at a false-alarm rate of 1e-6.

    The clipped mean of the same chunks is what the noise was added to; the partition key is held
    fixed so that both builds see the same chunks.
    """
    from scipy.stats import chi2

    monkeypatch.setattr(pipeline, "fresh_key", lambda: b"test")
    noisy = [
        build(model, private, public, selection="all", chunks=20, relation="zero_out")
        for _ in range(5)
    ]
    privacy = noisy[0].certificate.privacy
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda values, scale: values)
    bare = build(model, private, public, selection="all", chunks=20, relation="zero_out")
    residuals = np.concatenate([v.values.astype(float) - bare.values for v in noisy])
    assert len(residuals) == 5 * model.layout.size

    def passes(sigma: float) -> bool:
        statistic = float(((residuals / sigma) ** 2).sum())
        low, high = chi2.ppf([5e-7, 1 - 5e-7], len(residuals))
        return bool(low < statistic < high)

    sigma = privacy.events[0].sigma
    assert passes(sigma)
    assert not passes(sigma / 2), "the check must see half the noise"
    assert not passes(sigma * 1.15)
    pairs = [
        np.corrcoef(noisy[0].values - bare.values, v.values - bare.values)[0, 1] for v in noisy[1:]
    ]
    assert max(map(abs, pairs)) < 0.25, "each build draws its own noise"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 0.0}, PrivacyParameterError, "epsilon"),
        ({"epsilon": -1.0}, PrivacyParameterError, "epsilon"),
        ({"epsilon": float("nan")}, PrivacyParameterError, "epsilon"),
        ({"epsilon": float("inf")}, PrivacyParameterError, "epsilon"),
        ({"delta": 0.0}, PrivacyParameterError, "delta"),
        ({"delta": 1 / 60}, PrivacyParameterError, "1/n"),
        ({"delta": 0.5}, PrivacyParameterError, "1/n"),
        ({"chunks": 21, "query": "private"}, DataError, "63 records"),
        ({"chunks": 0}, PrivacyParameterError, "chunks"),
        ({"chunks": 61, "shots": 1}, DataError, "61 records"),
        ({"clip": 0.0}, PrivacyParameterError, "clip"),
        ({"clip": -1.0}, PrivacyParameterError, "clip"),
        ({"clip": float("nan")}, PrivacyParameterError, "clip"),
        ({"relation": "add_one"}, PrivacyParameterError, "relation"),
        ({"public": None}, PrivacyParameterError, "public"),
        ({"alpha": 0.0}, PrivacyParameterError, "alpha"),
        ({"alpha": float("nan")}, PrivacyParameterError, "alpha"),
        ({"alpha": float("inf")}, PrivacyParameterError, "alpha"),
        ({"shots": 0}, PrivacyParameterError, "demonstration"),
        ({"patch": "evry"}, PrivacyParameterError, "patch"),
        ({"selection": "best"}, PrivacyParameterError, "selection"),
        ({"query": "mine"}, PrivacyParameterError, "query"),
        ({"choice": 1.0}, PrivacyParameterError, "choice"),
        ({"choice": -0.1}, PrivacyParameterError, "choice"),
        ({"choice": float("nan")}, PrivacyParameterError, "choice"),
        ({"choice": 0.1, "per_layer": True}, PrivacyParameterError, "choice"),
        (
            {"public": None, "clip": 1.0, "selection": "all", "query": "public"},
            PrivacyParameterError,
            "public queries",
        ),
        ({"clip": 1e39}, PrivacyParameterError, "clip"),
        ({"public": "synthetic", "selection": "released"}, PrivacyParameterError, "private rule"),
        (
            {"public": "public.jsonl"},
            PrivacyParameterError,
            "public must be one of synthetic, none",
        ),
    ],
)
def test_refused_before_any_pass(model, private, public, options, error, message, monkeypatch):
    monkeypatch.setattr(type(model), "last_token_heads", lambda *_: pytest.fail("a pass was made"))
    arguments = {"public": public} | options
    with pytest.raises(error, match=message):
        build(model, private, **arguments)


def test_private_records_are_not_taken_for_public_ones(model, private):
    with pytest.raises(PrivacyParameterError, match="private records"):
        build(model, private, private)


def test_a_bad_instruction_costs_no_release(model, private, public, monkeypatch):
    monkeypatch.setattr(model, "instruction", "x" * 501)
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda *_: pytest.fail("noise drawn"))
    with pytest.raises(UserError, match="answer_instruction"):
        build(model, private, public)


def test_large_delta_is_allowed_when_asked(model, private, public):
    with pytest.warns(UserWarning, match="delta"):
        vector = build(model, private, public, delta=0.05, allow_large_delta=True)
    assert vector.certificate.privacy.delta == 0.05


def test_without_public_data_a_clip_norm_and_all_heads_will_do(model, private):
    vector = build(model, private, None, selection="all", clip=4.0)
    assert vector.certificate.privacy.clip_source == "option"
    assert set(vector.certificate.privacy.clip_norms) == {4.0}
    assert vector.certificate.selection.source_sha256 is None


def test_bad_public_rows_are_named_by_number(model, private, public):
    rows = [*public[:3], BadRow(4, "not JSON"), *public[4:]]
    with pytest.raises(DataError, match=r"row 4 \(not JSON\)"):
        build(model, private, rows)
    with pytest.raises(DataError, match="a rule"):
        build(model, private, public[:3], shots=4)


CANARY = "c4n4ry"


@pytest.fixture
def bad_private(tmp_path, data):
    """A private file with every kind of bad row, each with a canary in it."""
    good = (data / "tasks/digit-french/private.jsonl").read_text().splitlines()[:60]
    rows = [json.loads(line) for line in good]
    for row in rows:
        row["image"] = str((data / "tasks/digit-french" / row["image"]).resolve())
    (tmp_path / f"{CANARY}.png").write_bytes(b"not a picture")
    Image.new("RGB", (0x10, 0x10)).save(tmp_path / f"{CANARY}-cut.png")
    cut = (tmp_path / f"{CANARY}-cut.png").read_bytes()[:40]
    (tmp_path / f"{CANARY}-cut.png").write_bytes(cut)
    rows[3]["image"] = f"{CANARY}.png"
    rows[7]["image"] = f"{CANARY}-missing.png"
    rows[11]["image"] = f"{CANARY}-cut.png"
    rows[15]["question"] = f"<image> {CANARY} <image>"
    rows[19]["answer"] = f"{CANARY} " * 3000
    lines = [json.dumps(r) for r in rows]
    lines[23] = f"{{broken {CANARY}"
    lines[27] = ""
    lines[31] = json.dumps({"question": CANARY})
    path = tmp_path / "private.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_bad_private_rows_stop_nothing_and_show_nowhere(
    model, bad_private, public, tmp_path, capfd, caplog
):
    caplog.set_level("INFO")  # below it, image readers tell of the public pictures
    rows = read_demonstrations(bad_private)
    assert len(rows) == 60, "every row keeps its slot"
    vector = build(model, rows, public, chunks=20)
    vector.save_pretrained(tmp_path / "vector")
    shown = "".join(capfd.readouterr()) + caplog.text
    assert shown == "", "not a length, a shape or a count either"
    for path in (tmp_path / "vector").iterdir():
        shown += path.read_bytes().decode("latin-1")
    assert CANARY not in shown
    assert vector.certificate.privacy.chunks == 20, "divided by m, whatever failed"


def test_the_head_search_never_sees_private_activations(model, private, public, monkeypatch):
    """Select-first runs before any private pass; the paper's mode sees only the release."""
    order, vectors = [], []
    plain_extract, plain_loss = public_tasks.chunk_activations, public_tasks.MaskLoss

    def extract(model, prompts):
        for item in plain_extract(model, prompts):
            order.append("pass")
            yield item

    class Loss(plain_loss):
        def __init__(self, *args, **options):
            order.append("search")
            vectors.append(np.asarray(options["vectors"]))
            super().__init__(*args, **options)

    monkeypatch.setattr(public_tasks, "chunk_activations", extract)
    monkeypatch.setattr(public_tasks, "MaskLoss", Loss)
    build(model, private, public, selection="public", chunks=10)
    assert order[order.index("search") :].count("pass") == 10 * public_tasks.QUERIES
    vector = build(model, private, public, selection="released", chunks=10)
    assert order[-1] == "search"
    assert (vectors[-1] == vector.values).all(), "patched with the released vector, noise included"


@pytest.fixture
def generated(data, monkeypatch):
    """What "synthetic" stands for, made of rules that the model knows: the check is met quickly."""
    rules: dict[str, list] = {}
    for record in read_demonstrations(data / "public.jsonl"):
        rules.setdefault(record.task, []).append(record)
    tasks = ("digit-greek", "digit-fruit", "color-english", "color-planet")
    records = [r for task in tasks for r in rules[task][:8]]
    monkeypatch.setattr(synthetic, "synthetic_records", lambda *_, **__: records)


@pytest.mark.usefixtures("generated")
def test_generated_public_records_are_named_on_the_certificate(model, private, monkeypatch):
    made = []
    plain = pipeline.public_records

    def keep(*arguments):
        made.append(plain(*arguments))
        return made[-1]

    monkeypatch.setattr(pipeline, "public_records", keep)
    told = []
    vector = build(
        model,
        private,
        "synthetic",
        search_steps=12,
        chunks=10,
        progress=lambda what, *_: told.append(what),
    )
    ((records, check),) = made
    assert check is not None
    assert 0 < vector.heads.sum() < model.layout.n_heads
    selection = vector.certificate.selection
    assert (selection.mode, selection.source_sha256) == ("public", pipeline._hash_records(records))
    assert {"synthetic tasks", "head search", "private chunks"} <= set(told)


def test_without_tasks_that_the_model_can_do_nothing_is_spent(
    model, private, tmp_path, picture, monkeypatch
):
    lost = [Demonstration(picture, "What is it?", f"x{i}", task=f"{i % 5}") for i in range(40)]
    monkeypatch.setattr(synthetic, "synthetic_records", lambda *_, **__: lost)
    monkeypatch.setattr(pipeline, "chunk_values", lambda *_: pytest.fail("a chunk was run"))
    with pytest.raises(ModelError, match="0 of 5 synthetic tasks"):
        build(model, private, "synthetic", ledger=tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


@pytest.fixture
def undecided(monkeypatch):
    """Every release is decoded, into few words."""
    monkeypatch.setattr(atoms, "SURE", 2.0)
    monkeypatch.setattr(atoms, "MOST_CLASSES", 10)
    monkeypatch.setattr(atoms, "MOST_PASSES", 320)
    monkeypatch.setattr(atoms, "answer_lexicon", partial(lexicon.answer_lexicon, count=4))


def test_the_default_pays_for_a_choice_beside_the_release(
    model, private, public, undecided, tmp_path, monkeypatch
):
    seen = []
    plain = choosing.exponential_mechanism

    def mechanism(scores, **options):
        seen.append((scores, options["range_"]))
        return plain(scores, **options)

    monkeypatch.setattr(choosing, "exponential_mechanism", mechanism)
    book = tmp_path / "book.ledger"
    vector = build(model, private, public, shots=1, ledger=book)
    certificate.verify(vector.certificate, vector.certificate.tensor_sha256)
    noise, pick = vector.certificate.privacy.events
    assert (pick.range, pick.count) == (0.2, 1)
    ((scores, range_),) = seen
    assert range_ == pick.range
    assert scores.shape == (17,), "the release, and eight of each of two rules"
    assert 0 < scores.max() <= 60
    (entry,) = ledger.history(book).entries
    assert entry.events == (noise, pick)
    plain_build = build(model, private, public, shots=1, choice=0.0)
    (alone,) = plain_build.certificate.privacy.events
    assert noise.sigma / noise.delta2 == pytest.approx(
        1.0859 * alone.sigma / alone.delta2, rel=1e-3
    )
    assert len(seen) == 1


def test_a_decoded_vector_is_saved_and_loaded_as_any_other(
    model, private, public, undecided, tmp_path, monkeypatch
):
    taken = lambda scores, **how: Choice(len(scores) - 1, BoundedRangeEvent(how["range_"], 1))  # noqa: E731
    monkeypatch.setattr(choosing, "exponential_mechanism", taken)
    vector = build(model, private, public, shots=1)
    vector.save_pretrained(tmp_path / "v")
    loaded = TaskVector.from_pretrained(tmp_path / "v")
    kept = model.layout.coordinates(vector.heads)
    assert np.abs(loaded.values[kept]).min() > 0
    assert not loaded.values[~kept].any(), "heads that were not released hold nothing"


def test_a_choice_that_fails_loses_no_release(model, private, public, undecided, monkeypatch):
    monkeypatch.setattr(choosing, "candidate_vectors", lambda *_, **__: 1 / 0)
    with pytest.warns(UserWarning, match="the private choice failed") as said:
        vector = build(model, private, public, shots=1)
    assert "zero" not in str(said[0].message)
    assert len(vector.certificate.privacy.events) == 2
    assert np.isfinite(vector.values).all()


def test_a_device_lost_while_records_are_asked_stops_the_build(
    model, private, public, undecided, monkeypatch
):
    """To publish the release as it is instead would tell that some record did it."""

    def lost(*_):
        raise ModelError("the GPU stopped working")

    monkeypatch.setattr(choosing, "private_pass", lost)
    with pytest.raises(ModelError, match="stopped working"):
        build(model, private, public, shots=1)


def test_where_the_release_is_sure_no_private_record_is_asked(model, private, public, monkeypatch):
    monkeypatch.setattr(atoms, "SURE", 0.0)
    monkeypatch.setattr(choosing, "private_pass", lambda *_: pytest.fail("a record was asked"))
    vector = build(model, private, public, shots=1)
    assert len(vector.certificate.privacy.events) == 2, "paid for all the same"
