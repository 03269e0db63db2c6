// coverage: which parts of the readers a mutant reached, so that those which reach something new are mutated further.
#pragma once
#include <cstddef>

namespace lockstep::fuzz {

void forget_coverage();
/// Adds what was reached since forget_coverage to all that was reached; whether anything was new: a pair of blocks, or its count of another magnitude.
bool add_coverage();
std::size_t reached();

}  // namespace lockstep::fuzz
