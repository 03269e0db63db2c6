#!/bin/bash
# convert_speed.sh [BUILD]: images a second of lockstep-convert beside libvips' own thumbnailer, on the same JPEGs and all cores; and its memory.
# The photos of ../shared/data/flowers350.tar.gz, each several times.  vipsthumbnail handles many files a process and writes raw pixels: its
# fastest way.  Rounds alternate, because machines are shared; the best of each counts.  Exit 1 below 85 %.  Results: convert_speed.txt.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:-$here/../../build/cpu}
data=${LOCKSTEP_TEST_DATA:-$here/../../../shared/data}/flowers350.tar.gz
copies=${COPIES:-8} rounds=${ROUNDS:-3} size=${SIZE:-256}
[ -x "$build/lockstep-convert" ] || { echo "convert_speed.sh: $build has no lockstep-convert" >&2; exit 2; }
command -v vipsthumbnail > /dev/null || { echo "convert_speed.sh: needs vipsthumbnail (apt: libvips-tools)"; exit 77; }
[ -e "$data" ] || { echo "convert_speed.sh: needs $data"; exit 77; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
tar xzf "$data" -C "$work"
photos=$work/flowers350/dataset
many() {   # many FOLDER COPIES: the training photos so many times
  local class i
  for class in "$photos"/train/*/; do
    mkdir -p "$1/$(basename "$class")"
    for ((i = 0; i < $2; i++)); do
      for file in "$class"*; do ln "$file" "$1/$(basename "$class")/$i-$(basename "$file")"; done
    done
  done
}
many "$work/few" "$copies"
many "$work/more" $((4 * copies))
images=$(find "$work/few" -type f | wc -l)

ours() { rm -rf "$work/out"; "$build/lockstep-convert" image-folder "$work/few" "$work/out" --size "$size" --val-fraction 0 > /dev/null; }
theirs() {
  rm -rf "$work/out"; mkdir "$work/out"
  find "$work/few" -type f -print0 | VIPS_CONCURRENCY=1 xargs -0 -P "$(nproc)" -n 100 vipsthumbnail --size "${size}x$size" --smartcrop centre -o "$work/out/%s.v"
}
seconds() { local start; start=$(date +%s.%N); "$@"; awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'; }
best() { awk -v a="$1" -v b="$2" 'BEGIN { print a < b ? a : b }'; }
memory() {   # peak resident memory of a conversion, MiB
  rm -rf "$work/out"
  /usr/bin/python3 -c "import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)" "$build/lockstep-convert" image-folder "$1" "$work/out" --size "$size" --val-fraction 0
}

a=1e9 b=1e9
for ((round = 0; round < rounds; round++)); do
  a=$(best "$a" "$(seconds ours)")
  b=$(best "$b" "$(seconds theirs)")
done
{
  date -u +%F
  echo "$(nproc) cores, $(vips --version 2>/dev/null || echo libvips), $images JPEGs of 320 x 240 to 500 x 375, --size $size --fit cover, best of $rounds"
  awk -v n="$images" -v a="$a" -v b="$b" 'BEGIN { printf "lockstep-convert %.0f img/s, vipsthumbnail %.0f img/s: %.0f %%\n", n / a, n / b, 100 * b / a }'
  echo "peak memory: $(memory "$work/few") MiB for $images images, $(memory "$work/more") MiB for $((4 * images))"
} | tee "$here/convert_speed.txt"
awk -v a="$a" -v b="$b" 'BEGIN { exit b / a < 0.85 }'
