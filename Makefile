# Every target makes its own environment from nothing; VENV=… puts it elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check embedded results results-full bench kills clean

demo: $(VENV)/installed
	rm -rf demo-output
	$(BIN)/dpmtv demo --output demo-output

test: $(VENV)/installed
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The embedded model and its suite from nothing: an hour and a half; an interrupted run goes on.
embedded: $(VENV)/installed
	$(BIN)/pip install -c constraints.txt -r training/requirements.txt
	$(BIN)/python training/make_embedded.py

# The accuracy tables of docs/results.md, some hours on two cores; skips parts that
# docs/results.json already holds.
results: $(VENV)/installed
	$(BIN)/python benchmarks/results.py

# Also the paper's mask search for every release, and every task at every ε: some hours.
results-full: $(VENV)/installed
	$(BIN)/python benchmarks/results.py --full

# Ledger and whole builds under kill -9 at a hundred random instants; `make test` does ten.
kills: $(VENV)/installed
	DPMTV_KILLS=100 $(BIN)/pytest tests/test_kill.py tests/privacy/test_ledger.py -k kill

# The table of docs/speed.md: speed and memory, about a quarter of an hour on a quiet core.
bench: $(VENV)/installed
	$(BIN)/python benchmarks/speed.py --json docs/speed.json

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[report,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-output
