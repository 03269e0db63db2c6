#!/bin/bash
# fetch.sh FOLDER NAME==VERSION SHA256 [pip options]: one file from PyPI, checked by pip against its hash.
# Prints the file's path.  PyPI serves C++ here: Kokkos' source and oneDNN's library travel in Python packages.
set -euo pipefail
folder=$1 package=$2 sha256=$3; shift 3
python=/usr/bin/python3; [ -x "$python" ] || python=python3
mkdir -p "$folder"
echo "$package --hash=sha256:$sha256" > "$folder/requirement.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes -r "$folder/requirement.txt" -d "$folder" "$@" >&2
rm "$folder/requirement.txt"
for file in "$folder"/*.whl "$folder"/*.tar.gz; do
  if [ -f "$file" ] && [ "$(sha256sum < "$file")" = "$sha256  -" ]; then echo "$file"; exit; fi
done
echo "fetch.sh: pip left no file of $package with sha256 $sha256 in $folder." >&2
exit 1
