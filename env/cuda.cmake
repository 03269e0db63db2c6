# GPU ranks: cmake -C env/cuda.cmake -S . -B build/cuda -G Ninja
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(LOCKSTEP_CUDA ON CACHE BOOL "")
# oneDNN computes on the host only; a GPU's convolutions are cuDNN's or our own.
set(LOCKSTEP_ONEDNN OFF CACHE BOOL "")
# The GPU that Kokkos was built for (env/kokkos.sh).  CMake 3.25 must be told: it would try its compiler test with an
# architecture that CUDA 13 has dropped.
set(arch "$ENV{LOCKSTEP_CUDA_ARCH}")
if(arch STREQUAL "")
  set(arch 90)
endif()
set(CMAKE_CUDA_ARCHITECTURES ${arch} CACHE STRING "")
