// main: of tests that run in one process.  Kokkos lives as long as they do.
#include <gtest/gtest.h>

#include "tensor/device.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const lockstep::KokkosSession kokkos;
  return RUN_ALL_TESTS();
}
