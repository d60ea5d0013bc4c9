PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO = runs/demo

.PHONY: demo test check format clean

demo: .venv/installed
	.venv/bin/atomnative train --data stdlib --output-dir $(DEMO) --total-ticks 88000 --ckpt-every 22000 \
	  --learning-rate 8e-3 --lr-schedule cosine
	.venv/bin/atomnative chat --checkpoint $(DEMO) --raw --prompt '    def __init__(self' --top-k 20 --seed 1 --max-packets 300

test: .venv/installed-dev
	.venv/bin/python -m pytest

check: .venv/installed-dev
	.venv/bin/ruff check src tests benchmarks
	.venv/bin/ruff format --check src tests benchmarks
	.venv/bin/pyright
	.venv/bin/lint-imports

format: .venv/installed-dev
	.venv/bin/ruff check --fix src tests benchmarks
	.venv/bin/ruff format src tests benchmarks

clean:
	rm -rf .venv runs build src/*.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev]'
	touch $@ .venv/installed
