# Everything runs in .venv, made on first use from Python 3.11 and pip alone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BENCHMARKS := start sampling training job_memory

.PHONY: demo test lab lint bench clean
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/python notebooks/run.py notebooks/01_first_loop.ipynb

test: lint
	$(BIN)/python -m pytest tests
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg -p no:cacheprovider notebooks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lab: $(READY)
	$(BIN)/jupyter lab notebooks

bench: $(READY)
	@status=0; for script in $(BENCHMARKS:%=benchmarks/%.py); do echo "== $$script"; $(BIN)/python $$script || status=1; done; exit $$status

clean:
	rm -rf .venv .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
