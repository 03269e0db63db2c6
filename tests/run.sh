#!/bin/bash
# tests/run.sh [--cuda] [--sanitize address|thread] [ctest arguments, such as -L unit or -R checkpoint]
# Installs what the tests need, builds, runs every test and ends with ctest's summary.
#   --cuda      also compiles the CUDA configuration with its tests, which need no GPU for that
#   --sanitize  builds with that sanitizer on Kokkos without threads; runs the unit and MPI tests, unless told which
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cuda=0 sanitize= cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)   # nproc believes OpenMP
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) cuda=1; shift ;;
    --sanitize) sanitize=${2:-}; shift $(($# < 2 ? 1 : 2))
      case $sanitize in address | thread) ;; *) echo "tests/run.sh: --sanitize address or --sanitize thread" >&2; exit 2 ;; esac ;;
    *) break ;;
  esac
done

# part WHAT COMMAND...: says what goes on, and how long it took.
part() { local what=$1 start=$SECONDS; shift; echo "== $what"; "$@"; echo "== $what: $((SECONDS - start)) s"; }
# Most files are compiled alike for the CPU and for CUDA.
launcher() { ! command -v ccache > /dev/null || echo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache; }
configure() { cmake -C "env/$1.cmake" -S . -B "build/$2" -G Ninja $(launcher) "${@:3}" > "build/$2.log" 2>&1 || { cat "build/$2.log"; return 1; }; }
compile() { NINJA_STATUS="[$1 %f/%t %es] " ninja -C "build/$1" -j "$cores" "${@:2}"; }

mkdir -p build
install=(--tests)
[ $cuda = 0 ] || install+=(--cuda)
[ -z "$sanitize" ] || install+=(--serial)
part "install" bash env/install.sh "${install[@]}"

build=cpu options=() wrapper=()
if [ -n "$sanitize" ]; then
  build=${sanitize/address/asan} build=${build/thread/tsan}
  # libgomp inside oneDNN synchronizes in ways that the thread sanitizer cannot see.
  options=("-DLOCKSTEP_SANITIZE=$sanitize" "-DLOCKSTEP_ONEDNN=$([ "$sanitize" = thread ] && echo OFF || echo ON)")
  # MPI, HDF5 and libvips are not instrumented: the thread sanitizer does not see their locks.
  export LSAN_OPTIONS="suppressions=$PWD/env/leaks.supp:print_suppressions=0"
  export TSAN_OPTIONS="ignore_noninstrumented_modules=1"
  # Newer kernels spread addresses further than GCC 12's sanitizers expect.
  if setarch --addr-no-randomize true 2> /dev/null; then wrapper=(setarch --addr-no-randomize); fi
  [ $# -gt 0 ] || set -- -L 'unit|mpi'
fi
part "configure" configure cpu "$build" "${options[@]}"
part "build $build" compile "$build"
if [ $cuda = 1 ]; then
  part "configure CUDA" configure cuda cuda
  part "build CUDA" compile cuda
  part "build kernels for sm_80" compile cuda sm_80
fi

echo "== test"
exec "${wrapper[@]}" ctest --test-dir "build/$build" --output-on-failure --no-tests=error --parallel "$cores" "$@"
