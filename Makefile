# Everything a fresh Debian machine with Python 3.11 needs: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e . -e backends/reference -e backends/cpu -e conformance
PLUGINS := -e plugins/cortiq-torch -e plugins/cortiq-null -e plugins/cortiq-faulty \
    -e backends/mlx -e backends/wgpu -e backends/triton

.PHONY: demo test slow mutants lint setup setup-test wheels site clean

$(BIN)/cortiq: pyproject.toml backends/reference/pyproject.toml backends/cpu/pyproject.toml \
    backends/cpu/setup.py conformance/pyproject.toml
	@echo "installing packages and building the C core: a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PACKAGES)
	@touch $@

setup: $(BIN)/cortiq

demo: setup
	$(BIN)/cortiq pull smollm2
	$(BIN)/cortiq generate smollm2 --chat -p "Why is the sky blue?" --max-tokens 60 --temperature 0

$(VENV)/.test: requirements-test.txt $(BIN)/cortiq plugins/*/pyproject.toml \
    backends/wgpu/pyproject.toml
	@echo "installing the test tools: some minutes"
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -r requirements-test.txt
	$(BIN)/python -m pip install --quiet --no-deps $(PLUGINS)
	@sh tools/install-vulkan
	@sh tools/install-chromium
	@touch $@

setup-test: $(VENV)/.test
	$(BIN)/cortiq pull smollm2
	$(BIN)/cortiq pull gemma3-270m

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/budget.py

test: setup-test lint
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile

# A source distribution and a wheel of each distribution, the wheel made from the source one; then
# the wheels are installed into a fresh environment and used. About a minute.
wheels: setup
	rm -rf dist && mkdir dist
	$(BIN)/python -m pip install --quiet build hatchling 'setuptools>=77' wheel
	set -e; for folder in . backends/* conformance plugins/*; do \
	    $(BIN)/python -m build --no-isolation --outdir dist $$folder >dist/log || \
	    { cat dist/log; exit 1; }; done
	$(BIN)/python tools/check_wheels.py dist

# What takes minutes, lm-evaluation-harness among it; its packages are many.
slow: setup-test
	$(BIN)/python -m pip install --quiet 'lm-eval>=0.4.9'
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# Each test of docs/acceptance.md on broken code, which it must notice: some minutes.
mutants: setup-test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/mutants.py

site: setup
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) site dist
