# One recipe a task. `make venv` is all the others need; it installs from PyPI alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
WAITING ?= 4
CORE := model vendors inventory placement scheduler wire
CORE_TESTS := $(CORE) conformance record upgrade

.DEFAULT_GOAL := help
.PHONY: help venv run test test-cluster check format coverage conformance reference docs hostile soak flood failover test-kube-scheduler soak-laws bench bench-openb bench-policy bench-small bench-startup bench-relist image try test-pods lock floors native native-aarch64 clean

help: ## Show what can be made
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: $(STAMP) ## Set up .venv with the partage command and the development tools

$(STAMP): pyproject.toml requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("Partage needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@# The file names all that is needed: a resolver would look at newer releases, and old ones of pip then want their hashes.
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check --quiet
	@touch $@

run: venv ## Start a whole cluster in one process with the examples of all four protocols; Ctrl-C ends it
	@$(BIN)/partage up

test: check coverage ## Lint, types, import contracts and all tests (what CI runs)

test-cluster: venv ## Tests on a genuine Kubernetes control plane and containerd, fetched once into the tool cache
	@tests/cluster/run

check: venv ## Lint, formatting, types, import contracts and plain English
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/docs/test_messages_are_plain.py

format: venv ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

coverage: venv ## Run the tests; branch coverage of the core by its own must be 95 % or more
	@# Counting makes the core's tests two to three times as slow, so the others do without. Most of those wait for
	@# processes and sockets, so that there may be more of them than processors.
	$(BIN)/python -m pytest -n $(JOBS) $(CORE_TESTS:%=tests/%) $(CORE:%=--cov=partage.%) --cov-branch --cov-report=term:skip-covered --cov-fail-under=95
	$(BIN)/python -m pytest -n $(WAITING) --dist worksteal --not-run-yet $(CORE_TESTS:%=--ignore=tests/%)

conformance: venv ## Write docs/conformance.md and docs/conformance: every result and manifest of the four published documents
	PYTHONPATH=tests/tools $(BIN)/python -m published

reference: venv ## Write the pages of docs/reference that are made from the program
	PYTHONPATH=tests/tools $(BIN)/python -m reference

docs: venv ## Build the documentation as a site into build/site; a warning is an error
	$(BIN)/mkdocs build --strict --quiet

hostile: venv ## What hostile tenants, strangers and thieves were tried with: a line each, and whether others noticed
	$(BIN)/python tests/tools/attacks.py

test-kube-scheduler: ## The plugin under staticcheck and the race detector, and built for other Kubernetes (KUBERNETES="1.35.4 1.37.2"); outside the gate
	cd kube-scheduler && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./... && CGO_ENABLED=1 go test -race ./...
	for one in $${KUBERNETES:-1.35.4 1.37.2}; do kube-scheduler/build-for $$one build/kube-scheduler-$$one || exit 1; done

soak: venv ## Churn with random faults (SOAK_MINUTES, SOAK_RATE pods a second, SOAK_SEED, SOAK_PEACE, SOAK_SEAM): nothing lost, doubled or leaked, and the rate kept
	PYTHONPATH=tests/tools $(BIN)/python tests/faults/soak.py --minutes $${SOAK_MINUTES:-20} --rate $${SOAK_RATE:-50} --seed $${SOAK_SEED:-0} --seam $${SOAK_SEAM:-plugin} --peace $${SOAK_PEACE:-90} --output build/soak

flood: venv ## 400 pods (PARTAGE_FLOOD) at 64 places of eight cards at once, half by names, half by claims, on a genuine control plane: no card is over its means at any moment
	tests/cluster/build
	PARTAGE_CLUSTER=1 PARTAGE_FLOOD=$${PARTAGE_FLOOD:-400} $(BIN)/python -m pytest -n0 -s tests/cluster/test_claims_and_pods_flood_the_same_cards.py

failover: venv ## Kill the leader five times under load (FAILOVER_KILLS, SOAK_SEAM): how long no pod is served, and where the seconds go
	PYTHONPATH=tests/tools $(BIN)/python tests/faults/failover.py --kills $${FAILOVER_KILLS:-5} --seam $${SOAK_SEAM:-plugin}

soak-laws: venv ## The laws, random interleavings and comparisons with the originals, far longer than CI tries them (PARTAGE_SEQUENCES, PARTAGE_CASES, PARTAGE_SEED)
	PARTAGE_SEQUENCES=$${PARTAGE_SEQUENCES:-200000} PARTAGE_SEED=$${PARTAGE_SEED:-$$(date +%s)} $(BIN)/python -m pytest -n $(JOBS) -o timeout=14400 tests/extender/test_any_interleaving_keeps_the_books.py \
		tests/extender/test_claims_are_reserved_before_they_are_stored.py tests/extender/test_no_interleaving_uses_a_card_twice.py
	HYPOTHESIS_PROFILE=soak PARTAGE_CASES=$${PARTAGE_CASES:-5000} $(BIN)/python -m pytest -n $(JOBS) -o timeout=14400 tests/laws tests/fidelity tests/extender/test_no_pod_costs_more_than_its_share.py

bench: venv ## Run the benchmarks and print their figures
	$(BIN)/python bench/schedule.py
	$(BIN)/python bench/decision.py
	$(BIN)/python bench/mig.py
	$(BIN)/python bench/mig_streams.py

bench-startup: venv ## From nothing to ready with 5,000 nodes and 40,000 pods: time, CPU time, memory
	$(BIN)/python bench/startup.py

bench-relist: venv ## 100,000 pods listed at the start and again after 410: time, memory, and for how long others wait
	$(BIN)/python bench/relist.py

bench-openb: venv ## Replay all published openb experiments and compare every figure (PARTAGE_OPENB=folder)
	$(BIN)/python bench/openb.py

image: ## Build both images (IMAGE_TOOL, IMAGE_REGISTRY, IMAGE_TAG, IMAGE_OPTIONS; IMAGE_BASES=debian without a registry)
	@deploy/image

try: venv ## Two genuine nodes with the chart installed from the images, as root on Debian; Ctrl-C ends it
	@tests/pods/run --try

test-pods: venv ## Images and a cluster of pods: what an operator types, as root on Debian (not in the gate)
	@tests/pods/run

lock: venv ## Take up new versions: write requirements/*.txt again from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --custom-compile-command 'make lock' --python-version 3.11 pyproject.toml --extra fast --extra plot --extra solver --group dev -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --custom-compile-command 'make lock' --python-version 3.13 pyproject.toml --extra fast --extra node --extra nvidia --extra solver --extra trace -o requirements/image.txt
	echo 'hatchling' | $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --custom-compile-command 'make lock' --python-version 3.13 - -o requirements/build.txt

floors: ## The tests that meet other packages most, with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv build/floors
	build/floors/bin/pip install --quiet uv
	build/floors/bin/uv pip install --quiet --python build/floors/bin/python --resolution lowest-direct --editable '.[fast,node,nvidia,solver,trace]' --group test
	build/floors/bin/python -m pytest -n $(JOBS) tests/kube tests/wire tests/placement tests/scheduler tests/cli tests/serving tests/sim
	build/floors/bin/python -m pytest -n $(JOBS) tests/tracing

native: ## Build the enforcement library and its stand-in driver into build/native (gcc)
	$(MAKE) -C native OUT=$(CURDIR)/build/native

native-aarch64: ## The same for aarch64 into build/native-aarch64 (CROSS=aarch64-linux-gnu-; Debian: gcc-aarch64-linux-gnu)
	$(MAKE) -C native OUT=$(CURDIR)/build/native-aarch64 CC=$${CROSS:-aarch64-linux-gnu-}gcc

bench-policy: venv ## Hold the default policy against what is required of it, resumable (PARTAGE_OPENB=folder)
	$(BIN)/python bench/policy.py

bench-small: venv ## The default policy beside every plain one on small clusters, resumable (PARTAGE_OPENB=folder)
	$(BIN)/python bench/small_clusters.py

clean: ## Remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
