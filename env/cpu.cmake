# CPU ranks: cmake -C env/cpu.cmake -S . -B build/cpu -G Ninja
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(LOCKSTEP_CUDA OFF CACHE BOOL "")
