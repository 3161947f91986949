# `make demo` and `make test` install by themselves, once; see README.md.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test lint unit docs bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,onnx,tensorboard,bench,boost,faiss,fairness,weak,ray]'
	touch $@

demo: install
	$(BIN)/warmstart demo -o out/demo

test: install
	+$(MAKE) -j2 lint docs
	+$(MAKE) unit

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

# every worker and every process it starts keeps to one core
unit: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

docs: install
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: install
	$(BIN)/warmstart bench -o out/bench

clean:
	rm -rf out dist docs/_build docs/_generated .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
