#!/bin/bash
# kokkos.sh openmp | serial | cuda: makes sure that there is a Kokkos of this kind.
# One that CMake finds (Kokkos_ROOT, CMAKE_PREFIX_PATH, a module, Spack) is used; else the pinned source is built
# into PREFIX/kokkos-KIND.  LOCKSTEP_CUDA_ARCH = 80 | 86 | 89 | 90 (default) | 100 picks the GPU of kind cuda.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$(bash "$here/prefix.sh")

kind=${1:-}
arch=
case $kind in
  openmp) wanted="Kokkos_ENABLE_OPENMP AND NOT Kokkos_ENABLE_CUDA" ;;
  serial) wanted="Kokkos_ENABLE_SERIAL AND NOT Kokkos_ENABLE_OPENMP AND NOT Kokkos_ENABLE_CUDA" ;;
  cuda)   wanted="Kokkos_ENABLE_CUDA AND Kokkos_COMPILE_LANGUAGE STREQUAL CUDA"; arch=${LOCKSTEP_CUDA_ARCH:-90} ;;
  *) echo "usage: kokkos.sh openmp | serial | cuda" >&2; exit 2 ;;
esac

# Kokkos 4.7.0 is tpls/kokkos of this source package: Debian 12 has no Kokkos, and PyPI none of its own.
package=pygenten==0.1.5
sha256=e620f05c742905e2db705d875f1cac92ef0ed453f9e6734e9beda26cc0f9cce7
target=$prefix/kokkos-$kind
stamp="Kokkos 4.7.0 $sha256 $arch"

mkdir -p "$prefix"
exec 8> "$prefix/.lock-kokkos-$kind"; flock 8
if [ "$(cat "$target/.built" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# An installed one?  CMake alone knows where it looks.
mkdir "$work/probe"
cat > "$work/probe/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(probe LANGUAGES CXX)
find_package(Kokkos 4.5 QUIET)
if(NOT Kokkos_FOUND OR NOT ($wanted))
  message(FATAL_ERROR none)
endif()
message(STATUS "uses the installed Kokkos \${Kokkos_VERSION}: \${Kokkos_DIR}")
EOF
if found=$(cmake -S "$work/probe" -B "$work/probe/build" 2>/dev/null | grep 'uses the installed'); then
  echo "kokkos.sh $kind: ${found#-- }"
  exit 0
fi

nvcc=${CUDACXX:-nvcc}
options=(-DKokkos_ENABLE_SERIAL=ON)
case $kind in
  openmp) options=(-DKokkos_ENABLE_OPENMP=ON) ;;
  cuda)
    command -v "$nvcc" > /dev/null || { echo "kokkos.sh cuda: no nvcc in PATH. Load the CUDA toolkit (12.2 or newer), or set CUDACXX." >&2; exit 2; }
    case $arch in
      80) name=AMPERE80 ;; 86) name=AMPERE86 ;; 89) name=ADA89 ;; 90) name=HOPPER90 ;; 100) name=BLACKWELL100 ;;
      *) echo "kokkos.sh cuda: LOCKSTEP_CUDA_ARCH = $arch is none of 80, 86, 89, 90, 100." >&2; exit 2 ;;
    esac
    # Compiled by nvcc as CMake's CUDA language, as ours is: Kokkos' own nvcc_wrapper asks for sm_70, which CUDA 13 dropped.
    options=(-DKokkos_ENABLE_CUDA=ON -DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON
             "-DKokkos_ARCH_$name=ON" "-DCMAKE_CUDA_ARCHITECTURES=$arch" -DCMAKE_CUDA_STANDARD=20 -DCMAKE_CUDA_FLAGS=-std=c++20) ;;
esac

# Only this package from source: with :all:, pip would also compile the cmake that the package's metadata asks for (4 minutes).
archive=$(bash "$here/fetch.sh" "$work" "$package" "$sha256" --no-binary pygenten)
source=$work/${package/==/-}/tpls/kokkos
tar -xzf "$archive" -C "$work" "${source#"$work"/}"

# replace FILE OLD NEW: one known line of Kokkos, or a message that it is no longer there.
replace() {
  grep -qF "$2" "$1" || { echo "kokkos.sh: ${1#"$source"/} has no '$2' to mend for CUDA 13." >&2; exit 1; }
  sed -i "s/$2/$3/" "$1"
}
if [ "$kind" = cuda ] && [ "$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')" -ge 13 ]; then
  # CUDA 13 gave both calls new arguments, one version before Kokkos followed.
  file=$source/core/src/Cuda/Kokkos_Cuda_Instance.hpp
  replace "$file" 'cudaGraphAddDependencies(graph, from, to, numDependencies)' \
                  'cudaGraphAddDependencies(graph, from, to, nullptr, numDependencies)'
  replace "$file" 'cudaMemPrefetchAsync(devPtr, count, dstDevice, m_stream)' \
                  'cudaMemPrefetchAsync(devPtr, count, cudaMemLocation{cudaMemLocationTypeDevice, dstDevice}, 0, m_stream)'
fi

echo "kokkos.sh $kind: builds Kokkos 4.7.0 into $target"
generator=(); command -v ninja > /dev/null && generator=(-G Ninja)
log=$prefix/kokkos-$kind.log
rm -rf "$target"
if ! { cmake -S "$source" -B "$work/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 \
             -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$target" -DCMAKE_INSTALL_LIBDIR=lib "${options[@]}" &&
       cmake --build "$work/build" --parallel "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" && cmake --install "$work/build"; } > "$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "kokkos.sh $kind: the build failed; all of its output is in $log" >&2
  exit 1
fi
echo "$stamp" > "$target/.built"
