# What a fresh machine needs is Python 3.11, 3.12 or 3.13 and make; everything else goes into .venv.
#   make run     a cluster of three coordinators and three nodes on this machine
#   make install what runs, in .venv; the targets below add what development needs
#   make deb     the Debian package, in dist/ (ARCH=arm64)   make pyz     the command in one file
#   make test    the default test suite          make check   lint, types, import order, rooms, names in texts
#   make fix     what lint and format can mend by themselves; then what is written from declarations
#   make matrix  the default suite with each Python of 3.11, 3.12 and 3.13 that is found
#   make bench   benchmarks (BENCH=smoke)        make clean   remove what the others made
#   make man     manual pages of the command, in man/
#   make docs    docs/ as a site with a search, in site/, with a reference made from the code
#   make sim     the consensus under simulated faults (SIM_S=600)     make mutants   bugs that its tests must catch
#   make chaos   real coordinators and nodes under real faults (CHAOS_S=600)
#   make healing random operations on nodes, replicas and disks, then the verdict (HEALING_OPERATIONS=1000);
#                then members that start on damaged files (HEALING_TRIALS=2000)
#   make contract   requests made from the OpenAPI document, and its answers held against it
#   make long    the tests of real processes that take longest: coordinators that come, go and die, healing, cut uploads
#   make clients stock clients that are interrupted: tuspy, tus-js-client, curl, wget, aria2c, restic; nginx
#   make gns3    labs of real GNS3 servers are backed up and come back; gns3-server is installed into .gns3-server;
#                then random operations on labs and their store (GNS3_OPERATIONS=40)
#   make machines  three Debian machines with systemd, the package on them, power cuts; package, pyz and image
#   make sso     people sign in with oidc-provider of npm (needs node), in Chromium and with the command
#   make prometheus   a real Prometheus of Debian scrapes every process; promtool checks metrics and rules
#   make vendor  fetch the console's libraries anew, at the versions and digests of vendoring/parts.json (needs npm)
#   make browser the web console, /docs and public links in Debian's Chromium, which is installed where that can be done
.DELETE_ON_ERROR:

# Containers tend to set it: then every process of a cluster compiles the whole product anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
BENCH ?= smoke
PYTHON ?=
TESTS ?= tests
WORKERS ?= 4
DATA ?= .filestore
ARCH ?=

# A shim of pyenv or asdf may exist without its version: only an interpreter that runs counts.
define FIND_PYTHON
for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3 python; do \
	if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	then found=$$candidate; break; fi; \
done; \
if [ -z "$${found:-}" ]; then \
	echo "Filestore needs Python 3.11, 3.12 or 3.13, and none was found on PATH." >&2; \
	echo "Install one (Debian: apt install python3.11 python3.11-venv) or name it: make PYTHON=/path/to/python" >&2; \
	exit 1; \
fi; \
if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "$$found lacks the venv module (Debian: apt install python3-venv)." >&2; \
	exit 1; \
fi
endef

.PHONY: run install test long check fix matrix sim mutants chaos healing clients gns3 browser sso prometheus machines contract bench man docs deb pyz \
	vendor constraints clean

run: $(RUNTIME)
	@exec $(BIN)/filestore dev --data $(DATA)

install: $(RUNTIME)

# Versions and hashes come from these files alone; the product itself is installed without looking further.
$(RUNTIME): constraints-runtime.txt pyproject.toml client/pyproject.toml
	@set -eu; \
	echo "Installing what Filestore needs into $(VENV): a minute or two, only after a change of it."; \
	if ! $(BIN)/python -c '' 2>/dev/null; then $(FIND_PYTHON); "$$found" -m venv --clear $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e client -e .
	@touch $@

$(INSTALLED): constraints.txt $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	@touch $@

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 --durations-min 5 $(TESTS)

long: $(INSTALLED)
	$(BIN)/python -m pytest -m long -n $(WORKERS) --dist loadfile tests/cluster tests/api tests/unit tests/test_docs.py tests/test_vendoring.py

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.rooms
	$(BIN)/python -m pytest -q tests/test_references.py

fix: $(INSTALLED)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/python -m release.client

# Each with an environment of its own; one that is not on this machine is named and left out.
matrix:
	@set -eu; for version in 3.11 3.12 3.13; do \
		if python$$version -c '' 2>/dev/null; then \
			echo "== Python $$version"; $(MAKE) VENV=.venv-$$version PYTHON=python$$version check test; \
		else echo "== Python $$version: not found, left out"; fi; \
	done

sim: $(INSTALLED)
	$(BIN)/python -m tests.sim

mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants

chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos

healing: $(INSTALLED)
	$(BIN)/python -m tests.healing
	$(BIN)/python -m tests.healing.trials

clients: $(INSTALLED)
	$(BIN)/python -m pytest -m long tests/clients

gns3: $(INSTALLED)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile tests/gns3
	$(BIN)/python -m tests.gns3.search

browser: $(INSTALLED)
	$(BIN)/python -m pytest -m long tests/browser

sso: $(INSTALLED)
	$(BIN)/python -m pytest -m long tests/sso

prometheus: $(INSTALLED)
	$(BIN)/python -m pytest -m long tests/prometheus

machines: $(INSTALLED)
	$(BIN)/python -m pytest -m long -s tests/machines

contract: $(INSTALLED)
	$(BIN)/python -m tests.contract

bench: $(INSTALLED)
	$(BIN)/python -m bench.$(BENCH)

man: $(INSTALLED)
	@$(BIN)/python -m deploy.manual man

docs: $(INSTALLED)
	@$(BIN)/python -m release.reference docs/reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

vendor: $(INSTALLED)
	$(BIN)/python -m vendoring

deb: $(INSTALLED)
	@$(BIN)/python -m release.deb $(ARCH)

pyz: $(INSTALLED)
	@$(BIN)/python -m release.pyz

constraints: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --no-emit-package filestore-client --all-extras pyproject.toml -o constraints.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --no-emit-package filestore-client --extra install -c constraints.txt pyproject.toml \
		-o constraints-runtime.txt

clean:
	rm -rf $(VENV) .filestore .gns3-server .sso-provider .previous-release .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build man site docs/reference
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
