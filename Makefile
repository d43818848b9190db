# Each target sets up everything it needs, given Python 3.11+ and pip:
#   make demo        maps a sample town and localizes photos in it
#   make check       linters, type checks and tests, as in CI
#   make test        only the tests
#   make test-fast   the tests without browsers, killed processes, real weights, servers and slow cases
#   make faults      the full fault campaign: kills, full disks, hostile files and requests
#   make fuzz        a minute of coverage-guided fuzzing of each reader (TARGET=png SECONDS_EACH=600: one reader, longer)
#   make histories   random histories of edits, kills and queries, compared with a model (OPERATIONS=2000: fewer)
#   make soak        an hour of 200 clients, a flood and a dying store; latency must hold (SECONDS=60: a minute)
#   make docs        builds the documentation site in build/site; checks links and word counts
#   make dist        builds wheels and sdists of both distributions in dist/, from files with known hashes
#   make audit       checks the pinned dependencies for known vulnerabilities; needs a network
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Worker processes of the tests. All tests of a file run in one worker and share its fixtures. tests/conftest.py orders
# the files, slow ones first. Each worker uses one thread: more threads would compete for the cores.
# Test files go to /dev/shm if it has 4 GB free, because every write is synced.
WORKERS ?= 2
MEMORY  := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')
PYTEST  := $(MEMORY) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Datasets in results/README.md: name=folder below DATA
RESULTS_OF := sped=sped nordland-540=nordland gardens-point=gardens_point_day_day campus-loop=campus_loop \
              corridor=corridor berlin-kudamm=berlin_kudamm berlin-a100=berlin_a100 aerial-seneca=aerial_seneca

# Folder for the counts and failures of the fault campaign.
FAULTS_OUT ?= faults-out

.PHONY: demo browser lint style test test-fast check faults fuzz histories results soak audit docs dist clean

# Tests start hundreds of processes, so let the first one cache the compiled modules.
unexport PYTHONDONTWRITEBYTECODE

# Stamp files: an environment is updated when the dependencies change. A newer pip is faster, but not required.
# --no-compile: modules are compiled when they are imported, which saves a minute here.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	-$(PIP) --upgrade 'pip>=25'
	touch $@

# The package and its base dependencies: enough for the demo.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) --no-compile -c constraints.txt -e .
	touch $@

# Everything that tests and checks need, including the packages of the demo.
$(VENV)/.installed: pyproject.toml benchmarks/pyproject.toml constraints.txt plugins/tfa-lance/pyproject.toml plugins/tfa-milvus/pyproject.toml plugins/tfa-qdrant/pyproject.toml | $(VENV)/.created
	$(PIP) --no-compile -c constraints.txt -e '.[dev]' -e ./benchmarks -e ./plugins/tfa-lance -e ./plugins/tfa-milvus -e ./plugins/tfa-qdrant
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/tfa demo --out demo-out

# The web page is tested in Chromium, which is installed if it is missing. Without it, these tests are skipped.
browser: $(VENV)/.installed
	@$(BIN)/python -m tests.browser.find_browser --install

lint: style
	$(BIN)/mypy

# Linters that take seconds.
style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint examples/deploy/Dockerfile

test: $(VENV)/.installed browser
	$(PYTEST)

test-fast: $(VENV)/.installed
	$(PYTEST) -m "not browser and not kill and not encoder and not slow and not faults and not stores"

# mypy uses one core for a minute. Meanwhile, another process compiles the tests and their imports, so that the workers
# do not both compile them. Then the tests run. The output of mypy comes last.
check: style
	$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q --collect-only > /dev/null; \
	$(MAKE) test; tested=$$?; wait $$types; typed=$$?; cat $(VENV)/mypy.txt; exit $$((tested | typed))

# The table is written even if a test failed; then make fails, too.
faults: $(VENV)/.installed
	rm -rf $(FAULTS_OUT)
	TFA_FAULTS=full TFA_FAULTS_OUT=$(abspath $(FAULTS_OUT)) $(PYTEST) tests/faults; tested=$$?; \
	$(BIN)/python -m tests.faults.table $(FAULTS_OUT) --docs docs/explanation/reliability.md && exit $$tested

# Without a wheel of atheris for this machine, files are damaged by seed.
TARGET       ?= all
SECONDS_EACH ?= 60
fuzz: $(VENV)/.installed
	@$(PIP) --no-compile -c constraints.txt -e '.[fuzz]'
	$(MEMORY) $(BIN)/python -m tests.faults.fuzz "$(TARGET)" --seconds $(SECONDS_EACH)

# Runs the heads of the results page on the eight datasets below DATA, then writes results/README.md and the tables of
# the documentation. Records have 20 images per query for heads whose R@20 the page shows (12 with ten splits), and
# fewer for the others.
SHIPPED = peers,verified-peers,spectral,calibrated,budgets,dual,dual-branches,ablations,default-ablations,carriers,ours
SECOND_ENCODER = dinov2-s14-reg-mri
SECOND_HEADS = anyloc,tfvpr,ria,tfa,tfa-c64,dual-c64,default,second-order-1-v,second-order-1-online-v
RESULTS_ENCODER ?= dinov2-s14-focus
DATASETS = $(foreach pair,$(RESULTS_OF),--dataset $(firstword $(subst =, ,$(pair)))=$(DATA)/$(lastword $(subst =, ,$(pair))))
results: $(VENV)/.installed
	@test -d "$(DATA)" || { echo "pass the folder of the datasets: make results DATA=data"; exit 1; }
	$(BIN)/tfa bench run --encoder $(RESULTS_ENCODER) --heads main --depth 20 --split-depth 12 --out results $(DATASETS)
	$(BIN)/tfa bench run --encoder $(RESULTS_ENCODER) --heads $(SHIPPED) --depth 5 --split-depth 1 --out results $(DATASETS)
	$(BIN)/tfa bench run --encoder $(RESULTS_ENCODER)/l5+7 --heads default,depth-ablations --depth 5 --split-depth 1 --out results $(DATASETS)
	$(BIN)/tfa bench run --encoder $(SECOND_ENCODER) --heads $(SECOND_HEADS) --depth 5 --split-depth 1 --out results $(DATASETS)
	$(BIN)/tfa bench results --records results --out results/README.md
	$(BIN)/python docs/site/fill_tables.py

# A failed history is repeated with the command that is printed: --where, --seed and --history. Each place gets a share of
# the operations: one takes 0.02 s in memory, 0.03 s in a folder and up to 1.5 s in a store. `make -j2` runs two places.
OPERATIONS ?= 200000
SEED       ?= 1
HISTORIES  := histories-folder-2 histories-memory-2 histories-postgres-40 histories-lance-200 histories-milvus-200 \
              histories-qdrant-40
HISTORIES_OUT ?= build/histories
.PHONY: $(HISTORIES)
histories: $(HISTORIES)
	$(BIN)/python -m tests.faults.table $(HISTORIES_OUT) --of histories --docs docs/explanation/reliability.md
$(HISTORIES): histories-%: $(VENV)/.installed
	$(MEMORY) OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.histories --seed $(SEED) \
	  --where $(firstword $(subst -, ,$*)) --operations $$(($(OPERATIONS) / $(lastword $(subst -, ,$*)))) --out $(HISTORIES_OUT)

SECONDS ?= 3600
soak: $(VENV)/.installed
	TFA_SOAK_SECONDS=$(SECONDS) $(BIN)/python -m tests.faults.service.soak --docs docs/explanation/reliability.md

# pip-audit looks up known vulnerabilities on PyPI. A version that cannot be looked up is listed and makes it fail.
audit: $(VENV)/.installed
	@$(PIP) --no-compile -c constraints.txt -e '.[audit]'
	@$(BIN)/python -m tests.dependencies.audit

# The documentation as a site in build/site; fails on a broken link or a page above its word limit.
docs: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site/make_site.py build

# A new environment has only files with known hashes. The wheel is installed there and started.
dist:
	rm -rf $(VENV)-dist dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements-build.txt
	$(VENV)-dist/bin/python -m hatchling build --directory dist
	cd benchmarks && $(abspath $(VENV)-dist/bin/python) -m hatchling build --directory $(abspath dist)
	$(VENV)-dist/bin/python -m pip install --quiet --no-deps --no-index dist/tfa_vpr-*.whl
	$(VENV)-dist/bin/tfa --version

clean:
	rm -rf $(VENV) $(VENV)-dist demo-out $(FAULTS_OUT) dist build
