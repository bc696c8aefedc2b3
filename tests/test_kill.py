"""kill -9 at random instants of a whole build: what was drawn was paid, and the build goes on.

``DPMTV_KILLS`` raises the number of kills in the suite (`make kills`: a hundred).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dpmtv.evaluation.mechanism_audit import CanaryModel
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy import ledger, mechanisms
from dpmtv.types import Demonstration

CANARY = "c4n4ry"
CHUNKS, SHOTS = 12, 2
DRAW = mechanisms._discrete_gaussian


def test_builds_that_are_killed_lose_budget_at_most(tmp_path):
    """This file as a script: a process of one thread, so that it may fork."""
    count = os.environ.get("DPMTV_KILLS", "10")
    command = [sys.executable, __file__, str(tmp_path), count]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr


class SlowModel(CanaryModel):
    """Counts its passes and takes its time for each."""

    passes = 0

    def last_token_heads(self, prompt):
        type(self).passes += 1
        time.sleep(0.002)
        return super().last_token_heads(prompt)


def build(folder: Path) -> None:
    """A build of private rows with canaries, that leaves a mark before any noise is drawn."""

    def marked(values, scale):
        (folder / f"drawn-{os.getpid()}").touch()
        return DRAW(values, scale)

    mechanisms._discrete_gaussian = marked
    rows = [
        Demonstration(f"{CANARY}.png", f"{CANARY}? {i}", CANARY, unit=f"{CANARY} {i // 3}")
        for i in range(CHUNKS * (SHOTS + 1))
    ]
    vector = build_task_vector(
        SlowModel(),
        rows,
        epsilon=0.5,
        delta=1e-6,
        unit="patient",
        per_unit=SHOTS + 1,
        shots=SHOTS,
        selection="all",
        clip=1.0,
        ledger=folder / "book",
        work=folder / "work",
        report=folder / "report.json",
    )
    vector.save_pretrained(folder / "vector")


def kill_once(folder: Path, longest: float) -> str:
    """One kill, and what it met."""
    folder.mkdir()
    made = ledger.create(folder / "book", epsilon=5, delta=1e-5, unit="patient", relation=RELATION)
    child = os.fork()
    if child == 0:
        build(folder)
        os._exit(0)
    time.sleep(random.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.wait()
    states = [entry.state for entry in ledger.history(made.path).entries]
    drawn = (folder / f"drawn-{child}").exists()
    assert not drawn or states in (["lost"], ["released"]), states
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "report.json" and (folder / "work") not in path.parents:
            assert CANARY.encode() not in path.read_bytes(), path.name
            assert CANARY not in path.name
    if not (folder / "vector").exists():
        kept = len(list((folder / "work").glob("chunk-*.npy"))) if (folder / "work").exists() else 0
        SlowModel.passes = 0
        build(folder)  # goes on
        preflight = 3
        assert SlowModel.passes == CHUNKS - kept + preflight, "what is kept is not done again"
        assert [e.state for e in ledger.history(made.path).entries][-1] == "released"
    assert not (folder / "work").exists()
    assert not list(Path(tempfile.gettempdir()).iterdir()), "nothing stays in the temporary folder"
    return states[-1] if states else "nothing" if status else "done"


RELATION = "replace_one"

if __name__ == "__main__":
    root, count = Path(sys.argv[1]), int(sys.argv[2])
    tempfile.tempdir = str(root / "temporary")
    (root / "temporary").mkdir()
    (root / "first").mkdir()
    ledger.create(root / "first" / "book", epsilon=5, delta=1e-5, unit="patient", relation=RELATION)
    build(root / "first")  # imports what the children need
    started = time.perf_counter()
    (root / "second").mkdir()
    ledger.create(
        root / "second" / "book", epsilon=5, delta=1e-5, unit="patient", relation=RELATION
    )
    build(root / "second")
    longest = 1.1 * (time.perf_counter() - started)
    met = [kill_once(root / str(number), longest) for number in range(count)]
    print({state: met.count(state) for state in sorted(set(met))})  # noqa: T201
