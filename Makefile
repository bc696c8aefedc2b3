# Every target makes its own environment from nothing; VENV=… puts it elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check embedded results bench clean

demo: $(VENV)/installed
	rm -rf demo-output
	$(BIN)/dpmtv demo --output demo-output

test: $(VENV)/installed
	$(BIN)/pytest

check: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The embedded model and its data from nothing: about half an hour on two cores.
embedded: $(VENV)/installed
	$(BIN)/pip install -c constraints.txt -r training/requirements.txt
	$(BIN)/python training/make_embedded.py

# The accuracy tables of docs/results.md; skips parts that docs/results.json already holds.
results: $(VENV)/installed
	$(BIN)/python benchmarks/results.py

bench: $(VENV)/installed
	$(BIN)/python benchmarks/mask_loss.py --json docs/speed.json

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[report,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-output
