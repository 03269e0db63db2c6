#include "optim/update_blocks.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace lockstep::optimizer_kernels {

std::vector<double> rate_groups(const Parameters& parameters) {
  std::vector<double> groups;
  for (const Slice& slice : parameters.slices())
    if (std::ranges::find(groups, slice.rate_factor) == groups.end()) groups.push_back(slice.rate_factor);
  require(groups.size() <= most_groups, "optimizer.rate_factors makes ", groups.size(), " different rates; at most ", most_groups, " are possible. Use fewer different factors.");
  return groups;
}

std::vector<std::uint8_t> block_flags(const OptimizerConfig& config, const Parameters& parameters, const std::vector<double>& groups) {
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(parameters.elements() / block_size), 0);
  const bool has_copy = parameters.compute_dtype() != DType::f32;
  for (const Slice& slice : parameters.slices()) {
    std::uint8_t flag = slice.is_frozen ? 0 : is_trained;
    if (config.decay_norm_and_bias || !slice.spec.is_norm_or_bias) flag |= is_decayed;
    if (has_copy && !slice.spec.is_norm_or_bias) flag |= is_copied;
    if (slice.grad_dtype != DType::f32) flag |= is_rounded;
    flag |= static_cast<std::uint8_t>((std::ranges::find(groups, slice.rate_factor) - groups.begin()) << group_shift);
    const std::int64_t begin = slice.offset / block_size, end = (slice.offset + slice.count + block_size - 1) / block_size;
    for (std::int64_t block = begin; block < end; ++block) flags[static_cast<std::size_t>(block)] = flag;
  }
  return flags;
}

std::vector<std::int32_t> gradient_units(const Parameters& parameters) {
  std::vector<std::int32_t> units(static_cast<std::size_t>(parameters.elements() / block_size), 0);
  for (const Slice& slice : parameters.slices()) {
    const auto each = block_size * static_cast<std::int64_t>(size_of(slice.grad_dtype)) / 128;
    for (std::int64_t i = 0; i * block_size < slice.count; ++i)
      units[static_cast<std::size_t>(slice.offset / block_size + i)] = static_cast<std::int32_t>(slice.grad_offset / 128 + i * each);
  }
  return units;
}

}  // namespace lockstep::optimizer_kernels
