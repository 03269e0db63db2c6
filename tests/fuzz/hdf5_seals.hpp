// hdf5_seals: makes the checksums of a changed shard or checkpoint right again: the seal behind it, and those inside that libhdf5 compares.
#pragma once
#include <string>

#include "fuzz/mutator.hpp"

namespace lockstep::fuzz {

/// Left as it is, sealed again, or with the checksums of its HDF5 structures made right and sealed again.
std::string resealed(std::string file, Random& random);

}  // namespace lockstep::fuzz
