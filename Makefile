# Every target sets up what it needs: `make demo` on a machine with Python 3.10 to 3.13, venv and make is enough.

VENV := .venv
VENV_TFA := .venv-tfa
VENV_PARITY := .venv-parity
PYTHON := $(VENV)/bin/python
# The Python that makes .venv, and the one that makes .venv-tfa; empty: the first suitable one on the PATH.
BASE_PYTHON ?=
BASE_PYTHON_TFA ?=
# For example: make test PYTEST_ARGS='tests/data -x'
PYTEST_ARGS ?=
# Recorded data to compare with: `python benchmarks/parity.py --help` says what there may be.
PARITY_ARGS ?=

PIP_INSTALL := -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-tfa lint format bench parity clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/installed  ## make .venv with the pinned packages

demo: setup  ## pretrain a small ALBERT on this machine, evaluate it and plot its curves (minutes)
	PYTHON=$(PYTHON) bash examples/demo.sh

test: setup  ## run the fast tests
	$(PYTHON) -m pytest -n auto --maxprocesses=4 $(PYTEST_ARGS)

test-slow: setup  ## run the tests that take minutes
	$(PYTHON) -m pytest -m slow $(PYTEST_ARGS)

test-tfa: $(VENV_TFA)/installed  ## run the fast tests with TensorFlow 2.15 and tensorflow-addons, in .venv-tfa
	$(VENV_TFA)/bin/python -m pytest -n auto --maxprocesses=4 $(PYTEST_ARGS)

lint: setup  ## check style, format, types and the order of imports
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports

format: setup  ## format the code, and mend what the linter can mend
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

bench: setup  ## measure data preparation: speed, memory, statistics of the masks
	PYTHON=$(PYTHON) bash benchmarks/run.sh

parity: $(VENV_PARITY)/installed  ## compare with Hugging Face's models and with recorded numbers, in .venv-parity
	$(VENV_PARITY)/bin/python -m pytest tests/parity $(PYTEST_ARGS)
	$(VENV_PARITY)/bin/python benchmarks/parity.py \
	  $(if $(wildcard $(VENV_TFA)/installed),--tfa_python=$(VENV_TFA)/bin/python) $(PARITY_ARGS)

clean:  ## remove builds and caches
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environments, too
	rm -rf $(VENV) $(VENV_TFA) $(VENV_PARITY)

# $(call make_venv,folder,constraints,extras,candidates,wanted,variable): the file `installed` is touched last, so
# an interrupted installation is taken up again. A candidate is run, since a launcher may exist whose Python doesn't.
define make_venv
	@set -e; \
	if ! $(1)/bin/python -c '' 2>/dev/null; then \
	  found=; \
	  for candidate in $(4); do \
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit("%d.%d" % sys.version_info[:2] not in "$(5)".split())' \
	        2>/dev/null; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: none of '$(strip $(4))' is Python $(5) with its venv module:" \
	      "install one, or name it with $(6)=/path/to/python" >&2; \
	    exit 2; \
	  fi; \
	  "$$found" -m venv --clear $(1); \
	fi; \
	echo "Installing TensorFlow and the rest into $(1) (2 to 3 GB; some minutes) ..."; \
	$(1)/bin/python $(PIP_INSTALL) -c $(2) setuptools wheel; \
	$(1)/bin/python $(PIP_INSTALL) -c $(2) --no-build-isolation -e '.[$(3)]'; \
	touch $@
endef

CANDIDATES := python3.13 python3.12 python3.11 python3.10 python3
CANDIDATES_TFA := python3.11 python3.10 python3

$(VENV)/installed: setup.py constraints/default.txt
	$(call make_venv,$(VENV),constraints/default.txt,dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_PARITY)/installed: setup.py constraints/default.txt constraints/parity.txt
	$(call make_venv,$(VENV_PARITY),constraints/parity.txt,parity$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_TFA)/installed: setup.py constraints/tf215-tfa.txt
	$(call make_venv,$(VENV_TFA),constraints/tf215-tfa.txt,tfa$(comma)dev,$(or $(BASE_PYTHON_TFA),$(CANDIDATES_TFA)),3.10 3.11,BASE_PYTHON_TFA)

comma := ,
