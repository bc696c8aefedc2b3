"""The demonstration in small: three vectors, a table, a report."""

from __future__ import annotations

from dataclasses import replace

from dpmtv.artifact import TaskVector, verify
from dpmtv.evaluation import demo as demo_module
from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.demo import DEMO_TASKS, SETTINGS, run_demo
from dpmtv.models import atoms


def test_demo_builds_measures_and_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(atoms, "SURE", 0.0)  # nothing is decoded, which takes a while
    loaded = load_benchmark("embedded", DEMO_TASKS)
    few = replace(loaded, public=loaded.public[::4])
    monkeypatch.setattr(demo_module, "load_benchmark", lambda *_: few)
    small = replace(SETTINGS, draws=2, n_test=6, chunks=(8,), epsilons=(1.0,), search_steps=5)
    seen = set()
    demo = run_demo(tmp_path, small, lambda what, _done, _total: seen.add(what))
    assert {"public chunks", "head search", "private chunks", "draws"} <= seen
    for name in DEMO_TASKS:
        assert verify(tmp_path / name)
        vector = TaskVector.from_pretrained(tmp_path / name)
        assert (vector.certificate.privacy.epsilon, vector.certificate.privacy.delta) == (1.0, 1e-5)
        assert vector.certificate.privacy.relation == "replace_one"
    assert len(demo.timings) == 4
    page = demo.report.read_text(encoding="utf-8")
    for name in DEMO_TASKS:
        assert name in page
    assert "not private" in page
    assert page.count("data:image/png;base64,") >= 4 * len(DEMO_TASKS)
    assert {r["method"] for r in demo.rows} == {"zero-shot", "in-context", "task vector", "dp-mtv"}
