# Sourced by deploy/demo, tests/run and benchmarks/run, with the repository's top as the current directory.
#
# ensure_venv EXTRA...  makes .venv hold the project with these extras, and does nothing where it already does.
# It needs a Python 3.11 or newer with its venv module (PYTHON names one), and no root.

say() { printf '\033[2m==> %s\033[0m\n' "$*" >&2; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python 3.11 or newer found; install one or name it: PYTHON=/path/to/python3 $0"
}

ensure_venv() {
  local wanted stamp extra log missing=
  if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    local python
    python=$(find_python)
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv || die "could not create .venv: $python lacks its venv module (Debian: python3-venv)"
  fi
  # Installed once for each content of pyproject.toml: code changes need nothing, the install is an editable one.
  wanted=$(cksum <pyproject.toml)
  for extra in "$@"; do
    stamp=.venv/.stream-svt-$extra
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] || missing=1
  done
  [ -z "$missing" ] && return
  local IFS=,
  say "installing stream-svt[$*] into .venv (the first time this takes a minute or two)"
  log=.venv/pip.log
  if ! .venv/bin/python -m pip install --disable-pip-version-check --no-input -e ".[$*]" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "pip could not install the project; the whole log is $log"
  fi
  for extra in "$@"; do
    printf '%s\n' "$wanted" >".venv/.stream-svt-$extra"
  done
}
