"""Published figures: what is known, what a file may add, and what is doubtful in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpmtv.data.benchmarks import SETS
from dpmtv.errors import DataError
from dpmtv.evaluation.paper_tables import DEFAULT, cells
from dpmtv.evaluation.published import (
    PUBLISHED,
    Published,
    doubts,
    figure,
    published_gain,
    read_published,
)
from dpmtv.evaluation.reproduce import published_keys


def test_published_gains():
    of = figure(PUBLISHED, "vizwiz", "", "dp-mtv", 1.0)
    assert published_gain(PUBLISHED, of) == pytest.approx((50.4 - 35) / (55 - 35))
    shot = figure(PUBLISHED, "vizwiz", "Qwen-VL", "4-shot")
    assert published_gain(PUBLISHED, shot) == pytest.approx((42.0 - 35.2) / (45.6 - 35.2))
    assert published_gain(PUBLISHED, figure(PUBLISHED, "flowers102", "", "dp-mtv", 1.0)) is None
    assert figure(PUBLISHED, "dtd", "Qwen-VL", "dp-mtv", 1.0) is None
    assert all(p.source and p.benchmark.split()[0] in SETS for p in PUBLISHED)
    assert len({(p.benchmark, p.model, p.method, p.epsilon) for p in PUBLISHED}) == len(PUBLISHED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "needs rows, and the columns benchmark"),
        ("benchmark,model,method,epsilon,accuracy,source\n", "needs rows"),
        ("benchmark,model,method,epsilon,accuracy,source\nx,y,z,,much,s\n", "row 1: accuracy"),
        ("benchmark,model,method,epsilon,accuracy,source\nx,y,z,,5,\n", "needs a source"),
        ("benchmark,model,method,epsilon,accuracy,source\nx,y,z,,101,s\n", "from 0 to 100 %"),
        ("benchmark,model,method,epsilon,accuracy,source\nx,y,dp-mtv,1,5,s\n", "benchmark must"),
        ("benchmark,model,method,epsilon,accuracy,source\ndtd,y,z,,5,s\n", "method must"),
        ("benchmark,model,method,epsilon,accuracy,source\ndtd,y,dp-mtv,1,5,a, b\n", "quote"),
    ],
)
def test_a_bad_file_of_figures_is_refused(tmp_path, content, message):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        read_published(tmp_path / "x.csv")


def test_all_that_is_known_could_stand_in_a_file(tmp_path):
    text = "\n".join(f"{p.benchmark},{p.model},{p.method},{p.epsilon or ''},5,s" for p in PUBLISHED)
    (tmp_path / "x.csv").write_text(f"benchmark,model,method,epsilon,accuracy,source\n{text}\n")
    assert len(read_published(tmp_path / "x.csv")) == len(PUBLISHED)


def test_doubtful_figures_are_warned_of():
    asked = published_keys("main", "dtd", cells("main", DEFAULT), "Mine")
    used = Published("dtd", "Mine", "dp-mtv", 1.0, 50.0, "s")
    under = Published("dtd", "", "dp-mtv", 2.0, 50.0, "s")
    assert [*doubts([used, under], asked)] == []
    (line,) = doubts([replace(used, accuracy=0.504)], asked)
    assert "a share of one? dtd, Mine, dp-mtv, ε = 1: 0.504 %" in line
    others = [replace(used, **c) for c in ({"epsilon": 2.0}, {"model": "x"}, {"method": "9-shot"})]
    (line,) = doubts([used, *others, replace(under, benchmark="vizwiz")], asked)
    assert line.count(";") == 3
    assert "dtd, Mine, dp-mtv, ε = 2: 50 %; dtd, x, dp-mtv" in line
