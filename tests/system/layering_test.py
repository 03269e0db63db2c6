#!/usr/bin/env python3
"""The folders of src/ include only what tests/layering.txt allows, and so do the foreign libraries; no platform #if; no type name twice."""
import fnmatch
import os
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
src = root / "src"
folders, libraries = {}, {}
for line in (root / "tests/layering.txt").read_text().splitlines():
    line = line.strip()
    if not line or line.startswith("#"):
        continue
    left, right = (part.strip() for part in line.rsplit(":", 1))
    if left.startswith("<"):
        libraries[left[1:].strip()] = right.split()
    else:
        folders[left] = [] if right == "-" else right.split()

faults, types = [], {}                   # types: where each type of a header is defined
files = sorted(p for p in src.rglob("*") if p.suffix in (".cpp", ".hpp"))
for path in files:
    name = path.relative_to(src).as_posix()
    room = name.split("/")[0]
    if room not in folders:
        faults.append(f"{name}: no row for {room} in tests/layering.txt")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{name}:{number}"
        if match := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            target = match[1]
            other = target.split("/")[0]
            if not (src / target).exists():
                faults.append(f"{where}: {target} is not written from src/")
            elif other != room and other not in folders[room] and target not in folders[room]:
                faults.append(f"{where}: {room} may not include {target}")
        elif match := re.match(r"\s*#\s*include\s+<([^>]+)>", line):
            for pattern, allowed in libraries.items():
                if fnmatch.fnmatch(match[1], pattern) and not any(fnmatch.fnmatch(name, a) for a in allowed):
                    faults.append(f"{where}: <{match[1]}> is quarantined in {' '.join(allowed)}")
        elif re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", line) and name not in ("backends/conv.cpp", "base/dtype.hpp", "layers/lanes.hpp", "layers/pairs.hpp"):
            faults.append(f"{where}: {line.strip()}: CMake picks files, #if does not")
        if path.suffix == ".hpp" and (match := re.match(r"(?:struct|class|enum class|union) (\w+)(?: final)?(?: :[^:].*)? \{", line)):
            if types.setdefault(match[1], where) != where:
                faults.append(f"{where}: {match[1]} is also defined in {types[match[1]]}: one namespace, one name")
        if re.search(r"\b(getenv|setenv)\s*\(", line) and room != "comm" and path.name != "main.cpp":
            faults.append(f"{where}: environment variables are read in main.cpp and comm/ only")
        if re.search(r"(std::chrono|clock_gettime|gettimeofday|std::time\b)", line) and not (
                name.startswith(("train/metrics", "comm/", "tensor/device", "convert/"))):
            faults.append(f"{where}: the clock belongs to train/metrics, comm/, tensor/device and convert/")
        if re.search(r"(std::mt19937|std::random_device|\brand\s*\()", line):
            faults.append(f"{where}: random numbers come from base/random.hpp")
for command in ("env/quickstart.sh", "tests/run.sh"):        # as README starts them
    if not os.access(root / command, os.X_OK):
        faults.append(f"{command}: may not be run")
print(f"{len(files)} files read, {len(folders)} rows, {len(faults)} faults")
print("\n".join(faults))
sys.exit(1 if faults or len(files) < 20 else 0)
