# Sourced by scripts/specllama, scripts/test and scripts/check: a ready .venv, at once if there is one.
# Messages go to stderr, so that stdout carries only answers. Variables: docs/install.md.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

say() { printf 'specllama: %s\n' "$*" >&2; }
die() { say "error: $1"; [ -z "${2:-}" ] || say "$2"; exit "${3:-1}"; }

is_python() { # whether $1 is a Python that can make .venv
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${SPECLLAMA_PYTHON:-}" ]; then
    is_python "$SPECLLAMA_PYTHON" ||
      die "SPECLLAMA_PYTHON is '$SPECLLAMA_PYTHON', which is no Python >= 3.11 with the venv module" "" 8
    echo "$SPECLLAMA_PYTHON"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if is_python "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "no Python >= 3.11 with the venv module was found" \
    "install one (Debian: apt install python3 python3-venv; macOS: brew install python), or set SPECLLAMA_PYTHON" 8
}

backend() { # the backend that llama.cpp is built with: of a device that is present and whose compiler is there
  if [ -n "${SPECLLAMA_BACKEND:-}" ]; then
    echo "$SPECLLAMA_BACKEND"
  elif [ "$(uname -s)" = Darwin ]; then
    echo metal
  elif command -v nvcc >/dev/null 2>&1 && { [ -e /dev/nvidia0 ] || [ -d /proc/driver/nvidia/gpus ]; }; then
    echo cuda
  elif command -v glslc >/dev/null 2>&1 && ls /dev/dri/renderD* >/dev/null 2>&1 &&
    { [ -e /usr/include/vulkan/vulkan.h ] || [ -n "${VULKAN_SDK:-}" ]; }; then
    echo vulkan
  else
    echo cpu
  fi
}

amx() { # 1 if llama.cpp would use AMX, which needs native/amx.h
  if [ "$(uname -m)" = x86_64 ] && grep -qsw amx_tile /proc/cpuinfo; then echo 1; else echo 0; fi
}

changes() { # checksum of how llama.cpp is compiled; a new one means compiling again
  cat "$root"/specllama/llama/native/*.cmake "$root"/specllama/llama/native/amx.h | cksum | tr ' ' '-'
}

checksum() { # of everything that an installation depends on
  cat "$root/pyproject.toml" "$root/constraints.txt" "$root"/specllama/llama/{kernel_build.py,native/*.cpp,native/*.h} - |
    cksum | tr ' ' '-'
}

is_own() { # whether .venv was made for this checkout, not copied or moved, and its Python is the one it was made with
  local checkout python
  [ -x "$venv/bin/python" ] && [ -x "$venv/bin/specllama" ] && [ -f "$venv/.made-for" ] || return 1
  { IFS= read -r checkout && IFS= read -r python; } <"$venv/.made-for" || return 1
  [ "$checkout" = "$(cd "$root" && pwd -P)" ] && [ "$venv/bin/python" -ef "$python" ]
}

ensure_venv() { # $1: "" or "dev", which adds the packages of the tests
  local kind="${1:-}" device changed has_amx stamp wanted python
  device=$(backend)
  changed=$(changes)
  has_amx=$(amx)
  stamp=$(echo "$device $changed $has_amx" | checksum)
  wanted=$kind
  # A llama.cpp that was not compiled here does not do where compiling it is asked for.
  case "$kind${SPECLLAMA_BACKEND:-}${CMAKE_ARGS:-}${SPECLLAMA_BUILD:-}" in
    "" | 0) ;;
    *) wanted=${kind:-compiled} ;;
  esac
  if [ -e "$venv/.installed-$stamp${wanted:+-$wanted}" ] && is_own; then return 0; fi
  python=$(find_python)
  "$python" "$root/scripts/install.py" --kind "$kind" --device "$device" --changes "$changed" --amx "$has_amx" \
    --stamp "$stamp" || exit $?
}
