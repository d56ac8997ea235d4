# make demo    set up this machine, create a sandbox, run code in it, fork it
# make test    set up this machine, build the templates, lint, check types, run all tests
# make bench   measure, and write the results to bench/results/
PYTHON ?=
BIN := .venv/bin
TEMPLATES := base python-data code-interpreter
# Most tests wait for their virtual machine. More processes than this only wait for each other's memory.
TEST_OPTIONS ?= --numprocesses auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

.PHONY: setup demo templates lint test bench clean

setup:
	@PYTHON="$(PYTHON)" scripts/setup

demo: setup
	@$(BIN)/python -m belljar.demo

templates: setup
	@$(BIN)/belljar template build $(TEMPLATES)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

test: templates lint
	$(BIN)/python -m pytest $(TEST_OPTIONS)

bench: templates
	$(BIN)/python -m bench

# Removes what can be made again here; kernels, images and sandboxes under $$BELLJAR_HOME stay.
clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results
	find belljar tests -name __pycache__ -type d -prune -exec rm -rf {} +
