#!/usr/bin/env bash
# Makes .venv next to this checkout and installs the given requirement files into it, unless they are there already.
# Usage: launch/environment.sh REQUIREMENTS_FILE...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "Error: no Python 3.11 or newer found. Install one, or name it: PYTHON=/path/to/python3 $0" >&2
  exit 2
}

stamp=.venv/.installed  # the latest checksum of each file
wanted=$(cksum "$@")
if [ -f "$stamp" ] && ! grep -vxqFf "$stamp" <<< "$wanted"; then
  exit 0
fi
python=$(find_python)
echo "Installing $* into .venv ($("$python" --version)); a minute or two the first time."
[ -x .venv/bin/python ] || "$python" -m venv .venv
arguments=()
for file in "$@"; do arguments+=(-r "$file"); done
# Python compiles a module when it is first imported; to compile all of them here would take as long as the rest.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "${arguments[@]}"
touch "$stamp"
awk '!seen[$3]++' <(echo "$wanted") "$stamp" > "$stamp.new"
mv "$stamp.new" "$stamp"
