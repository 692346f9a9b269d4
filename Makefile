# `make help` lists the targets. Variables, each given as NAME=value after `make`:
#   PORT      where `make lab` serves (8888)          HOST      the address that it listens on (loopback)
#   PYTHON    the interpreter that .venv is made from PIP_ARGS  extra arguments for pip
#   WORKBOOK  the learner's copies (workbook)         LAB_ARGS  extra arguments for JupyterLab
PYTHON ?= python3
PORT ?= 8888
HOST ?= 127.0.0.1
WORKBOOK ?= workbook
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
JOBS ?= 2
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help lab test check browser tour notebooks bench gpu soak clean
.DELETE_ON_ERROR:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is the last thing written. Without it an unfinished environment is started afresh.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; choose one with PYTHON=...")'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $@

lab: $(READY) ## Fill workbook/ and serve JupyterLab on it (PORT=8888)
	$(BIN)/minidsv41 lesson fill --into $(WORKBOOK)
	$(BIN)/jupyter lab --no-browser --ip=$(HOST) --port=$(PORT) --ServerApp.root_dir=$(WORKBOOK) \
		--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

test: $(READY) ## Every test, and every lesson run and compared with its saved outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n $(JOBS) --dist worksteal
	MINIDSV41_WITHOUT=triton $(BIN)/pytest -n $(JOBS) --dist loadfile --nbval --nbval-current-env \
		--nbval-cell-timeout=120 notebooks

check: $(READY) ## The quick tests only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow"

browser: $(READY) ## Drive a real JupyterLab in chromium (skips loudly without it)
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests/browser

tour: $(READY) ## The course's main job without a browser, in about 30 seconds
	$(BIN)/minidsv41 tour

notebooks: $(READY) ## Run every lesson again and save its normalised outputs
	PYTHONPATH=$(CURDIR)/tests/blocked MINIDSV41_WITHOUT=triton $(BIN)/python scripts/notebooks.py

bench: $(READY) ## Measure what the records of this machine hold, on a quiet machine; writes data/records/
	$(BIN)/minidsv41 bench train
	$(BIN)/minidsv41 bench decode
	$(BIN)/minidsv41 bench speculative
	$(BIN)/minidsv41 bench verify
	$(BIN)/minidsv41 bench lifecycle
	$(BIN)/minidsv41 bench absorption
	$(BIN)/minidsv41 bench prefetch
	$(BIN)/minidsv41 bench machine
	$(BIN)/minidsv41 bench flips

gpu: $(READY) ## Look at this machine's GPU: the kernels' tests, errors at full size, one time an operation
	$(BIN)/python -m scripts.gpu_check

soak: $(READY) ## Half an hour of fault campaigns: store, hand-over, engine, replay; writes data/records/
	$(BIN)/python -m scripts.soak

clean: ## Remove the environment and everything that tools left behind (never workbook/)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
