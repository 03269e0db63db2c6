// evaluated: evaluation.json -> the confusion matrix, the table of classes and the worst mistakes as pictures.
#pragma once
#include <string>

#include "base/config.hpp"
#include "storage/shards.hpp"

namespace lockstep {

/// images: of the split that was evaluated, where the caller has it open; null: opened here, and without pictures where that fails.
std::string evaluated_sections(const std::string& folder, const DataConfig& data, const Dataset* images);

}  // namespace lockstep
