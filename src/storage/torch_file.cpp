#include "storage/torch_file.hpp"

#include <cstring>
#include <map>
#include <set>

#include "storage/pickle.hpp"
#include "storage/zip.hpp"

namespace lockstep {
namespace {

using Storages = std::map<std::string_view, std::string_view>;   // key -> bytes
constexpr std::string_view magic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12);   // LONG1 0x1950a86a20f9469cfc6c: the stream's first pickle

const PickleValue* entry_of(const Pickle& pickle, const PickleValue& dict, std::string_view key) {
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2)
    if (const PickleValue& k = pickle.at(dict.items[i]); k.kind == PickleValue::text_value && k.text == key) return &pickle.at(dict.items[i + 1]);
  return nullptr;
}

constexpr std::size_t most_dimensions = 64;   // PyTorch's limit; many tensors may name one long list

std::vector<std::int64_t> numbers_in(const Pickle& pickle, const PickleValue& list, const std::string& path, const std::string& name) {
  require(list.items.size() <= most_dimensions, path, ": ", name, " has ", list.items.size(), " dimensions, PyTorch's tensors have at most ", most_dimensions, ": the file is damaged. Save it again.");
  std::vector<std::int64_t> numbers;
  for (const std::uint32_t item : list.items) {
    const PickleValue& n = pickle.at(item);
    require(n.kind == PickleValue::number && n.integer >= 0, path, ": ", name, " has a size or stride that is no whole number from 0: the file is damaged. Save it again.");
    numbers.push_back(n.integer);
  }
  return numbers;
}

/// Elements from the first to behind the last; -1 beyond 2^62.
std::int64_t reach_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    const std::int64_t along = element_count({shape[i] - 1, strides[i]});
    if (along < 0 || along > (std::int64_t{1} << 62) - reach) return -1;
    reach += along;
  }
  return reach;
}

NamedArray array_of(const WeightFile& file, const Pickle& pickle, const Storages& storages, const std::string& name, const PickleValue& tensor) {
  const PickleValue& storage = pickle.at(tensor.items[0]);
  const std::int64_t size = name_of(storage.type).bytes;
  NamedArray array{.name = name, .type = storage.type, .shape = numbers_in(pickle, pickle.at(tensor.items[1]), file.path, name),
                   .strides = numbers_in(pickle, pickle.at(tensor.items[2]), file.path, name)};
  const auto found = storages.find(storage.text);
  require(found != storages.end(), file.path, ": the elements of ", name, " are missing: the file is cut off. Download or save it again.");
  const std::int64_t stored = std::ssize(found->second) / size;
  require(storage.integer <= stored, file.path, ": ", name, " lies in a storage of ", storage.integer, " elements, of which the file has ", stored, ": it is cut off. Download or save it again.");
  require(array.shape.size() == array.strides.size(), file.path, ": ", name, " has ", array.shape.size(), " sizes and ", array.strides.size(), " strides: the file is damaged. Save it again.");
  const std::int64_t reach = reach_of(array.shape, array.strides), count = element_count(array.shape);
  require(reach >= 0 && tensor.integer >= 0 && tensor.integer <= stored && reach <= stored - tensor.integer, file.path, ": ", name, " ", shape_text(array.shape), " reaches beyond its storage of ",
          stored, " elements: the file is damaged. Save it again.");
  require(count >= 0 && count <= stored, file.path, ": ", name, " ", shape_text(array.shape), " has more elements than its storage, ", stored, ": an expanded tensor. Save tensor.contiguous() of it.");
  for (std::size_t i = 0; i < array.shape.size(); ++i)
    if (array.shape[i] == 1) array.strides[i] = 0;   // never gone along, whatever it says
  array.data = found->second.data() + tensor.integer * size;
  return array;
}

bool has_tensors(const Pickle& pickle, const PickleValue& dict) {
  for (std::size_t i = 1; i < dict.items.size(); i += 2)
    if (pickle.at(dict.items[i]).kind == PickleValue::tensor) return true;
  return false;
}

std::string key_text(const PickleValue& key) { return key.kind == PickleValue::text_value ? shown(key.text) : "a key that is no text"; }

/// The state dict: the root, or what lies in it under one of the usual names; then the root's other entries are `beside`.
const PickleValue& state_dict_in(WeightFile& file, const Pickle& pickle) {
  const PickleValue& root = pickle.at(pickle.root);
  require(root.kind == PickleValue::dict, file.path, " holds ", root.kind == PickleValue::tensor ? "a single tensor" : root.kind == PickleValue::sequence ? "a list" : "something else", ", no state dict. "
          "In Python: torch.save(model.state_dict(), \"state_dict.pth\")");
  for (const std::string_view key : {"state_dict", "model_state_dict", "model"}) {
    const PickleValue* nested = entry_of(pickle, root, key);
    if (!nested || nested->kind != PickleValue::dict) continue;
    file.form += text_of(", below \"", key, "\"");
    for (std::size_t i = 0; i < root.items.size(); i += 2) {
      const PickleValue &k = pickle.at(root.items[i]), &v = pickle.at(root.items[i + 1]);
      if (k.text == key) continue;
      file.beside.push_back(key_text(k));
      if (v.kind == PickleValue::text_value) file.notes.emplace_back(key_text(k), shown(v.text));
    }
    return *nested;
  }
  require(has_tensors(pickle, root), file.path, " holds a dict without tensors and without \"state_dict\" or \"model\": no state dict. In Python: torch.save(model.state_dict(), \"state_dict.pth\")");
  return root;
}

void take_state_dict(WeightFile& file, const Pickle& pickle, const Storages& storages) {
  const PickleValue& dict = state_dict_in(file, pickle);
  std::set<std::string> names;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const std::string name = key_text(pickle.at(dict.items[i]));
    const PickleValue& v = pickle.at(dict.items[i + 1]);
    if (v.kind != PickleValue::tensor) {
      file.beside.push_back(name);
      continue;
    }
    require(names.insert(name).second, file.path, ": \"", name, "\" comes twice in its state dict. Save it again.");
    file.arrays.push_back(array_of(file, pickle, storages, name, v));
  }
}

std::string_view entry_named(const std::vector<ZipEntry>& entries, const std::string& name) {
  for (const ZipEntry& entry : entries)
    if (entry.name == name) return entry.bytes;
  return {};
}

void read_archive(WeightFile& file) {
  file.form = "PyTorch's zip";
  const std::vector<ZipEntry> entries = zip_entries(file.path, file.bytes);
  std::string folder;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.ends_with("/data.pkl")) continue;
    require(folder.empty(), file.path, " holds two data.pkl: it is no file of torch.save.");
    folder = entry.name.substr(0, entry.name.size() - std::string_view("data.pkl").size());
  }
  require(!folder.empty(), file.path, " is a zip archive without data.pkl: it is no file of torch.save. Name a file of weights.");
  require(entry_named(entries, folder + "constants.pkl").empty(), file.path, " is TorchScript, and lockstep runs no code of a file. In Python: import torch; torch.save(torch.jit.load(\"",
          file.path, "\").state_dict(), \"state_dict.pth\")");
  for (const ZipEntry& entry : entries) require_whole(file.path, entry);
  const std::string_view order = entry_named(entries, folder + "byteorder");
  require(order.empty() || order == "little", file.path, " was written on a big-endian machine. Load and save it with PyTorch on this one.");
  Storages storages;
  const std::string data = folder + "data/";
  for (const ZipEntry& entry : entries)
    if (entry.name.starts_with(data)) storages[entry.name.substr(data.size())] = entry.bytes;
  const std::string_view bytes = entry_named(entries, folder + "data.pkl");
  take_state_dict(file, read_pickle(file.path, bytes, 0), storages);
}

/// Pickles of a magic number, a version, the machine, the object and the storages' keys; then each storage: i64 elements, the elements.
void read_stream(WeightFile& file) {
  file.form = "PyTorch's pickles";
  const std::span<const char> bytes = file.bytes;
  const Pickle first = read_pickle(file.path, bytes, 0);
  require(std::string_view(bytes.data(), first.end).find(magic) != std::string_view::npos, file.path,
          " is a pickle that torch.save did not write. In Python: import torch; torch.save(state_dict, \"state_dict.pth\")");
  const Pickle version = read_pickle(file.path, bytes, first.end);
  require(version.at(version.root).integer == 1001, file.path, " is torch.save's stream of version ", version.at(version.root).integer, ", lockstep reads 1001. Save it again.");
  const Pickle machine = read_pickle(file.path, bytes, version.end);
  const PickleValue* is_little = entry_of(machine, machine.at(machine.root), "little_endian");
  require(!is_little || is_little->integer == 1, file.path, " was written on a big-endian machine. Load and save it with PyTorch on this one.");
  const Pickle object = read_pickle(file.path, bytes, machine.end);
  const Pickle keys = read_pickle(file.path, bytes, object.end);

  std::map<std::string_view, ElementType> types;
  for (const PickleValue& v : object.values)
    if (v.kind == PickleValue::storage) types[v.text] = v.type;
  Storages storages;
  std::size_t at = keys.end;
  const auto left = [&] { return bytes.size() - at; };
  for (const std::uint32_t item : keys.at(keys.root).items) {
    const std::string_view key = keys.at(item).text;
    const auto type = types.find(key);
    require(type != types.end(), file.path, ": it holds a storage of unknown type: the file is damaged. Download or save it again.");
    std::int64_t elements = -1;
    if (left() >= sizeof elements) std::memcpy(&elements, bytes.data() + at, sizeof elements), at += sizeof elements;
    const auto size = static_cast<std::uint64_t>(name_of(type->second).bytes);
    require(elements >= 0 && static_cast<std::uint64_t>(elements) <= left() / size, file.path, " is cut off within the elements of a tensor: it has ", bytes.size(),
            " bytes. Download or save it again.");
    storages[key] = {bytes.data() + at, static_cast<std::size_t>(elements) * size};
    at += static_cast<std::size_t>(elements) * size;
  }
  take_state_dict(file, object, storages);
}

}  // namespace

bool is_torch_file(std::span<const char> bytes) { return is_zip(bytes) || (bytes.size() >= 2 && static_cast<std::uint8_t>(bytes[0]) == 0x80 && bytes[1] >= 2 && bytes[1] <= 5); }

void read_torch_file(WeightFile& file) { is_zip(file.bytes) ? read_archive(file) : read_stream(file); }

void write_torch_file(const std::string& path, const std::vector<NamedArray>& arrays) {
  const std::string pickled = state_dict_pickle(arrays);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < arrays.size(); ++i) names.push_back(text_of("archive/data/", i));
  std::vector<ZipEntry> entries = {{.name = "archive/data.pkl", .bytes = pickled}, {.name = "archive/byteorder", .bytes = "little"}};
  for (std::size_t i = 0; i < arrays.size(); ++i)
    entries.push_back({.name = names[i], .bytes = {arrays[i].data, static_cast<std::size_t>(element_count(arrays[i].shape) * name_of(arrays[i].type).bytes)}});
  entries.push_back({.name = "archive/version", .bytes = "3\n"});
  write_zip(path, std::move(entries));
}

}  // namespace lockstep
