#!/usr/bin/env bash
# Installs what the tests need next to what a run needs, then runs the linter, the type checker and every test.
# Usage: tests/run.sh [PYTEST_ARGUMENT...]
#   tests/run.sh -m slow   those that are left out by default: four and eight processes, two network namespaces; minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

launch/environment.sh requirements.txt tests/requirements.txt
.venv/bin/ruff check .
.venv/bin/ty check --quiet
# A worker that crashes ends the tests: pytest-xdist 3.8 replaces it, and near the end waits for ever.
.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --timeout=900 "$@"
