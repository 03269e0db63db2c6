// safetensors: what the format's text says is read and written; a header that lies is an Error that names the file and the tensor.
#include "storage/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

WeightFile read(const std::string& path) {
  WeightFile file;
  file.path = path, file.bytes = bytes_of_file(path);
  read_safetensors(file);
  return file;
}
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data_bytes, '\1');
}

// The format, written down once more; by the library itself where it is installed.
const char* writer = R"(
import json, struct, torch
def plain(tensors, path, metadata):
    header, data, names = {'__metadata__': metadata}, b'', {torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16', torch.float64: 'F64', torch.int64: 'I64'}
    for name, t in tensors.items():
        raw = t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {'dtype': names[t.dtype], 'shape': list(t.shape), 'data_offsets': [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    open(path, 'wb').write(struct.pack('<Q', len(text)) + text + data)
try:
    from safetensors.torch import save_file as save, load_file
except ImportError:
    save = plain
torch.manual_seed(1)
tensors = {'w': torch.randn(3, 4), 'h': torch.randn(5).half(), 'b': torch.randn(5).bfloat16(), 'd': torch.randn(2).double(), 'n': torch.tensor(9), 'none': torch.zeros(0, 3)}
for kind, write in (('plain', plain), ('library', save)):
    write(tensors, kind, {'format': 'pt', 'arch': 'x'})
torch.cat([tensors[k].float().flatten() for k in 'whbd']).numpy().tofile('truth')
)";

TEST(Safetensors, FilesOfTheFormatAreReadToTheBit) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, writer);
  for (const char* kind : {"plain", "library"}) {
    WeightFile file = read(folder / kind);
    EXPECT_EQ(file.arrays.size(), 6u);
    std::vector<float> values;
    for (const char* name : {"w", "h", "b", "d"}) {
      const std::vector<float> of_array = floats_of(*std::ranges::find(file.arrays, name, &NamedArray::name));
      values.insert(values.end(), of_array.begin(), of_array.end());
    }
    EXPECT_EQ(values, read_array<float>(folder / "truth"));
    std::ranges::sort(file.notes);
    EXPECT_EQ(file.notes, (std::vector<std::pair<std::string, std::string>>{{"arch", "x"}, {"format", "pt"}}));
  }
}

TEST(Safetensors, WhatIsWrittenIsReadBackAndEachTensorIsAligned) {
  const ScratchFolder folder;
  const std::vector<float> weight = {1, 2, 3};
  const std::int64_t count = 5;
  write_safetensors(folder / "a.safetensors", {{.name = "w", .shape = {3, 1}, .strides = {1, 1}, .data = reinterpret_cast<const char*>(weight.data())},
                                               {.name = "n", .type = ElementType::i64, .shape = {}, .strides = {}, .data = reinterpret_cast<const char*>(&count)}}, {{"format", "pt"}});
  const WeightFile file = read(folder / "a.safetensors");
  ASSERT_EQ(file.arrays.size(), 2u);
  for (const NamedArray& array : file.arrays) EXPECT_EQ((array.data - file.bytes.data()) % name_of(array.type).bytes, 0) << array.name;
  EXPECT_EQ(floats_of(*std::ranges::find(file.arrays, "w", &NamedArray::name)), weight);
  std::int64_t read_count = 0;
  std::memcpy(&read_count, std::ranges::find(file.arrays, "n", &NamedArray::name)->data, sizeof read_count);
  EXPECT_EQ(read_count, 5);
  if (!has_torch()) return;
  run_in(folder, R"(
import json, struct
raw = open('a.safetensors', 'rb').read()
length = struct.unpack('<Q', raw[:8])[0]
header = json.loads(raw[8:8 + length])
assert length % 8 == 0 and header['w'] == {'dtype': 'F32', 'shape': [3, 1], 'data_offsets': [8, 20]} and header['n']['shape'] == [], header
assert struct.unpack('<3f', raw[8 + length + 8:]) == (1, 2, 3)
try: from safetensors.torch import load_file
except ImportError: raise SystemExit
assert load_file('a.safetensors')['w'].tolist() == [[1], [2], [3]] and load_file('a.safetensors')['n'].item() == 5
)");
}

TEST(Safetensors, AHeaderThatLiesIsRefusedByTheNameOfFileAndTensor) {
  const ScratchFolder folder;
  const std::string path = folder / "x.safetensors", good = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  write_file(path, file_of(good, 8));
  EXPECT_EQ(read(path).arrays.size(), 1u);
  struct Row { std::string bytes; std::vector<std::string> parts; };
  const auto header = [&](const std::string& text, std::size_t bytes = 8) { return file_of(text, bytes); };
  const std::vector<Row> rows = {
      {"", {"cut off"}}, {file_of(good, 8).substr(0, 7), {"cut off"}}, {file_of(good, 8).substr(0, 30), {"header is cut off"}}, {file_of(good, 7), {"w", "cut off"}}, {file_of(good, 9), {"9", "8"}},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10), {"cut off"}}, {header("[1]"), {"JSON"}}, {header("{\"w\":"), {"JSON"}}, {header("{\"w\":3}"), {"w"}},
      {header(R"({"w":{"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]}})"), {"w", "F8_E5M2", "F32"}},
      {header(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"), {"w", "[3]"}}, {header(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"), {"w", "shape"}},
      {header(R"({"w":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})"), {"w", "shape"}}, {header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"), {"w"}},
      {header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}})"), {"w"}}, {header(R"({"w":{"dtype":"F32","shape":[2]}})"), {"w", "data_offsets"}}, {header(R"({"w":{"shape":[2],"data_offsets":[0,8]}})"), {"w", "dtype"}},
      {header(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})"), {"w"}}, {header(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0), {"w"}},
      {header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"v":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"), {"overlap"}},
      {header(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"), {"gap"}}, {header(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), {"8", "4"}},
      {header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"), {"\"w\" comes twice"}},
      {file_of(std::string(1'000'000, '['), 8), {"JSON"}}, {file_of("{\"a\":" + std::string(500'000, '[') + std::string(500'000, ']') + "}", 8), {"a"}}};
  for (const Row& row : rows) {
    write_file(path, row.bytes);
    try {
      read(path);
      ADD_FAILURE() << "read: " << row.bytes.substr(8, 200);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find(path), 0u) << message;
      for (const std::string& part : row.parts) EXPECT_NE(message.find(part, path.size()), std::string::npos) << "'" << part << "' is not in: " << message;
    }
  }
}

// n^2 steps for n names would be minutes; the order stays the file's.
TEST(Safetensors, AHeaderOfManyNamesIsReadAsAnyOther) {
  const ScratchFolder folder;
  std::string text;
  for (int i = 100'000; i-- > 0;) text += text_of(text.empty() ? "{" : ",", "\"t", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  write_file(folder / "x.safetensors", file_of(text + "}", 0));
  const WeightFile file = read(folder / "x.safetensors");
  ASSERT_EQ(file.arrays.size(), 100'000u);
  EXPECT_EQ(file.arrays.front().name, "t99999");
  EXPECT_EQ(file.arrays.back().name, "t0");
}

TEST(Safetensors, AnyByteChangedIsReadOrRefusedAndNothingElse) {
  const std::string whole = file_of(R"({"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"n":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})", 16);
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int value = 0; value < 256; ++value) {
      WeightFile file;
      file.path = "x", file.bytes.assign(whole.begin(), whole.end());
      file.bytes[at] = static_cast<char>(value);
      try {
        read_safetensors(file);
        for (const NamedArray& array : file.arrays)
          if (array.type <= ElementType::bf16) floats_of(array);
      } catch (const Error&) {
      }
    }
}

}  // namespace
}  // namespace lockstep::test
