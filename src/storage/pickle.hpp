// pickle: reads the pickles of torch.save without running anything: an allow-list of tensors and plain containers, all else is refused by name.
// In: the bytes of a pickle, protocol 2 to 5.  Out: its values in one list, containers and tensors by positions in it, so that nothing is nested.
// Source: CPython's Lib/pickletools.py; torch/_utils.py.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/named_array.hpp"

namespace lockstep {

struct PickleValue {
  /// sequence: tuple, list, set.  name: an allowed global, by `integer`.  storage: `text` is its key, `integer` its elements.
  /// tensor: `items` are storage, sizes and strides, `integer` its offset in elements.
  enum Kind { none, number, text_value, sequence, dict, name, storage, tensor } kind = none;
  std::int64_t integer = 0;
  std::string_view text = {};            // in the pickle
  ElementType type = ElementType::f32;   // of a storage
  std::vector<std::uint32_t> items = {}; // positions; of a dict key, value, key, value, ...
};

struct Pickle {
  std::vector<PickleValue> values;
  std::uint32_t root = 0;
  std::size_t end = 0;                   // behind its last byte
  const PickleValue& at(std::uint32_t position) const { return values[position]; }
};

/// The pickle that begins at `begin`.  Error, naming `path`, for what is no pickle, is cut off, asks for a global that is not allowed (by its name;
/// for a pickled nn.Module with the line of Python that makes a state dict of it), or would make more values than any state dict has.
Pickle read_pickle(const std::string& path, std::span<const char> bytes, std::size_t begin);

/// The pickle of an OrderedDict of contiguous tensors, each in a storage of its own: "0", "1", ...  Protocol 2.
std::string state_dict_pickle(const std::vector<NamedArray>& arrays);

}  // namespace lockstep
