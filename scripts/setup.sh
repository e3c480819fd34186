# Sourced by scripts/specllama, scripts/test and scripts/check: a ready .venv, at once if there is one.
# Messages go to stderr, so that stdout carries only answers. Variables: SPECLLAMA_BACKEND=cpu|cuda|vulkan|metal,
# SPECLLAMA_PYTHON=path of a Python >= 3.11.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

say() { printf 'specllama: %s\n' "$*" >&2; }
die() { say "error: $1"; [ -z "${2:-}" ] || say "$2"; exit "${3:-1}"; }

find_python() {
  local candidate
  for candidate in ${SPECLLAMA_PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
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

cmake_args() {
  case "$1" in
    cpu) [ "$(uname -s)" = Darwin ] && echo "-DGGML_METAL=OFF" || echo "" ;;
    cuda) echo "-DGGML_CUDA=ON" ;;
    vulkan) echo "-DGGML_VULKAN=ON" ;;
    metal) echo "-DGGML_METAL=ON" ;;
    *) die "SPECLLAMA_BACKEND must be cpu, cuda, vulkan or metal, not '$1'" "" 2 ;;
  esac
}

amx() { # whether llama.cpp would use AMX, which needs native/amx.h
  [ "$(uname -m)" = x86_64 ] && grep -qsw amx_tile /proc/cpuinfo
}

changes() { # checksum of our changes to llama.cpp; a new one means compiling again
  cat "$root"/specllama/llama/native/*.cmake "$root"/specllama/llama/native/*.h | cksum | tr ' ' '-'
}

checksum() { # of everything that an installation depends on
  cat "$root/pyproject.toml" "$root/constraints.txt" - | cksum | tr ' ' '-'
}

install_log() { # run a command with its output in the log; on failure show the end of the log
  "$@" >>"$venv/install.log" 2>&1 || {
    tail -n 15 "$venv/install.log" >&2
    die "the installation failed" "the whole log is in $venv/install.log"
  }
}

ensure_venv() { # $1: "" or "dev", which adds the packages of the tests
  local kind="${1:-}" device args made stamp plain python
  device=$(backend)
  args=$(cmake_args "$device") # also refuses an unknown backend
  made="$device, changed $(changes)"
  if amx; then
    made="$made, fixed for AMX"
    export CXXFLAGS="-include \"$root/specllama/llama/native/amx.h\" ${CXXFLAGS:-}"
  fi
  plain="$venv/.installed-$(echo "$made" | checksum)"
  stamp="$plain${kind:+-$kind}"
  [ ! -e "$stamp" ] || return 0
  python=$(find_python)
  command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
    die "no C++ compiler was found, and llama.cpp has to be compiled" \
      "install one (Debian: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)" 8
  lock
  if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    say "making $venv"
    "$python" -m venv --clear "$venv" || die "$venv cannot be made"
  fi
  local pip=("$venv/bin/python" -m pip install --disable-pip-version-check -c "$root/constraints.txt")
  local rows="-DCMAKE_PROJECT_ggml_INCLUDE=\"$root/specllama/llama/native/rows.cmake\""
  export CMAKE_ARGS="-DGGML_RPC=ON -DGGML_RPC_RDMA=OFF -DLLAVA_BUILD=OFF $rows $args ${CMAKE_ARGS:-}"
  : >"$venv/install.log"
  if [ "$(cat "$venv/.backend" 2>/dev/null)" != "$made" ]; then
    say "installing; llama.cpp is compiled for '$device' on this machine, which takes 3 to 5 minutes on two cores"
    # pip's cache does not know for which device, and with which changes, a wheel was compiled.
    local fresh=(--no-cache-dir --force-reinstall --no-deps --no-binary llama-cpp-python)
    install_log "${pip[@]}" "${fresh[@]}" llama-cpp-python
    echo "$made" >"$venv/.backend"
  fi
  say "installing Python packages"
  # Compiled once here, wherever PYTHONDONTWRITEBYTECODE is set: else every start compiles them again.
  install_log env -u PYTHONDONTWRITEBYTECODE "${pip[@]}" -e "$root${kind:+[$kind]}"
  touch "$plain" "$stamp"
  unlock
}

lock() { # one installation at a time; a lock left by a process that has ended is removed
  local owner
  while ! mkdir "$root/.installing" 2>/dev/null; do
    owner=$(cat "$root/.installing/pid" 2>/dev/null || echo)
    if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then
      rm -rf "$root/.installing"
    else
      [ -n "${waiting:-}" ] || say "another installation is under way, waiting for it"
      waiting=1
      sleep 1
    fi
  done
  echo $$ >"$root/.installing/pid"
  trap unlock EXIT
}

unlock() {
  rm -rf "$root/.installing"
  trap - EXIT
}
