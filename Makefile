# Start with `make demo` and `make test`. tools/setup.sh installs everything that they need.
#
#   PYTHON=python3.12            Python to use instead of python3
#   TESTBED_WHEELS=folder        folder with a torch wheel, instead of a package index
#   PYTEST_FLAGS="-k cut -x"     additional arguments of pytest
#   NOISE_FLAGS="--only ups"     additional arguments of python -m benchmarks.noise

SHELL := /bin/bash
VENV := .venv
# In front of commands for whose shell is not that of root.
SUDO := $(if $(SUDO_UID)$(filter-out 0,$(shell id -u)),sudo ,)
# -W --keep-going: every warning is an error, and all of them are shown; -n: unresolved references are warnings.
BUILD_DOCS = $(VENV)/bin/python -m sphinx -W --keep-going -n -q -j auto -b html -d build/doctrees docs build/docs

.PHONY: help demo client test test-netem test-netem-containers test-ansible test-bare test-thorough check docs bench bench-noise soak soak-up fuzz clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then train across two emulated fibers and cut one: testbed run metro-40km (root, ~2 min on a quiet machine)"
	@echo "make client  set up what commands on another host need here (--on HOST): no root, no compiler, no torch (~1 min; docs/hosts.md)"
	@echo "make test    set up, then run all tests (those that create namespaces need root)"
	@echo "make test-netem  run the tests of the netem emulator on a kernel that has it: User-Mode Linux, or QEMU (docs/netem.md)"
	@echo "make test-netem-containers  test docker, containerlab and netem together in User-Mode Linux (root, minutes; docs/netem.md)"
	@echo "make test-ansible  prepare a bare host (a container) with Ansible, twice, and run a lab on it (root, ~4 min; docs/ansible.md)"
	@echo "make test-bare  on bare Debian (debootstrap, pivot_root): make demo to the report; a fresh client and host to a report by --on; the image of a pod (root, network, ~20 min)"
	@echo "make check   run ruff, mypy --strict, import-linter, and build the documentation"
	@echo "make docs    build the pages of docs/ into build/docs: offline, broken links and anchors fail"
	@echo "make test-thorough  run all tests, including the long-running ones"
	@echo "make bench   measure the figures of docs/performance.md (root, about half an hour)"
	@echo "make bench-noise  measure and write the tables of docs/certificate.md: right and wrong fibers while CPU time is taken (root, hours; NOISE_FLAGS='--ups 10 --levels 0,15')"
	@echo "make soak    run a job under random faults for SOAK_SECONDS (3600), checked from outside (root; docs/soak.md)"
	@echo "make soak-up bring SOAK_UPS (100) labs up and down with every core busy: at most one in a hundred is refused (root; docs/soak.md)"
	@echo "make fuzz    fuzz the C helper with libFuzzer: FUZZ_SECONDS (60) for each of three targets; FUZZ_KEEP=1 merges the corpus (docs/fuzzing.md)"
	@echo "make clean   remove generated files: $(VENV), the compiled helper, caches, build/; keeps your runs"

demo:
	@tools/setup.sh demo
	@tools/verdict.sh demo "the report is in the folder named above; next: $(SUDO)$(VENV)/bin/testbed up metro-40km" \
	    $(VENV)/bin/testbed run metro-40km

client:
	@tools/setup.sh client
	@echo "make client: done; next: $(VENV)/bin/testbed host prepare HOST, where HOST is whatever ssh HOST takes"

test:
	@tools/setup.sh test
	@tools/verdict.sh test "every test that could run here passed" \
	    $(VENV)/bin/python tools/run_tests.py $(PYTEST_FLAGS)

test-netem:
	@tools/setup.sh test
	@tools/verdict.sh test-netem "the netem tests passed, or were skipped with a reason" \
	    $(VENV)/bin/python -m pytest tests/netem_vm $(PYTEST_FLAGS)

test-netem-containers:
	@tools/setup.sh test
	@tools/verdict.sh test-netem-containers "the tests passed, or were skipped with a reason" \
	    env TESTBED_THOROUGH=1 $(VENV)/bin/python -m pytest tests/containerlab/test_whole_on_netem.py -rs $(PYTEST_FLAGS)

test-thorough:
	@tools/setup.sh test
	@tools/verdict.sh test-thorough "every test that could run here passed, including the long-running ones" \
	    env TESTBED_THOROUGH=1 $(VENV)/bin/python tools/run_tests.py $(PYTEST_FLAGS)

test-ansible:
	@tools/setup.sh test
	@tools/verdict.sh test-ansible "the Ansible tests passed, or were skipped with a reason" \
	    env TESTBED_ANSIBLE=1 $(VENV)/bin/python -m pytest tests/containerlab/test_ansible.py -rs $(PYTEST_FLAGS)

test-bare:
	@tools/setup.sh test
	@tools/verdict.sh test-bare "the tests on a bare machine passed, or were skipped with a reason" \
	    env TESTBED_BARE=1 $(VENV)/bin/python -m pytest tests/e2e/test_bare_machine.py tests/e2e/test_prepared_host.py tests/e2e/test_fresh_machines.py tests/e2e/test_pod.py -rs $(PYTEST_FLAGS)

check:
	@tools/setup.sh check
	@tools/verdict.sh "check (ruff)" "" $(VENV)/bin/ruff check .
	@tools/verdict.sh "check (format; fix it with: $(VENV)/bin/ruff format .)" "" $(VENV)/bin/ruff format --check .
	@tools/verdict.sh "check (mypy)" "" $(VENV)/bin/mypy
	@tools/verdict.sh "check (mypy of the tests)" "" $(VENV)/bin/mypy --config-file tests/mypy.ini
	@tools/verdict.sh "check (import-linter)" "" $(VENV)/bin/lint-imports --no-cache --no-logo
	@tools/verdict.sh "check (docs)" "" $(BUILD_DOCS)
	@echo "make check: ruff, mypy --strict, import-linter and the documentation build passed"

docs:
	@tools/setup.sh docs
	@tools/verdict.sh docs "open build/docs/index.html" $(BUILD_DOCS)

bench:
	@tools/setup.sh bench
	@tools/verdict.sh bench "the tables for docs/performance.md are above; the samples are in build/benchmarks" $(VENV)/bin/python -m benchmarks

bench-noise:
	@tools/setup.sh bench
	@tools/verdict.sh bench-noise "the tables above are in docs/certificate.md; the samples are in build/noise" \
	    $(VENV)/bin/python -m benchmarks.noise --write docs/certificate.md $(NOISE_FLAGS)

soak:
	@tools/setup.sh soak
	@tools/verdict.sh soak "no leftovers, no growth, no wrong sums: see build/soak" \
	    $(VENV)/bin/python tests/soak.py --seconds $(or $(SOAK_SECONDS),3600) --out build/soak

soak-up:
	@tools/setup.sh soak
	@tools/verdict.sh soak-up "at most one lab in a hundred was refused: see build/soak-up" \
	    $(VENV)/bin/python tests/soak_up.py --ups $(or $(SOAK_UPS),100) --out build/soak-up

fuzz:
	@tools/verdict.sh fuzz "no property was violated; new inputs are in build/fuzz" tools/fuzz.sh $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) testbed/fiberd/fiberd testbed/fiberd/build build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find agents benchmarks testbed tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "make clean: done; your runs were kept"
