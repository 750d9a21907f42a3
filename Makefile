# Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS ?= constraints-cpu.txt

.PHONY: install serve test test-vllm chaos soak lint format bench gpu-test clean

install: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Draftport needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[worker,dev]'
	touch $(STAMP)

serve: install
	$(BIN)/draftport serve

# What watches the clock runs on its own.
CLOCKED := tests/chaos tests/e2e tests/worker/server

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile $(CLOCKED:%=--ignore %)
	$(BIN)/python -m pytest $(CLOCKED)

# vLLM and speculators, in environments of their own; some gigabytes on first use, then about seven minutes.
test-vllm: install
	PYTHON=$(PYTHON) scripts/test-vllm

# Ten minutes of kills, pauses and hostile clients; `make test` has a short form.
chaos: install
	CHAOS_SECONDS=$${CHAOS_SECONDS:-600} $(BIN)/python -m pytest tests/chaos/test_storm.py

# Ten minutes of steady load.
soak: install
	SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/python -m pytest tests/chaos/test_soak.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	$(BIN)/python -m bench

# tests/gpu/run.py exits with 77 where there is no GPU (of which make says "Error 77").
gpu-test: install
	$(BIN)/python tests/gpu/run.py

clean:
	rm -rf $(VENV)
