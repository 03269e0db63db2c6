// weights_targets: safetensors and both containers of torch.save.  Every element of what is accepted is read; safetensors must come back when written again.
#include <zlib.h>

#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "storage/pickle.hpp"
#include "storage/safetensors.hpp"
#include "storage/torch_file.hpp"
#include "storage/zip.hpp"
#include "support/scratch.hpp"

namespace lockstep::fuzz {
namespace {

const float values[] = {1, -2, 3.5f, 0.25f, 0, 6};
const std::int64_t count = 7;

std::vector<NamedArray> arrays() {
  return {{.name = "conv1.weight", .shape = {3, 2}, .strides = {2, 1}, .data = reinterpret_cast<const char*>(values)},
          {.name = "bn1.num_batches_tracked", .type = ElementType::i64, .shape = {}, .strides = {}, .data = reinterpret_cast<const char*>(&count)},
          {.name = "fc.bias", .type = ElementType::f16, .shape = {2}, .strides = {1}, .data = reinterpret_cast<const char*>(values)}};
}

WeightFile file_of(const std::string& path, const std::string& bytes) { return {.path = path, .form = "", .bytes = {bytes.begin(), bytes.end()}, .arrays = {}, .beside = {}, .notes = {}}; }

void use(const WeightFile& file) {
  for (const NamedArray& array : file.arrays) {
    if (array.type <= ElementType::bf16) floats_of(array);
    else if (element_count(array.shape) > 0) static_cast<void>(std::memchr(array.data, 0, 1));
  }
}

std::string pickled(std::string_view part) { return "\x80\x02" + std::string(part) + "."; }

/// The stream of PyTorch before 1.6: magic number, version, machine, object, keys; then each storage.
std::string stream(const std::string& object) {
  std::string bytes = pickled(std::string_view("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)) + pickled("M\xe9\x03") + pickled(std::string_view("}(X\x0d\0\0\0little_endian\x88u", 22)) + object +
                      pickled(std::string_view("](X\x01\0\0\0" "0X\x01\0\0\0" "1X\x01\0\0\0" "2e", 21));
  for (const NamedArray& array : arrays()) {
    const std::int64_t elements = element_count(array.shape);
    bytes.append(reinterpret_cast<const char*>(&elements), sizeof elements);
    bytes.append(array.data, static_cast<std::size_t>(elements * name_of(array.type).bytes));
  }
  return bytes;
}

/// Protocol 4, below "state_dict", with a list, a set, a long, None and things taken from the memo beside it.
std::string nested_pickle() {
  const std::string inner = state_dict_pickle(arrays());
  return "\x80\x04}\x94(\x8c\x0astate_dict\x94" + inner.substr(2, inner.size() - 3) + "\x8c\x05" "epoch\x94K\x03\x8c\x04" "best\x94G@\x08" + std::string(6, '\0') +
         "\x8c\x04list\x94]\x94(K\x01NN\x88" "e\x8c\x04" "memoh\x01\x8c\x05tuple\x94K\x01K\x02\x86\x94\x8c\x04" "arch\x94\x8c\x08resnet50\x94u.";
}

std::string zipped(const std::string& pickle) {
  const std::string path = scratch("seed.pth");
  std::vector<ZipEntry> entries = {{.name = "archive/data.pkl", .bytes = pickle}, {.name = "archive/byteorder", .bytes = "little"}};
  const std::vector<NamedArray> all = arrays();
  const std::string names[] = {"archive/data/0", "archive/data/1", "archive/data/2"};
  for (std::size_t i = 0; i < all.size(); ++i) entries.push_back({.name = names[i], .bytes = {all[i].data, static_cast<std::size_t>(element_count(all[i].shape) * name_of(all[i].type).bytes)}});
  write_zip(path, entries);
  return read_file(path);
}

/// CRC-32 of each entry that the central directory's marks lead to.
std::string with_checksums(std::string zip, Random& random) {
  if (random.one_in(8)) return zip;
  const auto number = [&](std::size_t at, std::size_t width) {
    std::uint64_t value = 0;
    if (at + width <= zip.size()) std::memcpy(&value, zip.data() + at, width);
    return static_cast<std::size_t>(value);
  };
  for (std::size_t mark = zip.find("PK\x01\x02"); mark != std::string::npos; mark = zip.find("PK\x01\x02", mark + 1)) {
    const std::size_t local = number(mark + 42, 4), stored = number(mark + 20, 4), begin = local + 30 + number(local + 26, 2) + number(local + 28, 2);
    if (mark + 46 > zip.size() || begin > zip.size() || stored > zip.size() - begin) continue;
    const auto crc = static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(zip.data() + begin), stored));
    std::memcpy(zip.data() + mark + 16, &crc, sizeof crc);
  }
  return zip;
}

const std::vector<std::string> pickle_words = {"(", "t", "e", "u", "d", "s", "a", "]", ")", "}", "R", "Q", "b", "0", "1", "2", "N", "\x88", "\x89", "q", "h", "\x94", "\x85", "\x86", "\x87", "\x81", "\x93", "\x8f", "\x90", "\x91", "\x8a\x08", "\x8b", "M", "K", "J", "X",
                                               "ccollections\nOrderedDict\n", "ctorch\nFloatStorage\n", "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_parameter\n", "ctorch\nSize\n", "cbuiltins\nset\n", "cos\nsystem\n", "cbuiltins\neval\n",
                                               "\x8c\x07storage", "h\x00", "2222", "((((", "]]]]"};

Target torch(const std::string& name, std::vector<std::string> seeds) {
  return {.name = name,
          .seeds = std::move(seeds),
          .words = pickle_words,
          .read = [](const std::string& bytes) {
            WeightFile file = file_of("weights.pth", bytes);
            read_torch_file(file);
            use(file);
          },
          .names = {"weights.pth"},
          .bytes_constant = 4 << 20,
          .bytes_a_byte = 128};
}

}  // namespace

Target safetensors_target() {
  const std::string path = scratch("seed.safetensors");
  write_safetensors(path, arrays(), {{"format", "pt"}});
  return {.name = "safetensors",
          .seeds = {read_file(path)},
          .words = {"{", "}", "[", "]", "\"", ",", ":", "{\"a\":", "[[[[", "\"shape\"", "\"dtype\"", "\"data_offsets\"", "\"F32\"", "\"BOOL\"", "__metadata__", "null", "\\u0000", "1e999", "-1", "0,0"},
          .read = [](const std::string& bytes) {
            WeightFile file = file_of("weights.safetensors", bytes);
            read_safetensors(file);
            use(file);
            const std::string again = scratch("again.safetensors");
            write_safetensors(again, file.arrays, {});
            WeightFile back = file_of(again, read_file(again));
            read_safetensors(back);
            if (back.arrays.size() != file.arrays.size()) throw Fault{"written again it has another number of tensors"};
            for (const NamedArray& array : file.arrays) {
              const auto found = std::ranges::find(back.arrays, array.name, &NamedArray::name);
              const auto size = static_cast<std::size_t>(element_count(array.shape) * name_of(array.type).bytes);
              if (found == back.arrays.end() || found->shape != array.shape || (size > 0 && std::memcmp(found->data, array.data, size) != 0)) throw Fault{"written again it is another tensor: " + array.name};
            }
          },
          .names = {"weights.safetensors"}};
}

Target torch_zip_target() {
  Target target = torch("torch_zip", {zipped(state_dict_pickle(arrays())), zipped(nested_pickle())});
  target.repair = with_checksums;
  return target;
}

Target torch_stream_target() { return torch("torch_stream", {stream(state_dict_pickle(arrays())), stream(nested_pickle())}); }

Target pickle_target() {
  Target target = torch("pickle", {state_dict_pickle(arrays()), nested_pickle()});
  target.read = [](const std::string& bytes) {
    const Pickle pickle = read_pickle("weights.pth", bytes, 0);
    if (pickle.end > bytes.size() || pickle.root >= pickle.values.size()) throw Fault{"its end or root lies outside"};
    for (const PickleValue& value : pickle.values)
      for (const std::uint32_t item : value.items)
        if (item >= pickle.values.size()) throw Fault{"a value refers to one that is not there"};
  };
  return target;
}

}  // namespace lockstep::fuzz
