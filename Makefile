# Everything runs in .venv, made on first use with any Python from 3.11 on.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Of plotly.js, which draws the figures of a report's page.
PLOTLY := 4.1.1
PLOTLY_FILES := selsync_jax/report/plotly

# Another Python than that of a .venv which exists would not be used, unnoticed.
version = $(shell $(1) -c 'import platform; print(platform.python_version())')
ifeq ($(origin PYTHON) $(wildcard $(BIN)/python),command line $(BIN)/python)
ifneq ($(call version,$(BIN)/python),$(call version,$(PYTHON)))
$(error $(VENV) has Python $(call version,$(BIN)/python): add VENV=.venv-other, \
	or remove $(VENV) first)
endif
endif

.PHONY: train test pytest test-random test-all lint format check-docs results \
	stragglers paper evidence delays plotly docs clean

train: $(VENV)/train.stamp
	$(BIN)/python train.py

# What is quick: five to ten minutes the first time. Much of that goes into
# compiling small programs, which pytest's cache keeps for the next time. XLA
# takes its cheapest way here: LLVM does not optimize, a program is one module,
# and fusions have no code generator of their own where XLA can still do without,
# which is in jaxlib 0.10. That halves the time of a program.
# What is slow runs as users run it, but for what compiles even more programs:
# conformance, meshes, islands in one process, benchmarks, the commands of the
# pages, the methods' own tests, and runs that start dozens of times.
PLAIN := --xla_cpu_use_fusion_emitters=false
CHEAP = XLA_FLAGS="--xla_backend_optimization_level=0 \
	--xla_cpu_parallel_codegen_split_count=1 $$($(BIN)/python -c \
	'import jaxlib; print("$(PLAIN)" * (jaxlib.__version__ < "0.11"))')"
# Two cores are busy with three: some tests wait for a process or a clock.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal
QUICK = $(CHEAP) $(PYTEST) -m 'not slow'
COMPILE := tests/conformance_test.py tests/benchmarks tests/docs tests/methods \
	tests/simulate tests/sync tests/commands/config_file_test.py \
	$(patsubst %,tests/islands/%_test.py, admission island pace regroup trainer) \
	$(patsubst %,tests/training/%_test.py, damaged_runs mesh mesh_runs nnx resize)

test: lint pytest

pytest: $(VENV)/test.stamp
	$(QUICK)

# The same in a random order. `make test-random SEED=1` repeats one; the seed is
# in the first lines of a run.
test-random: $(VENV)/test.stamp
	$(QUICK) -p randomly $(if $(SEED),--randomly-seed=$(SEED))

test-all: test
	$(CHEAP) $(PYTEST) -m slow $(COMPILE)
	$(PYTEST) -m slow $(COMPILE:%=--ignore=%)

# Every tool runs, also after one that failed.
lint: $(VENV)/test.stamp
	@failed=0; \
	for tool in 'ruff check .' 'ruff format --check .' \
			'pyrefly check --python-interpreter-path $(BIN)/python' \
			'python docs/check.py'; do \
		echo "$$tool"; $(BIN)/$$tool || failed=1; \
	done; exit $$failed

# Figures in README and docs that name no command, and commands that are gone.
check-docs: $(VENV)/train.stamp
	$(BIN)/python docs/check.py

# What `make lint` says of the format, and some of the rest, done.
format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# The tables of docs/how-it-decides.md and docs/comparison.md, measured again.
results: $(VENV)/test.stamp
	$(BIN)/python compare.py \
		--columns=validation_accuracy,difference,of_bsp
	$(BIN)/python -m benchmarks.marked runs/compare-digits/comparison.md \
		docs/how-it-decides.md
	$(BIN)/python compare.py --methods=all --lrs=1x,2x \
		--config.seed=100 --config.data.backend=numpy \
		--out=runs/compare-all \
		--columns=validation_accuracy,difference,of_bsp,test_accuracy
	$(BIN)/python -m benchmarks.marked runs/compare-all/comparison.md \
		docs/comparison.md
	$(BIN)/python docs/pictures.py runs/compare-all front-loss

# The tables of docs/stragglers.md, measured again: every method on three virtual
# clusters.
stragglers: $(VENV)/train.stamp
	$(BIN)/python -m benchmarks.quality.stragglers --into=docs/stragglers.md

# The first tables of docs/evidence.md, measured again. That takes days on two
# cores, and `make evidence EVIDENCE=quick`, with smaller models, three hours.
evidence: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.quality.evidence --into=docs/evidence.md \
		$(or $(EVIDENCE:%=--%),--emulated=5)

# What late averages cost, in benchmarks/README.md, measured again. The table takes
# an hour on two cores, the figure another.
delays: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.quality.delay --into=benchmarks/README.md
	$(BIN)/python -m benchmarks.quality.delay --picture --delays 1 2 4 8 16 32 \
		--recipes 'Muon, plain' 'mean and moments, half and half' \
		--out=delays.json
	$(BIN)/python docs/pictures.py runs/delay delays

# The tables of docs/paper.md, measured again: the papers' claims, one by one.
paper: $(VENV)/train.stamp
	$(BIN)/python -m benchmarks.quality.paper --into=docs/paper.md

# The library in the page of a report, from npm: its basic bundle, compressed.
plotly:
	npm pack --silent --pack-destination=$(PLOTLY_FILES) \
		plotly.js-basic-dist-min@$(PLOTLY)
	tar -xzf $(PLOTLY_FILES)/*.tgz -C $(PLOTLY_FILES) --strip-components=1 \
		package/plotly-basic.min.js package/LICENSE
	gzip -9nf $(PLOTLY_FILES)/plotly-basic.min.js
	rm $(PLOTLY_FILES)/*.tgz

# The site of the documentation, with the API. It runs the notebook, too.
docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx --fail-on-warning --quiet docs build/site

$(VENV)/train.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "selsync_jax needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 ...")'
	@echo 'Installing selsync_jax, JAX, and TensorFlow into $(VENV): 2.6 GB, once, in one to seven minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --editable '.[train]'
	touch $@

$(VENV)/test.stamp: $(VENV)/train.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[train,test,reference,docs]'
	touch $@

$(VENV)/docs.stamp: $(VENV)/train.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[train,docs]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache
