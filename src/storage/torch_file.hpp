// torch_file: PyTorch's .pth and .pt: both containers of torch.save, the zip archive and the older stream of pickles.
// Source: torch/serialization.py, _save and _legacy_save.
#pragma once
#include <span>
#include <string>

#include "storage/named_array.hpp"

namespace lockstep {

/// Whether the first bytes are a zip archive's or a pickle's.
bool is_torch_file(std::span<const char> bytes);
/// Fills in arrays from file.bytes: a state dict, bare or below "state_dict", "model_state_dict" or "model"; what lies beside it is named in `beside`,
/// its texts in `notes`.  Runs nothing.  Error, naming the file, for what is no state dict, and for tensors that do not lie in their storages.
void read_torch_file(WeightFile& file);
/// A state dict that torch.load(path, weights_only=True) reads: torch.save's zip archive of contiguous arrays.
void write_torch_file(const std::string& path, const std::vector<NamedArray>& arrays);

}  // namespace lockstep
