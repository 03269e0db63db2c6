// safetensors: the form in which hubs serve weights.  u64 bytes of the header, the header (JSON: name -> dtype, shape, data_offsets), the elements.
// Source: https://github.com/huggingface/safetensors, "Format".
#pragma once
#include <map>
#include <span>
#include <string>

#include "storage/named_array.hpp"

namespace lockstep {

/// Whether the first bytes can be those of such a file.
bool is_safetensors(std::span<const char> bytes);
/// Fills in arrays and notes (of the header's __metadata__) from file.bytes.  Error, naming the file and the tensor, for a header that is cut off or
/// no JSON, a name that comes twice, an unknown type, and elements that overlap, leave gaps or do not fill the file.
void read_safetensors(WeightFile& file);
/// Contiguous arrays; those of the widest elements first, so that each is aligned, as readers that map the file expect.
void write_safetensors(const std::string& path, std::vector<NamedArray> arrays, const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
