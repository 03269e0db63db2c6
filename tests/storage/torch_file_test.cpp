// torch_file: every form in which torch.save leaves a state dict is read, to the bit; nothing of a pickle is run; damage is an Error and nothing else.
#include "storage/torch_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "storage/pickle.hpp"
#include "storage/zip.hpp"
#include "support/models_torch.hpp"

namespace lockstep::test {
namespace {

WeightFile read(const std::string& path) {
  WeightFile file;
  file.path = path, file.bytes = bytes_of_file(path);
  read_torch_file(file);
  return file;
}
std::vector<std::string> names_of(const WeightFile& file) {
  std::vector<std::string> names;
  for (const NamedArray& array : file.arrays) names.push_back(array.name);
  return names;
}
const NamedArray& array_named(const WeightFile& file, const std::string& name) { return *std::ranges::find(file.arrays, name, &NamedArray::name); }
std::string error_of(const std::string& path) {
  try {
    read(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), exit_bad_input);
    return error.what();
  }
  return "read";
}
void expect_error(const std::string& path, const std::vector<std::string>& parts) {
  const std::string message = error_of(path);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

// Tensors as state dicts have them, and as they rarely do: a view with an offset and strides, one of no elements, one of no dimensions.
const char* tensors = R"(
import torch, collections
torch.manual_seed(3)
big = torch.randn(6, 5, 4)
tensors = collections.OrderedDict(a=torch.randn(4, 3, 2, 2), b=torch.randn(7).double(), channels_last=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
                                  view=big[1:4, ::2, 1:], transposed=big.permute(2, 0, 1), empty=torch.randn(0, 3), count=torch.tensor(17), half=torch.randn(9).half(),
                                  bfloat=torch.randn(9).bfloat16(), parameter=torch.nn.Parameter(torch.randn(3, 3)))
torch.cat([v.detach().float().flatten() for k, v in tensors.items() if k != 'count']).numpy().tofile('truth')
)";

void expect_tensors(const WeightFile& file, const ScratchFolder& folder) {
  EXPECT_EQ(names_of(file), (std::vector<std::string>{"a", "b", "channels_last", "view", "transposed", "empty", "count", "half", "bfloat", "parameter"}));
  std::vector<float> values;
  for (const NamedArray& array : file.arrays) {
    if (array.name == "count") continue;
    const std::vector<float> of_array = floats_of(array);
    values.insert(values.end(), of_array.begin(), of_array.end());
  }
  EXPECT_EQ(values, read_array<float>(folder / "truth"));
  EXPECT_EQ(array_named(file, "view").shape, (std::vector<std::int64_t>{3, 3, 3}));
  EXPECT_EQ(array_named(file, "count").type, ElementType::i64);
  EXPECT_EQ(*array_named(file, "count").data, 17);
}

TEST(TorchFile, EveryContainerAndProtocolGivesTheTensorsToTheBit) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, std::string(tensors) + R"(
for protocol in (2, 3, 4, 5):
    torch.save(tensors, 'zip%d' % protocol, pickle_protocol=protocol)
    torch.save(tensors, 'stream%d' % protocol, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
torch.save(dict(tensors), 'dict')
)");
  for (const char* name : {"zip2", "zip3", "zip4", "zip5", "stream2", "stream3", "stream4", "stream5", "dict"}) {
    SCOPED_TRACE(name);
    const WeightFile file = read(folder / name);
    expect_tensors(file, folder);
    EXPECT_TRUE(file.beside.empty());
  }
}

TEST(TorchFile, AStateDictIsFoundBelowItsUsualNamesAndWhatLiesBesideIsNamed) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, std::string(tensors) + R"(
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.randn(3))], 0.1, momentum=0.9)
for key in ('state_dict', 'model_state_dict', 'model'):
    torch.save({'epoch': 3, 'arch': 'resnet50', 'best': torch.tensor(0.5), 'rate': 0.1, key: tensors, 'optimizer': optimizer.state_dict(), 'seen': {1, 2}, 'shape': tensors['a'].shape, 'none': None}, key)
)");
  for (const char* name : {"state_dict", "model_state_dict", "model"}) {
    const WeightFile file = read(folder / name);
    expect_tensors(file, folder);
    EXPECT_EQ(file.beside, (std::vector<std::string>{"epoch", "arch", "best", "rate", "optimizer", "seen", "shape", "none"}));
    EXPECT_EQ(file.notes, (std::vector<std::pair<std::string, std::string>>{{"arch", "resnet50"}}));
    EXPECT_NE(file.form.find("\"" + std::string(name) + "\""), std::string::npos) << file.form;
  }
}

TEST(TorchFile, WhatIsWrittenTorchLoadsWithWeightsOnlyAndZipToolsFindWhole) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  const std::vector<float> weight = {1.5f, -2.f, 3.f, 0.25f, 0.f, -0.f};
  const std::int64_t count = 1ll << 40;
  const std::vector<NamedArray> arrays = {{.name = "z.weight", .shape = {3, 2}, .strides = {2, 1}, .data = reinterpret_cast<const char*>(weight.data())},
                                          {.name = "a.count", .type = ElementType::i64, .shape = {}, .strides = {}, .data = reinterpret_cast<const char*>(&count)}};
  write_torch_file(folder / "file.pth", arrays);
  run_in(folder, R"(
import torch, zipfile
read = torch.load('file.pth', weights_only=True)
assert list(read) == ['z.weight', 'a.count'], read
assert read['z.weight'].dtype == torch.float32 and read['z.weight'].tolist() == [[1.5, -2], [3, 0.25], [0, 0]] and torch.signbit(read['z.weight'])[2, 1]
assert read['a.count'].dtype == torch.int64 and read['a.count'].shape == () and read['a.count'].item() == 1 << 40
archive = zipfile.ZipFile('file.pth')
assert archive.testzip() is None
assert all((i.header_offset + 30 + len(i.filename) + 4) <= len(open('file.pth', 'rb').read()) for i in archive.infolist())
)");
  const WeightFile file = read(folder / "file.pth");
  EXPECT_EQ(names_of(file), (std::vector<std::string>{"z.weight", "a.count"}));
  EXPECT_EQ(floats_of(file.arrays[0]), weight);
}

// Each would make the file "ran" if any of it were run.
TEST(TorchFile, HostilePicklesAreRefusedByNameAndNeverRun) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, std::string(tensors) + R"(
import os, pickle, builtins, functools
class Evil:
    def __init__(s, call, *arguments): s.made = (call, arguments)
    def __reduce__(s): return s.made
for protocol in (2, 4):
    for kind, options in (('zip', {}), ('stream', {'_use_new_zipfile_serialization': False})):
        save = lambda value, name: torch.save(value, '%s_%s%d' % (name, kind, protocol), pickle_protocol=protocol, **options)
        save(Evil(os.system, 'touch ran'), 'root')
        save({'state_dict': tensors, 'evil': Evil(os.system, 'touch ran')}, 'beside')
        save({**tensors, 'evil': Evil(builtins.eval, '__import__("os").system("touch ran")')}, 'within')
        save({Evil(builtins.exec, 'open("ran", "w")'): 1, **tensors}, 'key')
        save({**tensors, 'evil': Evil(getattr, dict, 'clear')}, 'getattr')
open('bare.pth', 'wb').write(pickle.dumps(Evil(os.system, 'touch ran'), 0))
open('dumped.pth', 'wb').write(pickle.dumps(Evil(os.system, 'touch ran'), 2))
)");
  for (const char* form : {"zip2", "stream2", "zip4", "stream4"}) {
    SCOPED_TRACE(form);
    expect_error(folder / (std::string("root_") + form), {form, "posix.system", "runs no code"});
    expect_error(folder / (std::string("beside_") + form), {"posix.system", "runs no code"});
    expect_error(folder / (std::string("within_") + form), {".eval", "runs no code"});
    expect_error(folder / (std::string("key_") + form), {".exec", "runs no code"});
    expect_error(folder / (std::string("getattr_") + form), {".getattr", "runs no code"});
  }
  expect_error(folder / "bare.pth", {"bare.pth", "posix.system"});
  expect_error(folder / "dumped.pth", {"dumped.pth", "posix.system"});
  EXPECT_FALSE(std::filesystem::exists(folder / "ran"));
}

TEST(TorchFile, APickledModuleIsRefusedWithTheLineThatMakesAStateDictOfIt) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, R"(
import torch, torchvision
class Net(torch.nn.Linear): pass
for name, module in (('resnet', torchvision.models.resnet18()), ('own', Net(3, 2))):
    torch.save(module, name + '_zip.pth')
    torch.save(module, name + '_stream.pth', _use_new_zipfile_serialization=False)
torch.jit.script(torch.nn.Linear(3, 2)).save('script.pt')
)");
  for (const char* form : {"_zip.pth", "_stream.pth"}) {
    const std::string resnet = folder / (std::string("resnet") + form), own = folder / (std::string("own") + form);
    expect_error(resnet, {resnet, "pickled nn.Module", "torchvision.models.resnet.ResNet", "torch.load(\"" + resnet + "\"", ".state_dict()"});
    expect_error(own, {own, "pickled nn.Module", "__main__.Net", ".state_dict()"});
  }
  expect_error(folder / "script.pt", {"script.pt", "TorchScript", "torch.jit.load", ".state_dict()"});
}

/// An archive whose one tensor is told to be `shape` with `strides` at `offset`, in a storage of `stored` floats.
std::string archive_of(const ScratchFolder& folder, const std::vector<std::int64_t>& shape, std::size_t stored) {
  const std::string path = folder / "crafted.pth", data(stored * 4, '\0'), pickled = state_dict_pickle({{.name = "w", .shape = shape, .strides = contiguous(shape)}});
  write_zip(path, {{.name = "x/data.pkl", .bytes = pickled}, {.name = "x/data/0", .bytes = data}, {.name = "x/version", .bytes = "3\n"}});
  return path;
}

TEST(TorchFile, TensorsThatDoNotLieInTheirStoragesAreRefusedByName) {
  const ScratchFolder folder;
  EXPECT_EQ(error_of(archive_of(folder, {2, 3}, 6)), "read");
  expect_error(archive_of(folder, {2, 3}, 5), {"crafted.pth", "w", "6", "5"});
  expect_error(archive_of(folder, {1ll << 31, 1ll << 31}, 6), {"w"});
  expect_error(archive_of(folder, {1ll << 40, 1ll << 40}, 6), {"w"});
  expect_error(archive_of(folder, {-1, 3}, 6), {"w"});
  // A thousand tensors that all name one list of a million sizes would be a thousand times a million.
  EXPECT_EQ(error_of(archive_of(folder, std::vector<std::int64_t>(64, 1), 1)), "read");
  expect_error(archive_of(folder, std::vector<std::int64_t>(65, 1), 1), {"crafted.pth", "w has 65 dimensions"});
}

TEST(TorchFile, NestingThatWouldOverflowAStackAndValuesWithoutEndAreRefused) {
  const ScratchFolder folder;
  const std::string head = "\x80\x02", path = folder / "deep.pth";
  for (const std::string& body : {std::string(5'000'000, ']'), std::string(5'000'000, '('), "]" + std::string(5'000'000, '2'), std::string(1'000'000, ']') + std::string(999'999, 'a') + "."}) {
    write_file(path, head + body);
    expect_error(path, {"deep.pth"});
  }
  // A list of 1000 items that is put 1000 times into the next, and so on: 10^15 items, were each counted out.
  std::string copies = head + "](" + std::string(1000, 'N') + "eq";
  copies += '\0';
  for (int level = 0; level < 5; ++level) {
    copies += "](";
    for (int i = 0; i < 1000; ++i) copies += std::string("h\0", 2);
    copies += std::string("eq\0", 3);
  }
  write_file(path, copies + ".");
  expect_error(path, {"deep.pth"});
}

TEST(TorchFile, AnyByteChangedAndAnyLengthIsReadOrRefusedAndNothingElse) {
  if (!has_torch()) GTEST_SKIP() << no_torch;
  const ScratchFolder folder;
  run_in(folder, R"(
import torch, collections
small = collections.OrderedDict(w=torch.randn(2, 3), b=torch.randn(2), n=torch.tensor(1))
torch.save({'state_dict': small, 'epoch': 1}, 'zip')
torch.save({'state_dict': small, 'epoch': 1}, 'stream', _use_new_zipfile_serialization=False)
)");
  for (const char* form : {"zip", "stream"}) {
    const std::string whole = read_file(folder / form);
    const auto try_bytes = [&](const std::string& bytes) {
      WeightFile file;
      file.path = form, file.bytes.assign(bytes.begin(), bytes.end());
      try {
        read_torch_file(file);
        for (const NamedArray& array : file.arrays)
          if (array.type <= ElementType::bf16) floats_of(array);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    EXPECT_TRUE(try_bytes(whole));
    for (std::size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(try_bytes(whole.substr(0, length))) << form << " of " << length << " bytes";
    for (std::size_t at = 0; at < whole.size(); ++at)
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ change);
        try_bytes(changed);
      }
  }
}

}  // namespace
}  // namespace lockstep::test
