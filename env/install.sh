#!/bin/bash
# install.sh [--tests] [--cuda] [--serial] [--no-images] [--no-apt]: everything that lockstep needs on Debian 12 or Ubuntu 24.04.
#   --tests      what tests/run.sh needs besides: GoogleTest, ccache, PyTorch and h5py (oracles), Slurm, TensorBoard's reader
#   --cuda       also Kokkos for CUDA (the toolkit itself, cuDNN and NCCL come from the vendor)
#   --serial     also Kokkos without threads, for the sanitizers
#   --no-images  without libvips: for -DLOCKSTEP_IMAGES=OFF
#   --no-apt     no system packages: MPI, HDF5 and the rest come from modules
# Run it again at any time: it installs only what is missing.  System packages by apt, all else into env/prefix.sh's folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$(bash "$here/prefix.sh")
python=/usr/bin/python3; [ -x "$python" ] || python=python3

tests=0 apt=1 images=1 kokkos=(openmp) optional=()
for option in "$@"; do
  case $option in
    --tests) tests=1 ;;
    --cuda) kokkos+=(cuda) ;;
    --serial) kokkos+=(serial) ;;
    --no-images) images=0 ;;
    --no-apt) apt=0 ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
  esac
done

## System packages
packages=(g++ cmake ninja-build git ca-certificates python3 python3-pip
          libopenmpi-dev openmpi-bin libhdf5-dev zlib1g-dev
          nlohmann-json3-dev libtomlplusplus-dev libcli11-dev librandom123-dev)
[ "$images" = 0 ] || packages+=(libvips-dev)
if [ "$tests" = 1 ]; then
  packages+=(libgtest-dev ccache procps util-linux iproute2 python3-numpy python3-pil python3-h5py)
  # srun's PMIx plugin opens libpmix.so, the development link; without it srun cannot start MPI programs.
  packages+=(slurm-wlm munge libpmix-dev)
  # Distribution releases differ in these; a test that misses one says so and is skipped.
  optional=(python3-torch python3-torchvision libvips-tools)
fi

is_installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing_of() { local name; for name in "$@"; do is_installed "$name" || echo "$name"; done; }

if [ "$apt" = 1 ] && command -v dpkg-query > /dev/null; then
  mapfile -t missing < <(missing_of "${packages[@]}")
  mapfile -t wanted < <(missing_of "${optional[@]}")
  root=()
  if [ "$(id -u)" != 0 ] && command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [ -t 0 ]; }; then root=(sudo); fi
  if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" != 0 ] && [ ${#root[@]} = 0 ]; then
    echo "install.sh: system packages are missing, and only root may install them. Have root run this, then start again:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]} ${wanted[*]}" >&2
    echo "(Where modules bring them, go on with --no-apt.)" >&2
    exit 2
  fi
  if [ $((${#missing[@]} + ${#wanted[@]})) -gt 0 ] && [ "$(id -u)" = 0 -o ${#root[@]} -gt 0 ]; then
    "${root[@]}" apt-get update -qq
    for name in "${wanted[@]}"; do
      if apt-cache show "$name" > /dev/null 2>&1; then missing+=("$name"); else echo "install.sh: there is no package $name here; tests that need it are skipped"; fi
    done
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    echo "install.sh: apt-get install ${missing[*]}"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" > /dev/null
  fi
fi

mkdir -p "$prefix"
exec 9> "$prefix/.lock"; flock 9
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

## oneDNN 3.2, the build on GNU OpenMP: one pool of threads with Kokkos.  Debian's is 2.6, which has another API;
## newer wheels need the SYCL run time.  The wheels are for x86-64; elsewhere the portable convolution remains.
onednn=$prefix/onednn
onednn_stamp="oneDNN 3.2.0 of 2023.2.0"
if [ "$(uname -m)" != x86_64 ]; then
  echo "install.sh: no oneDNN for $(uname -m); convolutions will be lockstep's own."
elif [ "$(cat "$onednn/.built" 2>/dev/null)" != "$onednn_stamp" ]; then
  echo "install.sh: unpacks oneDNN 3.2 into $onednn"
  rm -rf "$onednn"; mkdir -p "$onednn"
  for part in onednn-devel-cpu-gomp:9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284 \
              onednn-cpu-gomp:2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb; do
    wheel=$(bash "$here/fetch.sh" "$work" "${part%:*}==2023.2.0" "${part#*:}" --only-binary :all:)
    "$python" -m zipfile -e "$wheel" "$work/onednn"
  done
  cp -r "$work"/onednn/*.data/data/* "$onednn"
  # A wheel cannot hold links: the library comes three times.
  ln -sf libdnnl.so.3.2 "$onednn/lib/libdnnl.so.3"; ln -sf libdnnl.so.3 "$onednn/lib/libdnnl.so"
  echo "$onednn_stamp" > "$onednn/.built"
fi

## TensorBoard's event reader, to prove that it reads what lockstep writes.  Four packages of its thirty are enough for that.
if [ "$tests" = 1 ]; then
  reader=$prefix/python
  reader_stamp=$(cat "$here/tensorboard.txt")
  if [ "$(cat "$reader/.built" 2>/dev/null)" != "$reader_stamp" ]; then
    echo "install.sh: puts TensorBoard's reader into $reader"
    rm -rf "$reader"
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --require-hashes \
      --only-binary :all: --target "$reader" -r "$here/tensorboard.txt"
    echo "$reader_stamp" > "$reader/.built"
  fi
fi

for kind in "${kokkos[@]}"; do bash "$here/kokkos.sh" "$kind"; done
