// plan_cache: which convolutions were fastest here, kept between starts.
// In <outputs>/convolutions.txt for every run on this file system; in a run's own folder too, so that a resume computes as it did before.
// Called by rank 0 alone; training goes on when a file cannot be read or written.
#pragma once
#include "backends/conv_choices.hpp"
#include "base/config.hpp"

namespace lockstep {

/// What both files hold; the run's own comes first.
ConvChoices read_choices(const RunConfig& run);
/// Adds choices to both files.  The run's only if its folder exists.  Written aside and renamed.
void keep_choices(const RunConfig& run, const ConvChoices& choices);

}  // namespace lockstep
