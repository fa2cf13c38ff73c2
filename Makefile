# All that a fresh machine needs is Python 3.11 or newer, and make.

VENV = .venv
# Empty: python3 where it is new enough, else a newer one beside it.
PYTHON ?=
# Passed through: make test PYTEST_ARGS="-k restart -x"
PYTEST_ARGS =
DEMO_ARGS =

export VENV PYTHON

.PHONY: help demo test lint lint-style lint-types lint-imports lint-migrations linters clean

help:
	@echo 'make demo    shows the package at work; needs no server, starts its own'
	@echo 'make test    runs the tests against the built wheel (PYTEST_ARGS="-k name")'
	@echo 'make lint    style, types, direction of imports, missing migrations'
	@echo 'make clean   removes what the others have made'
	@echo
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter, VENV=directory the environment.'

demo:
	@.ci/install demo
	@$(VENV)/bin/python example_project/manage.py demo $(DEMO_ARGS)

test:
	@.ci/install test
	@.ci/suite $(PYTEST_ARGS)

lint: lint-style lint-types lint-imports lint-migrations

lint-style: linters
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

lint-types: linters
	$(VENV)/bin/python -m mypy django_task_locks tests benchmarks
	python=$$(cd $(VENV)/bin && pwd)/python && cd example_project && \
		"$$python" -m mypy --config-file ../.ci/mypy-example.cfg .

lint-imports: linters
	$(VENV)/bin/lint-imports

lint-migrations: linters
	TEST_DATABASE=sqlite DJANGO_SETTINGS_MODULE=tests.settings \
		$(VENV)/bin/python -m django makemigrations --check --dry-run

linters:
	@.ci/install test,lint

clean:
	rm -rf build dist *.egg-info .venv .venv-* example_project/var
	rm -rf .coverage* htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
