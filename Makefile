# Every target sets up what it needs: `make demo` on a machine with Python 3.10 to 3.13, venv and make is enough.

VENV := .venv
VENV_BEAM := .venv-beam
VENV_RAY := .venv-ray
VENV_SERVING := .venv-serving
VENV_TFA := .venv-tfa
VENV_PARITY := .venv-parity
VENV_TPU := .venv-tpu
VENV_GPU := .venv-gpu
VENV_DOCS := .venv-docs
VENV_NEWEST := .venv-newest
VENV_OLDEST := .venv-oldest
PYTHON := $(VENV)/bin/python
# The Pythons that make .venv (also .venv-beam, .venv-ray, .venv-serving, .venv-parity and .venv-gpu), .venv-tfa,
# .venv-tpu and .venv-docs; empty: the first suitable one on the PATH.
BASE_PYTHON ?=
BASE_PYTHON_TFA ?=
BASE_PYTHON_TPU ?=
BASE_PYTHON_DOCS ?=
# For example: make test PYTEST_ARGS='tests/data -x'
PYTEST_ARGS ?=
# A file's tests stay together, so that each of its trained models is made once; the order of the files is kept, since
# some of the longest have few tests and would come last.
# A worker more than there are cores, since tests also wait for the disk and for other processes.
IN_PARALLEL := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# What `make test-tfa` leaves out: tests of code that imports neither TensorFlow nor NumPy, the packages whose other
# versions this profile has. `make test` runs them with the same result. A new test is never left out by itself.
NOT_IN_TEST_TFA := tests/config tests/leaderboard tests/experiments/test_catalog.py \
  tests/experiments/test_command.py tests/experiments/test_vocabularies.py tests/docs/test_assemble.py \
  tests/docs/test_flags.py tests/test_app.py tests/test_skipped_in_ci.py tests/test_wheel.py tests/data_prep/readers
# For example: make torture TORTURE_ARGS='kills --seed=7 --share=0.1'
TORTURE_ARGS ?=
# Recorded data to compare with: `python benchmarks/parity.py --help` says what there may be.
PARITY_ARGS ?=
# For example: make tpu-aot TPU_ARGS='--models=albert_base --lengths=512 --chips=v3'
TPU_ARGS ?=

# Without it libtpu asks the cloud's metadata server for minutes which TPU this machine has.
NO_TPU := env TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v3-8 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 \
  ALLOW_MULTIPLE_LIBTPU_LOAD=1
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu setup-tpu demo test test-thorough test-slow test-beam test-ray test-serving test-tfa test-tpu test-parity test-newest test-oldest torture lint format bench parity notebooks docs tpu-aot clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/installed  ## make .venv with the pinned packages

demo: setup  ## pretrain a small ALBERT on this machine, evaluate it and plot its curves (minutes)
	PYTHON=$(PYTHON) bash examples/demo.sh

test: setup  ## run the fast tests
	$(PYTHON) -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

test-thorough: setup  ## run the tests that repeat checks of the fast tests for more cases
	$(PYTHON) -m pytest -m 'thorough and not slow and not serving' $(IN_PARALLEL) $(PYTEST_ARGS)

test-slow: setup  ## run the tests that take minutes
	$(PYTHON) -m pytest -m slow $(PYTEST_ARGS)

torture: setup  ## kill, damage, fill up and interrupt every command, and count what it withstands (most of an hour)
	$(PYTHON) -m tests.torture $(TORTURE_ARGS)

test-beam: $(VENV_BEAM)/installed  ## run the tests of data preparation with Apache Beam, in .venv-beam
	$(VENV_BEAM)/bin/python -m pytest -m 'slow or not slow' tests/data_prep/runners/test_beam.py $(PYTEST_ARGS)

test-ray: $(VENV_RAY)/installed  ## run the tests of data preparation on a Ray cluster of two nodes, in .venv-ray
	$(VENV_RAY)/bin/python -m pytest -m 'slow or not slow' tests/data_prep/runners/test_ray.py $(PYTEST_ARGS)

test-serving: $(VENV_SERVING)/installed $(VENV_SERVING)/javascript/installed  ## run the tests of exports to ONNX and TFLite and of the example server, in .venv-serving
	$(VENV_SERVING)/bin/python -m pytest -m 'serving and not slow' $(IN_PARALLEL) $(PYTEST_ARGS)

test-tfa: $(VENV_TFA)/installed  ## run the fast tests with TensorFlow 2.15 and tensorflow-addons, in .venv-tfa
	$(VENV_TFA)/bin/python -m pytest $(IN_PARALLEL) $(addprefix --ignore=,$(NOT_IN_TEST_TFA)) $(PYTEST_ARGS)

test-newest: $(VENV_NEWEST)/installed  ## run the fast tests with the newest libraries that setup.py allows, without pins, in .venv-newest
	$(VENV_NEWEST)/bin/python -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

test-oldest: $(VENV_OLDEST)/installed  ## run the fast tests with the oldest libraries that setup.py allows, in .venv-oldest
	$(VENV_OLDEST)/bin/python -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

lint: setup  ## check style, format, types, the order of imports and the size of the source
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) .ci/size.py

format: setup  ## format the code, and mend what the linter can mend
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

bench: setup $(VENV_PARITY)/installed  ## measure data preparation, and a training step beside transformers and keras-hub
	PYTHON=$(PYTHON) PEERS_PYTHON=$(VENV_PARITY)/bin/python bash benchmarks/run.sh

test-parity: $(VENV_PARITY)/installed  ## run the tests that compare with torch and transformers, in .venv-parity
	$(VENV_PARITY)/bin/python -m pytest tests/parity tests/data_prep/test_train_vocab.py \
	  tests/benchmarks/test_gpu_step.py $(IN_PARALLEL) $(PYTEST_ARGS)
	$(VENV_PARITY)/bin/python -m pytest -m 'thorough and not slow' $(IN_PARALLEL) tests/data_prep/test_train_vocab.py \
	  tests/tokenization/test_byte_bpe.py tests/integration/test_kinds_of_vocabulary.py $(PYTEST_ARGS:.xml=-thorough.xml)

parity: test-parity  ## these tests, then a table of differences to Hugging Face's models and to recorded numbers
	$(VENV_PARITY)/bin/python benchmarks/parity.py \
	  $(if $(wildcard $(VENV_TFA)/installed),--tfa_python=$(VENV_TFA)/bin/python) $(PARITY_ARGS)

setup-gpu: $(VENV_GPU)/installed  ## make .venv-gpu, with TensorFlow and the CUDA libraries for NVIDIA GPUs

setup-tpu: $(VENV_TPU)/installed  ## make .venv-tpu, with TensorFlow for Cloud TPU

test-tpu: setup-tpu  ## lower and compile the training steps for a TPU that need not be there, in .venv-tpu
	$(NO_TPU) $(VENV_TPU)/bin/python -m pytest tests/benchmarks/test_tpu_aot.py -n 2 --dist=worksteal $(PYTEST_ARGS)

tpu-aot: setup-tpu  ## find the largest batches that fit Cloud TPU v2 to v6e (hours; goes on where it was stopped)
	$(VENV_TPU)/bin/python benchmarks/tpu_aot.py $(TPU_ARGS)

notebooks: setup  ## execute the notebooks, whose outputs the next `make docs` shows (minutes)
	rm -rf build/notebooks
	mkdir -p build/notebooks
	cp examples/*.ipynb build/notebooks
	PATH="$(abspath $(VENV))/bin:$$PATH" TF_CPP_MIN_LOG_LEVEL=3 \
	  $(VENV)/bin/jupyter-execute --inplace --timeout=1200 build/notebooks/*.ipynb

docs: $(VENV_DOCS)/installed  ## build the documentation site in site/, in .venv-docs; a broken link or reference fails
	$(VENV_DOCS)/bin/python -m docs.builder.assemble build/docs
	$(VENV_DOCS)/bin/zensical build --strict --clean --config-file mkdocs.yml

clean:  ## remove builds and caches
	rm -rf build dist site .cache *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environments, too
	rm -rf $(VENV) $(VENV_BEAM) $(VENV_RAY) $(VENV_SERVING) $(VENV_TFA) $(VENV_PARITY) $(VENV_TPU) $(VENV_GPU) $(VENV_DOCS) \
	  $(VENV_NEWEST) $(VENV_OLDEST)

# The beginning of a line of shell: a line every 5 seconds until the shell ends, since the installation says nothing.
define show_progress
	@start=$$(date +%s); \
	(while sleep 5; do echo "  $$(( $$(date +%s) - start )) s"; done) & \
	clock=$$!; trap 'kill $$clock 2>/dev/null' EXIT;
endef

# $(call new_venv,folder,candidates,wanted,variable), the beginning of a line of shell. A candidate is run, since a
# launcher may exist whose Python doesn't.
define new_venv
$(show_progress) \
	set -e; \
	if ! $(1)/bin/python -c '' 2>/dev/null; then \
	  found=; \
	  for candidate in $(2); do \
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit("%d.%d" % sys.version_info[:2] not in "$(3)".split())' \
	        2>/dev/null; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: none of '$(strip $(2))' is Python $(3) with its venv module:" \
	      "install one, or name it with $(4)=/path/to/python" >&2; \
	    exit 2; \
	  fi; \
	  echo "Making $(1) with $$found ..."; \
	  "$$found" -m venv --clear $(1); \
	fi; \
	$(1)/bin/python $(PIP_INSTALL) uv || true;
endef

# $(call install,folder,arguments), a command of shell. uv takes a third of pip's time or less, but reads no settings of
# pip: where it cannot install, for example because only pip knows the package index, pip does.
install = UV_FIND_LINKS="$$PIP_FIND_LINKS" $(1)/bin/python -m uv pip install --quiet \
  --python=$(1)/bin/python $(2) || $(1)/bin/python $(PIP_INSTALL) $(2)

# $(call make_venv,folder,constraints,extras,candidates,wanted,variable): the file `installed` is touched last, so
# an interrupted installation is taken up again.
define make_venv
$(call new_venv,$(1),$(4),$(5),$(6)) \
	echo "Installing TensorFlow and the rest into $(1) (about 3 GB) ..."; \
	$(call install,$(1),-c $(2) setuptools wheel -e '.[$(3)]'); \
	touch $@
endef

CANDIDATES := python3.13 python3.12 python3.11 python3.10 python3
CANDIDATES_TFA := python3.11 python3.10 python3
CANDIDATES_TPU := python3.11 python3.12 python3.13 python3

$(VENV)/installed: setup.py constraints/default.txt
	$(call make_venv,$(VENV),constraints/default.txt,dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_BEAM)/installed: setup.py constraints/default.txt constraints/beam.txt
	$(call make_venv,$(VENV_BEAM),constraints/beam.txt,beam$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_RAY)/installed: setup.py constraints/default.txt constraints/ray.txt
	$(call make_venv,$(VENV_RAY),constraints/ray.txt,ray$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_SERVING)/installed: setup.py constraints/default.txt constraints/serving.txt
	$(call make_venv,$(VENV_SERVING),constraints/serving.txt,onnx$(comma)tflite$(comma)server$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.11 3.12 3.13,BASE_PYTHON)

# The package of examples/javascript. Without Node.js or its registry, the test that needs it is skipped.
$(VENV_SERVING)/javascript/installed: $(VENV_SERVING)/installed $(wildcard examples/javascript/package*.json)
	@mkdir -p $(@D) && cp examples/javascript/package*.json $(@D); \
	if npm ci --ignore-scripts --silent --prefix $(@D); then touch $@; \
	else echo "npm could not install onnxruntime-node: the answers of examples/javascript are not tested"; fi

$(VENV_PARITY)/installed: setup.py constraints/default.txt constraints/parity.txt
	$(call make_venv,$(VENV_PARITY),constraints/parity.txt,parity$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.11 3.12 3.13,BASE_PYTHON)

$(VENV_GPU)/installed: setup.py constraints/default.txt constraints/gpu.txt
	$(call make_venv,$(VENV_GPU),constraints/gpu.txt,gpu$(comma)dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

$(VENV_TFA)/installed: setup.py constraints/tf215-tfa.txt
	$(call make_venv,$(VENV_TFA),constraints/tf215-tfa.txt,tfa$(comma)dev,$(or $(BASE_PYTHON_TFA),$(CANDIDATES_TFA)),3.10 3.11,BASE_PYTHON_TFA)

# No pins. It is made anew when setup.py changes; `make distclean` or rm makes it anew when newer versions appear.
$(VENV_NEWEST)/installed: setup.py
	$(call make_venv,$(VENV_NEWEST),/dev/null,dev,$(or $(BASE_PYTHON),$(CANDIDATES)),3.10 3.11 3.12 3.13,BASE_PYTHON)

# The lower bounds of install_requires; the tools of the extra `dev` are the newest that go with them.
$(VENV_OLDEST)/installed: setup.py
	$(call new_venv,$(VENV_OLDEST),$(or $(BASE_PYTHON_TFA),python3.10 $(CANDIDATES_TFA)),3.10 3.11,BASE_PYTHON_TFA) \
	echo "Installing the oldest libraries into $(VENV_OLDEST) (2 GB) ..."; \
	$(VENV_OLDEST)/bin/uv pip compile --quiet --python=$(VENV_OLDEST)/bin/python --resolution=lowest-direct setup.py \
	  --output-file=$(VENV_OLDEST)/oldest.txt; \
	$(call install,$(VENV_OLDEST),-c $(VENV_OLDEST)/oldest.txt setuptools wheel -e '.[dev]'); \
	touch $@

# tf-keras and tensorflow-text would pull in stock tensorflow over tensorflow-tpu.
$(VENV_TPU)/installed: setup.py constraints/tpu.txt
	$(call new_venv,$(VENV_TPU),$(or $(BASE_PYTHON_TPU),$(CANDIDATES_TPU)),3.11 3.12 3.13,BASE_PYTHON_TPU) \
	echo "Installing TensorFlow for Cloud TPU and the rest into $(VENV_TPU) (3 GB) ..."; \
	$(call install,$(VENV_TPU),--no-deps -r constraints/tpu.txt -e .); \
	touch $@

# What the pages are made with, and what the definitions of the flags import: no TensorFlow.
$(VENV_DOCS)/installed: constraints/docs.txt
	$(call new_venv,$(VENV_DOCS),$(or $(BASE_PYTHON_DOCS),$(CANDIDATES)),3.11 3.12 3.13,BASE_PYTHON_DOCS) \
	$(call install,$(VENV_DOCS),--no-deps -r constraints/docs.txt); \
	touch $@

comma := ,
