# make demo     train a small GPT on real text (ARGS="--steps 200" passes options on)
# make test     lint, types and the test suite: of tests with many rows some
# make test-more    the other rows, and tests that take long
# make test-peers   tests against PyTorch, JAX, ONNX Runtime and others, in an environment of theirs
# make lint     ruff and mypy alone
# make bench    the same work on funcgrad, JAX, PyTorch and NumPy, side by side
# make docs     HTML from docstrings and notebooks, into build/docs
# make clean    remove the environment, caches and everything built
#
# Each needs python3 >= 3.11 and nothing else; another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-more test-peers lint bench docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.examples
	$(BIN)/python examples/gpt.py $(ARGS)

# The workers share the cores, so each keeps its BLAS to one thread.
test: lint
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
	    $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 10 $(ARGS)

test-more: $(VENV)/.test
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
	    $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --more $(ARGS)

test-peers:
	$(MAKE) VENV=$(PEERS) $(PEERS)/.peers
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
	    $(PEERS)/bin/python -m pytest -n $(JOBS) --dist worksteal --peers tests/peers $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks --out benchmarks/out $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/pdoc --docformat markdown --math --output-directory build/docs funcgrad
	$(BIN)/jupyter nbconvert --to html --execute --output-dir build/docs/notebooks notebooks/*.ipynb

clean:
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of packages: what is installed already is not looked at again until pyproject.toml changes.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "funcgrad needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + \
	    "; name another: make PYTHON=python3.13")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.examples $(VENV)/.test $(VENV)/.peers $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: $(VENV)/.created pyproject.toml
	@echo "Installing funcgrad[$*] into $(VENV)"
	$(INSTALL) --editable '.[$*]'
	@touch $@
