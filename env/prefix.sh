#!/bin/bash
# Prints the folder for everything that is built or unpacked for lockstep outside apt.
# The other scripts and CMakeLists.txt ask here, so that all agree.
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -n "${LOCKSTEP_PREFIX:-}" ]; then echo "$LOCKSTEP_PREFIX"
elif [ -n "${XDG_CACHE_HOME:-${HOME:-}}" ]; then echo "${XDG_CACHE_HOME:-$HOME/.cache}/lockstep"
else echo "$repo/build/prefix"; fi
