# make demo and make test do all the set-up on a fresh machine; everything goes into .venv.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test attack laws-avx2 laws-default lint types browser docs lessons figures sweep load slow gpu lock audit clean

help:  ## say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)  ## learn to read dates in a minute and show the attention map
	$(BIN)/regard demo

# Two processes for each of up to four cores: then a busy process beside the tests takes a smaller share of the machine.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( cores < 4 ? 2 * cores : 8 )))

# Prints what each of two parallel targets wrote as a whole; make 3.81, which macOS has, cannot do that.
WHOLE := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: $(READY) lint types browser  ## ruff, mypy and all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(MAKE) --no-print-directory -j2 $(WHOLE) laws-avx2 laws-default

# Processors and numbers of threads differ in the last bits of a sum. So the laws run twice more, side by side: as on a
# processor with AVX2 (by two threads), and as on one without AVX (by one); all else ran once, as on this one. The second
# of them runs definitions in place of all fast paths (REGARD_PLAIN=1, see kernels/choose.py), the first both. Here the
# shapes in signatures are checked too (REGARD_CHECK_SHAPES). Left out, for time, is what no processor changes: the laws
# of capture (fake tensors), of conversion and of hooks (which module is called), of search and sampling (the laws of
# decoders hold their numbers), that every combination learns (whether a loss is halved), and that a stopped training
# ends with the same bits (what a checkpoint has); and arguments of wrong types, which the check of signatures refuses
# before the sentence that is tested.
LEFT_OUT := every_combination_learns or stopped_training or wrong_arguments or wrong_places
LAWS = REGARD_CHECK_SHAPES=1 $(BIN)/pytest tests/laws tests/kernels tests/attention -k "not ($(LEFT_OUT))" \
  $(foreach laws,capture conversion hook search sampling,--ignore tests/laws/test_$(laws)_laws.py)

# Without the laws of decoders and of the whole model: those of their parts hold their numbers; and without
# EfficientNet, in whose many small convolutions two threads mostly wait for each other.
laws-avx2: LEFT_OUT += or efficientnet
laws-avx2: $(READY)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=2 $(LAWS) \
	  --ignore tests/laws/test_decoder_laws.py --ignore tests/laws/test_spine.py

# Without what definitions have no second way to do on any processor: recording (it turns fast paths off), gradients
# (those of autograd), which rows a beam takes and which parameters are reached (stepping holds their numbers); and
# without the training of every task with shapes checked, which the other one does.
laws-default: LEFT_OUT += or finite_differences or select_takes_rows or beams_share or has_a_gradient_under_dropout
laws-default: LEFT_OUT += or recording_changes_no_bit
laws-default: $(READY)
	REGARD_PLAIN=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 OMP_NUM_THREADS=1 $(LAWS) \
	  --ignore tests/laws/test_recording_laws.py --ignore tests/laws/test_shape_laws.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)  ## write the pages that are made from the source
	$(BIN)/python docs/recipes.py
	$(BIN)/python docs/mechanisms.py

lessons: $(READY)  ## run all lessons; pictures go to lessons-out
	for lesson in $$(ls docs/lessons/lesson_*.py | sort -t_ -k2n); do $(BIN)/python "$$lesson" || exit 1; done

browser:  # the tests of HTML maps look at them in chromium
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "Installing chromium, which the tests of HTML maps use; once." && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "No chromium here and none could be installed: the tests that need it are skipped, or fail if CI=true."

figures: $(READY) browser  ## make the pictures of the docs anew (some minutes)
	$(BIN)/python docs/figures/bottleneck.py
	$(BIN)/python docs/figures/map.py
	$(BIN)/python docs/figures/walk.py
	$(BIN)/python docs/figures/screens.py
	$(BIN)/python docs/figures/sources.py
	$(BIN)/python docs/figures/pages.py
	$(BIN)/python docs/figures/forecast.py
	$(BIN)/python docs/figures/serve.py

sweep: $(READY)  ## train 57 combinations of order, score and scope and print what each reaches (hours on two cores)
	$(BIN)/python benchmarks/sweep.py

# MIXED=3600 adds an hour of mixed load.
load: SECONDS = 60
load: MIXED = 60
load: $(READY)  ## the server under load: one client and 64, more than it can take, a mixture (some minutes)
	test -d runs/load || $(BIN)/regard train dates name=load train.updates=700
	$(BIN)/python benchmarks/serve.py runs/load --seconds $(SECONDS) --mixed $(MIXED)

attack: $(READY)  ## the whole attack on runs, recipes, data and terminals, of which make test runs a sample
	REGARD_ATTACK=whole OMP_NUM_THREADS=1 $(BIN)/pytest tests/attack -n $(WORKERS)

slow: $(READY)  ## the tests that make test leaves out for time
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n $(WORKERS)

ANY_PYTHON := $$(test -x $(BIN)/python && echo $(BIN)/python || echo python3)

gpu:  ## the tests that need a GPU, alone; by .venv, or by the python3 that is there
	PYTHONPATH=src $(ANY_PYTHON) -m pytest -m gpu tests

lock:  # write the hashes of the constraints files, after a version in them was changed
	$(ANY_PYTHON) tools/lock.py

audit:  ## ask for known vulnerabilities of the packages that make installs (needs the internet)
	$(ANY_PYTHON) tools/audit.py $(VENV)/audit

clean:  ## remove the environment and all that was built; runs stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
PIP_DOWNLOAD := $(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps

# All packages come from files whose hashes are known: first what builds packages from source, then torch, then the
# others. torch is downloaded first, since pip would choose by hash, not by version: the CUDA build before a CPU build.
# For regard itself pip then fetches no more than what the CUDA build needs (see constraints-torch.txt).
$(READY): pyproject.toml constraints-build.txt constraints-torch.txt constraints.txt
	@python=$$(for each in python3 python3.11 python3.12; do \
	  "$$each" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo "$$each" && break; \
	done); \
	test -n "$$python" || { echo "regard needs Python 3.11 or 3.12 on the PATH" >&2; exit 1; }; \
	echo "Setting up $(VENV) with $$("$$python" --version); this takes a minute or two, once." && \
	"$$python" -m venv $(VENV) && \
	$(PIP) --no-deps --require-hashes --only-binary=:all: -r constraints-build.txt && \
	$(PIP_DOWNLOAD) -d $(VENV)/torch $$(grep -o "^torch==[0-9.]*" constraints-torch.txt) && \
	$(PIP) --no-deps --require-hashes --no-index --find-links=$(VENV)/torch -r constraints-torch.txt && \
	rm -r $(VENV)/torch && \
	$(PIP) --no-deps --require-hashes --no-build-isolation --use-pep517 -r constraints.txt && \
	$(PIP) --no-build-isolation -e '.[corpora,plot,papers,parquet,vision,audio,serve,hf,export,ray,dev]' && \
	touch $@
