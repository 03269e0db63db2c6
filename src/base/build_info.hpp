// build_info: what this binary is made of.  The .cpp is written by the build (env/build_info.cmake).
#pragma once

namespace lockstep {

struct BuildInfo {
  const char* version;        // "0.1.0"
  const char* git_hash;       // of the commit; "-dirty" follows when the tree differed, "unknown" outside git
  const char* compiler;       // "GNU 12.2.0", and nvcc's in a CUDA build
  const char* configuration;  // "cpu Release x86-64": platform, build type, instruction set; sanitizer if any
  const char* libraries;      // "Kokkos 4.7.0 (OPENMP), MPI 3.1, HDF5 1.10.8, oneDNN 3.2.0"
};
const BuildInfo& build_info();

}  // namespace lockstep
