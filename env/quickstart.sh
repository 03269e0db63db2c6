#!/bin/bash
# quickstart.sh [--data DIR] [--size S] [--ranks N] [section.key=value ...]
# From nothing to a trained and evaluated ResNet-20: installs what is missing, builds, converts, trains, evaluates.
#   --data DIR  CIFAR-10's binary folder or .tar.gz, or a folder of train/ and val|test/ with a folder of images a class;
#               without it a generated set of ten shapes
#   --size S    height and width that images of a folder are converted to, pixels (32)
#   --ranks N   processes (2)
# Run it again at any time: each part does only what is not done yet.  A training that was stopped goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data='' size=32 ranks=2
while [ $# -gt 0 ]; do
  case $1 in
    --data) data=${2:?--data needs a folder}; shift 2 ;;
    --size) size=${2:?--size needs a number}; shift 2 ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift 2 ;;
    -*) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ -z "$data" ] || [ -e "$data" ] || { echo "quickstart.sh: --data $data: no such file or folder" >&2; exit 2; }

times=()
part() { local what=$1 start=$SECONDS; shift; echo "== $what"; "$@"; times+=("$(printf '%5d s  %s' $((SECONDS - start)) "$what")"); }

build() {
  cmake -C env/cpu.cmake -S . -B build/cpu -G Ninja > build/cpu.log 2>&1 || { cat build/cpu.log; return 1; }
  ninja -C build/cpu -j "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" lockstep lockstep-convert
}

# Debian's Open MPI refuses root and more ranks than cores unless told; both are fine here.
run_ranks() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --oversubscribe -n "$ranks" build/cpu/lockstep "$@"
}

input=inputs/quickstart.toml
if [ -z "$data" ]; then
  name=quickstart shards=outputs/data/shapes
  convert=(shapes "$shards" --train 8000 --val 2000 --seed 1)
  overrides=()
else
  name=quickstart-$(basename "${data%.tar.gz}")-$size
  shards=outputs/data/$(basename "${data%.tar.gz}")-$size
  if [ -f "$data/data_batch_1.bin" ] || [ -f "$data" ]; then
    convert=(cifar10 "$data" "$shards")
  else
    convert=(image-folder "$data" "$shards" --fit cover --size "$size")
  fi
  overrides=(augment.train=pad_crop augment.flip=true)
fi
overrides+=("run.name=$name" "data.path=$shards" "$@")
outputs=outputs
for word in "$@"; do
  case $word in
    run.name=*) name=${word#*=} ;;
    run.outputs=*) outputs=${word#*=} ;;
  esac
done

mkdir -p build
part "install what is missing" bash env/install.sh
part "build" build
part "convert" build/cpu/lockstep-convert "${convert[@]}"
part "train" run_ranks train "$input" "${overrides[@]}"
part "evaluate" run_ranks eval "$input" "${overrides[@]}"

folder=$outputs/$name
echo "== done"
printf '%s\n' "${times[@]}"
echo "shards       $shards"
echo "accuracy     $(sed -n 's/.*"top1": *\([0-9.]*\).*/\1/p' "$folder/evaluation.json" | head -n 1) top-1 ($folder/evaluation.json: by class, confusion matrix)"
echo "checkpoints  $folder/checkpoints/"
echo "metrics      $folder/metrics.jsonl, TensorBoard: tensorboard --logdir $folder"
echo "log          $folder/log"
