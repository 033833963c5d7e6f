# Everything a fresh Debian machine with Python 3.11 needs: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e . -e backends/reference -e backends/cpu -e conformance
PLUGINS := -e plugins/cortiq-torch -e plugins/cortiq-null -e plugins/cortiq-faulty \
    -e plugins/cortiq-producers -e backends/mlx -e backends/wgpu -e backends/triton

.PHONY: demo test quick slow fuzz mutants sanitize lint setup setup-test wheels site clean

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
	@sh tools/install-shells
	-@npm install --silent --prefix $(VENV)/axe axe-core@4 2>/dev/null || \
	    echo "No axe-core (npm): the pages will not be tested for accessibility."
	@touch $@

setup-test: $(VENV)/.test
	$(BIN)/cortiq pull smollm2
	$(BIN)/cortiq pull gemma3-270m

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/budget.py
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/lint_names.py
	$(BIN)/python tools/page_hashes.py --check

test: setup-test lint
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile

# The linters on the files that differ from $(BASE), and the tests nearest to them: a minute.
BASE ?= HEAD
quick: setup-test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/quick.py --base $(BASE)

# What takes minutes of processor time: slow tests, fuzzers (SECONDS each), broken copies of the
# code that the tests must notice, and the native core under sanitizers.
SECONDS ?= 60
slow: setup-test
	$(BIN)/python -m pip install --quiet 'lm-eval[api]>=0.4.9' 'litellm>=1.80'
	-npm install --silent --prefix $(VENV)/agents @openai/codex @anthropic-ai/claude-code
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

fuzz: setup-test
	cd tests && set -e; for fuzzer in cmf files graphs http images templates tokenizers; do \
	    ../$(BIN)/python -m fuzz.$$fuzzer --seconds $(SECONDS); done

mutants: setup-test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/mutants.py

sanitize: setup-test
	$(BIN)/python tools/sanitize.py

# A source distribution and a wheel of each distribution, the wheel made from the source one; then
# the wheels are installed into a fresh environment and used. About a minute.
wheels: setup
	rm -rf dist && mkdir dist
	$(BIN)/python -m pip install --quiet build hatchling 'setuptools>=77' wheel
	set -e; for folder in . backends/* conformance plugins/*; do \
	    $(BIN)/python -m build --no-isolation --outdir dist $$folder >dist/log || \
	    { cat dist/log; exit 1; }; done
	$(BIN)/python tools/check_wheels.py dist

site: setup
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) site dist
