# Each of these does all the set-up on a fresh machine with Python 3.11+ and pip:
#   make demo        maps sample photos of a town, recognizes places in it
#   make check       everything a change must pass, as CI runs it
#   make test        the tests alone
#   make test-fast   without those that need a browser, a killed process, real weights or much time
#   make faults      the whole fault campaign: kills, full disks, hostile files and requests, by the ten thousand
#   make soak        an hour of mixed load on a service: memory, descriptors and threads stay flat (SECONDS=60: a minute)
#   make docs        the documentation as a site in build/site: generates the reference, checks links and word counts
#   make dist        wheels and sdists of both distributions in dist/
#   make audit       known weaknesses of the pinned dependencies; fails where no list of them can be reached
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Worker processes of the tests. The tests of one file stay in one of them and share what the file sets up; files are
# handed out in the order of tests/conftest.py, those that take long first. A thread each: workers that share the cores
# spend as much time again waiting for each other's threads.
# Their files, each of which is synced as it is written, lie in memory if 4 GB of that are free.
WORKERS ?= 2
MEMORY  := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')
PYTEST  := $(MEMORY) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Datasets of results/README.md, below the folder DATA: name=folder
RESULTS_OF := sped=sped nordland-540=nordland gardens-point=gardens_point_day_day campus-loop=campus_loop \
              corridor=corridor berlin-kudamm=berlin_kudamm berlin-a100=berlin_a100 aerial-seneca=aerial_seneca

# Where the fault campaign counts what it tried, and keeps what failed.
FAULTS_OUT ?= faults-out

.PHONY: demo browser lint style test test-fast check faults results soak audit docs dist clean

# Hundreds of processes import the same modules: the first one keeps what it compiled, whatever the caller's habit is.
unexport PYTHONDONTWRITEBYTECODE

# A stamp is remade whenever the dependencies change. A newer pip resolves in a third less time; an old one does as well.
# Most modules are never imported: those that are get compiled then, all of them would take a minute now.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	-$(PIP) --upgrade 'pip>=25'
	touch $@

# The package and its base dependencies: enough for the demo.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) --no-compile -c constraints.txt -e .
	touch $@

# Everything that tests and checks need, the demo included, so that nothing is installed twice.
$(VENV)/.installed: pyproject.toml benchmarks/pyproject.toml constraints.txt plugins/tfa-milvus/pyproject.toml plugins/tfa-qdrant/pyproject.toml | $(VENV)/.created
	$(PIP) --no-compile -c constraints.txt -e '.[dev]' -e ./benchmarks -e ./plugins/tfa-milvus -e ./plugins/tfa-qdrant
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/tfa demo --out demo-out

# The page is tested in a real Chromium: the one there is, or one installed now. Without any, those tests are skipped.
browser: $(VENV)/.installed
	@$(BIN)/python -m tests.browser.find_browser --install

lint: style
	$(BIN)/mypy

# What takes seconds.
style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint examples/deploy/Dockerfile

test: $(VENV)/.installed browser
	$(PYTEST)

test-fast: $(VENV)/.installed
	$(PYTEST) -m "not browser and not kill and not encoder and not slow and not faults and not stores"

# mypy takes one core for a minute. Meanwhile another process compiles the tests and what they import, so that two workers
# need not do the same; then the tests begin. What mypy said comes last, and counts as much as they do.
check: style
	$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q --collect-only > /dev/null; \
	$(MAKE) test; tested=$$?; wait $$types; typed=$$?; cat $(VENV)/mypy.txt; exit $$((tested | typed))

# The table is written whether something failed or not; make fails if something did.
faults: $(VENV)/.installed
	rm -rf $(FAULTS_OUT)
	TFA_FAULTS=full TFA_FAULTS_OUT=$(abspath $(FAULTS_OUT)) $(PYTEST) tests/faults; tested=$$?; \
	$(BIN)/python -m tests.faults.table $(FAULTS_OUT) --docs docs/explanation/reliability.md && exit $$tested

# Every head on the eight datasets below DATA: records and their page results/README.md, then the tables of the documentation. Heads whose deeper recalls the
# page prints keep 20 places, 12 where there are ten splits; of the others, records are kept small. The page is of the
# positions as transformers resamples them, for which every head was recorded; those of README and their rivals also of the default encoder.
SHIPPED = anyloc,ria,segvlad-superpixels,tfa,default
RESULTS_ENCODER ?= dinov2-s14-focus@322/hf
DATASETS = $(foreach pair,$(RESULTS_OF),--dataset $(firstword $(subst =, ,$(pair)))=$(DATA)/$(lastword $(subst =, ,$(pair))))
results: $(VENV)/.installed
	@test -d "$(DATA)" || { echo "give the folder of the datasets: make results DATA=data"; exit 1; }
	$(BIN)/tfa bench run --encoder $(RESULTS_ENCODER) --heads main --depth 20 --split-depth 12 --out results $(DATASETS)
	$(BIN)/tfa bench run --encoder $(RESULTS_ENCODER) --heads all --depth 5 --split-depth 1 --out results $(DATASETS)
	$(BIN)/tfa bench run --heads $(SHIPPED) --depth 5 --split-depth 1 --out results $(DATASETS)
	$(BIN)/tfa bench results --records results --encoder $(RESULTS_ENCODER) --out results/README.md
	$(BIN)/python docs/site/fill_tables.py

SECONDS ?= 3600
soak: $(VENV)/.installed
	TFA_SOAK_SECONDS=$(SECONDS) $(BIN)/python -m tests.faults.service.soak

# pip-audit asks PyPI for known weaknesses. Versions that nobody answers for are listed, and are no success.
audit: $(VENV)/.installed
	@$(PIP) --no-compile -c constraints.txt -e '.[audit]'
	@$(BIN)/python -m tests.dependencies.audit

# The documentation as a site in build/site; fails on a broken link or a page above its word limit.
docs: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site/make_site.py build

dist: $(VENV)/.installed
	$(BIN)/python -m hatchling build --directory dist
	cd benchmarks && $(abspath $(BIN))/python -m hatchling build --directory $(abspath dist)

clean:
	rm -rf $(VENV) demo-out $(FAULTS_OUT) dist build
