#include "storage/hdf5.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/complaint.hpp"
#include "support/limits.hpp"
#include "support/python.hpp"

namespace lockstep {
namespace {

const std::vector<std::int64_t> two_by_three = {2, 3};

std::vector<std::string> class_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    std::string digits = std::to_string(i);
    names.push_back("class_" + std::string(24 - digits.size(), '0') + digits);
  }
  return names;
}

TEST(Hdf5, H5pyReadsWhatWeWrite) {
  const ScratchFolder folder;
  {
    H5File file = H5File::create(folder / "a.h5");
    const std::uint8_t bytes[] = {1, 2, 3, 4, 5, 255};
    const std::int32_t ints[] = {-1, 2, 3, 4, 5, 6};
    const std::uint32_t words[] = {4000000000u, 2, 3, 4, 5, 6};
    const std::int64_t longs[] = {-(std::int64_t{1} << 60), 2, 3, 4, 5, 6};
    const float floats[] = {0.1f, 2, 3, 4, 5, 6};
    const double doubles[] = {0.1, 2, 3, 4, 5, 6};
    file.write("/a/b/u8", H5Type::u8, two_by_three, bytes);
    file.write("/a/b/i32", H5Type::i32, two_by_three, ints);
    file.write("/a/u32", H5Type::u32, two_by_three, words);
    file.write("/i64", H5Type::i64, two_by_three, longs);
    file.write("/f32", H5Type::f32, two_by_three, floats);
    file.write("/f64", H5Type::f64, two_by_three, doubles);
    file.write("/scalar", H5Type::f64, {}, doubles);
    const std::int64_t none = 0;
    file.write("/empty", H5Type::f32, {&none, 1}, nullptr);
    file.write_texts("/names", std::vector<std::string>{"a", "Gr\xc3\xbc\xc3\x9f" "e", ""});
    file.set_attribute("text", std::string("caf\xc3\xa9"));
    file.set_attribute("integer", std::int64_t{1} << 60);
    file.set_attribute("numbers", std::vector<double>{0.1, 0.2, 0.3});
    file.set_attribute("texts", std::vector<std::string>{"cat", "dog", "n\xc3\xbc"});
    file.set_attribute("no_texts", std::vector<std::string>{});
    file.set_attribute("no_numbers", std::vector<double>{});
    file.close();
  }
  EXPECT_EQ(run_python(R"(
import sys, h5py, numpy as np
f = h5py.File(sys.argv[1])
assert f["a/b/u8"].dtype == np.uint8 and f["a/b/u8"][:].tolist() == [[1, 2, 3], [4, 5, 255]]
assert f["a/b/i32"].dtype == np.int32 and f["a/b/i32"][0, 0] == -1
assert f["a/u32"].dtype == np.uint32 and f["a/u32"][0, 0] == 4000000000
assert f["i64"].dtype == np.int64 and f["i64"][0, 0] == -2**60
assert f["f32"].dtype == np.float32 and f["f32"][0, 0] == np.float32(0.1)
assert f["f64"].dtype == np.float64 and f["f64"][0, 0] == 0.1
assert f["scalar"].shape == () and f["scalar"][()] == 0.1 and f["empty"].shape == (0,)
assert f["names"].dtype.kind == "S" and f["names"].dtype.itemsize == 7
assert f["names"].asstr()[:].tolist() == ["a", "Grüße", ""]
a = f.attrs
assert type(a["text"]) is str and a["text"] == "café" and a["integer"] == 2**60
assert a["numbers"].tolist() == [0.1, 0.2, 0.3] and a["texts"].tolist() == ["cat", "dog", "nü"]
assert len(a["no_texts"]) == 0 and len(a["no_numbers"]) == 0
print("as written")
)", {folder / "a.h5"}), "as written\n");
}

TEST(Hdf5, WeReadWhatH5pyWrites) {
  const ScratchFolder folder;
  run_python(R"(
import sys, h5py, numpy as np
f = h5py.File(sys.argv[1], "w")
f["g/x"] = np.arange(6, dtype=np.float32).reshape(2, 3)
f["half"] = np.zeros(3, np.float16)
f["names"] = np.array([b"ab", b"c"])
f["variable"] = ["long one", "é"]
f.attrs["text"], f.attrs["fixed"], f.attrs["texts"], f.attrs["n"], f.attrs["f"] = "t", np.bytes_(b"u"), ["p", "q"], 7, np.array([1, 2.5])
)", {folder / "a.h5"});
  const H5File file = H5File::open(folder / "a.h5");
  std::vector<float> x(6);
  file.read("/g/x", H5Type::f32, x.data(), 6);
  EXPECT_EQ(x, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file.read_texts("/names"), (std::vector<std::string>{"ab", "c"}));
  EXPECT_EQ(file.read_texts("/variable"), (std::vector<std::string>{"long one", "\xc3\xa9"}));
  EXPECT_EQ(file.text_attribute("text") + file.text_attribute("fixed"), "tu");
  EXPECT_EQ(file.texts_attribute("texts"), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(file.integer_attribute("n"), 7);
  EXPECT_EQ(file.numbers_attribute("f"), (std::vector<double>{1, 2.5}));
  EXPECT_NE(complaint([&] { file.info("/half"); }).find("/half is of a type that lockstep does not use"), std::string::npos);
}

TEST(Hdf5, ClassNamesFarAbove64KilobytesComeBack) {
  for (const int count : {1, 1000, 22000}) {
    const ScratchFolder folder;
    const std::vector<std::string> names = class_names(count);
    {
      H5File file = H5File::create(folder / "a.h5");
      file.set_attribute("classes", names);
      file.set_attribute("config", std::string(200000, 'c'));
      file.close();
    }
    const H5File file = H5File::open(folder / "a.h5");
    EXPECT_EQ(file.texts_attribute("classes"), names);
    EXPECT_EQ(file.text_attribute("config").size(), 200000u);
    EXPECT_EQ(run_python("import sys, h5py\nc = h5py.File(sys.argv[1]).attrs['classes']\nprint(len(c), c[-1])", {folder / "a.h5"}), std::to_string(count) + " " + names.back() + "\n");
  }
}

TEST(Hdf5, EqualContentGivesEqualBytesAtAnyTime) {
  const ScratchFolder folder;
  const auto write = [&](const std::string& path) {
    H5File file = H5File::create(path);
    const std::vector<float> values(6, 2);
    file.write("/a/b", H5Type::f32, two_by_three, values.data());
    file.write_texts("/names", class_names(10));
    file.set_attribute("classes", class_names(22000));
    file.set_attribute("n", std::int64_t{3});
    file.close();
    return read_file(path);
  };
  const std::string first = write(folder / "a.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));   // a time stamp counts seconds
  EXPECT_EQ(write(folder / "b.h5"), first);
}

TEST(Hdf5, ContiguousDataLieWhereInfoSays) {
  const ScratchFolder folder;
  const std::uint8_t bytes[] = {11, 12, 13, 14, 15, 16};
  H5File file = H5File::create(folder / "a.h5");
  file.write("/x", H5Type::u8, two_by_three, bytes);
  file.write("/later", H5Type::u8, two_by_three, nullptr);
  const H5DatasetInfo info = file.info("/x"), later = file.info("/later");
  file.close();
  EXPECT_EQ(info.shape, two_by_three);
  EXPECT_EQ(read_file(folder / "a.h5").substr(static_cast<std::size_t>(info.file_offset), 6), "\x0b\x0c\x0d\x0e\x0f\x10");
  EXPECT_GT(later.file_offset, info.file_offset);
}

TEST(Hdf5, DatasetsAreListedByFullNameInOrder) {
  const ScratchFolder folder;
  H5File file = H5File::create(folder / "a.h5");
  for (const char* name : {"/model/layer1.0.conv1.weight", "/model/bn1.weight", "/optimizer/momentum/fc.weight", "/model/sub/x"}) file.write(name, H5Type::f32, {}, nullptr);
  std::string names;
  for (const H5DatasetInfo& info : file.list("/model")) names += info.path + " ";
  EXPECT_EQ(names, "/model/bn1.weight /model/layer1.0.conv1.weight /model/sub/x ");
  EXPECT_EQ(file.list("/").size(), 4u);
  EXPECT_TRUE(file.has("/model/sub/x"));
  EXPECT_TRUE(file.has("/model"));
  EXPECT_FALSE(file.has("/model/none/x"));
  EXPECT_NE(complaint([&] { file.list("/nothing"); }).find("a.h5: has no group /nothing"), std::string::npos);
}

TEST(Hdf5, AttributesMayBeReplaced) {
  const ScratchFolder folder;
  H5File file = H5File::create(folder / "a.h5");
  file.set_attribute("x", std::string("first"));
  file.set_attribute("x", std::vector<double>{1, 2});
  EXPECT_EQ(file.numbers_attribute("x"), (std::vector<double>{1, 2}));
  EXPECT_TRUE(file.has_attribute("x"));
  EXPECT_FALSE(file.has_attribute("y"));
}

// What h5py can write and lockstep never does: memory and files that the bytes of this one do not pay for.
TEST(Hdf5, LinksElsewhereOtherLayoutsAndMoreThanTheFileHoldsAreRefused) {
  const ScratchFolder folder;
  write_file(folder / "secret", std::string(64, 's'));
  run_python(R"(
import sys, h5py, numpy as np
other = h5py.File(sys.argv[2], "w"); other["x"] = np.arange(4, dtype=np.float32); other.close()
f = h5py.File(sys.argv[1], "w")
f["x"] = np.arange(4, dtype=np.float32)
f["soft"], f["outside"] = h5py.SoftLink("/x"), h5py.ExternalLink(sys.argv[2], "/x")
f["beside"] = h5py.ExternalLink(sys.argv[2], "/")
f.create_dataset("external", (16,), "<f4", external=[(sys.argv[3], 0, 64)])
f.create_dataset("chunked", data=np.arange(100, dtype=np.int64), chunks=(10,))
f.create_dataset("bomb", (1 << 40,), "<f4", chunks=(1 << 20,), compression="gzip")
f.create_dataset("huge", (1 << 40,), "<f4")
f.create_dataset("names", (1 << 40,), "S8")
loops = f.create_group("loops")
loops["a"] = loops["b"] = loops
many = f.create_group("many")
for i in range(16385): many[str(i)] = f["x"]
f.create_group("links")["far"] = h5py.ExternalLink(sys.argv[2], "/x")
f["a/real/x"] = f["x"]
f["a/soft"], f["a/far"] = h5py.SoftLink("/a/real"), h5py.ExternalLink(sys.argv[2], "/")
for name in ("soft", "far"): f["a/%s.x" % name] = f["x"]
)", {folder / "a.h5", folder / "other.h5", folder / "secret"});
  const H5File file = H5File::open(folder / "a.h5");
  std::vector<float> values(16);
  file.read("/x", H5Type::f32, values.data(), 4);
  const auto expect_refused = [&](const std::string& what, const auto& act) {
    const std::string message = complaint(act);
    EXPECT_NE(message.find("a.h5"), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  expect_refused("/soft is a link", [&] { file.read("/soft", H5Type::f32, values.data(), 4); });
  expect_refused("/outside is a link", [&] { file.read("/outside", H5Type::f32, values.data(), 4); });
  expect_refused("/beside is a link", [&] { file.info("/beside/x"); });
  expect_refused("/external is chunked, compressed or in another file", [&] { file.read("/external", H5Type::f32, values.data(), 16); });
  expect_refused("/chunked is chunked", [&] { file.info("/chunked"); });
  expect_refused("/bomb is chunked", [&] { file.info("/bomb"); });
  expect_refused("/huge is larger than the file", [&] { file.info("/huge"); });
  expect_refused("/names is larger than the file", [&] { file.read_texts("/names"); });
  expect_refused("/links/far is a link", [&] { file.list("/links"); });
  for (const bool is_parent_known : {false, true})             // a link in the middle, whatever was looked at before, and below whichever name
    for (const std::string link : {"/a/soft", "/a/far"}) {
      if (is_parent_known) file.info("/a/real/x"), file.info(link + ".x"), file.info("/a/real/x");
      expect_refused(link + " is a link", [&] { file.read(link + "/x", H5Type::f32, values.data(), 4); });
      expect_refused(link + " is a link", [&] { file.info(link + "/x"); });
      expect_refused(link + " is a link", [&] { file.read_texts(link + "/x"); });
      expect_refused(link + " is a link", [&] { file.list(link); });
    }
  EXPECT_EQ(file.list("/a/real").size(), 1u);
  expect_refused(" is a link", [&] { file.list("/a"); });
  expect_refused("is too deep", [&] { file.list("/loops"); });
  expect_refused("holds more than 16384 objects", [&] { file.list("/many"); });
}

TEST(Hdf5, WhatIsMissingOrOfAnotherTypeIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder / "a.h5";
  H5File file = H5File::create(path);
  std::vector<float> values(6);
  file.write("/x", H5Type::f32, two_by_three, values.data());
  file.set_attribute("t", std::string("text"));
  EXPECT_NE(complaint([&] { file.read("/y", H5Type::f32, values.data(), 6); }).find(path + ": has no dataset /y"), std::string::npos);
  EXPECT_NE(complaint([&] { file.read("/x", H5Type::f32, values.data(), 5); }).find("holds 6 of f32; it must hold 5 of f32"), std::string::npos);
  EXPECT_NE(complaint([&] { file.read("/x", H5Type::i32, values.data(), 6); }).find("holds 6 of f32; it must hold 6 of i32"), std::string::npos);
  EXPECT_NE(complaint([&] { file.read_texts("/x"); }).find("/x holds no texts"), std::string::npos);
  EXPECT_NE(complaint([&] { file.text_attribute("u"); }).find("has no attribute \"u\""), std::string::npos);
  EXPECT_NE(complaint([&] { file.integer_attribute("t"); }).find("\"t\" is no single integer"), std::string::npos);
  EXPECT_NE(complaint([&] { file.numbers_attribute("t"); }).find("\"t\" holds no numbers"), std::string::npos);
  EXPECT_NE(complaint([&] { file.write("/x", H5Type::f32, two_by_three, values.data()); }).find("/x"), std::string::npos);
  EXPECT_NE(complaint([&] { H5File::create(path); }).find("is there already"), std::string::npos);
  EXPECT_NE(complaint([&] { H5File::create(folder / "no/a.h5"); }).find("cannot be made"), std::string::npos);
  EXPECT_NE(complaint([&] { H5File::open(folder / "none.h5"); }).find("none.h5: cannot be read"), std::string::npos);
}

TEST(Hdf5, AFullDiskIsAnErrorThatNamesTheFile) {
  const ScratchFolder folder;
  const std::int64_t count = 1 << 20;
  const std::vector<float> values(1 << 20, 1);
  std::string message;
  {
    const LoweredLimit limit(RLIMIT_FSIZE, 1 << 20);
    message = complaint([&] {
      H5File file = H5File::create(folder / "a.h5");
      file.write("/x", H5Type::f32, {&count, 1}, values.data());
      file.close();
    });
  }
  EXPECT_NE(message.find("a.h5: "), std::string::npos) << message;
  EXPECT_NE(message.find("cannot be written: File too large. Free space"), std::string::npos) << message;
  H5File next = H5File::create(folder / "b.h5");   // the library goes on working
  next.write("/x", H5Type::f32, {&count, 1}, values.data());
  next.close();
}

TEST(Hdf5, ThreadsMayEachUseAFile) {
  const ScratchFolder folder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&folder, t] {
      for (int round = 0; round < 20; ++round) {
        const std::string path = folder / (std::to_string(t) + "-" + std::to_string(round));
        const std::int64_t count = 1000;
        std::vector<std::int32_t> values(1000, t), back(1000);
        H5File file = H5File::create(path);
        file.write("/x", H5Type::i32, {&count, 1}, values.data());
        EXPECT_THROW(file.info("/none"), Error);
        file.close();
        H5File::open(path).read("/x", H5Type::i32, back.data(), 1000);
        EXPECT_EQ(back, values);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Hdf5, AMovedFileLivesOnAndAClosedOneCanBeDestroyed) {
  const ScratchFolder folder;
  H5File a = H5File::create(folder / "a.h5");
  H5File b = std::move(a);
  b.set_attribute("n", std::int64_t{1});
  a = std::move(b);
  a.set_attribute("m", std::int64_t{2});
  a.close();
  a.close();
  EXPECT_EQ(H5File::open(folder / "a.h5").integer_attribute("m"), 2);
}

TEST(Hdf5, TheVersionIsThatOfTheLibrary) { EXPECT_EQ(hdf5_version().rfind("1.", 0), 0u); }

}  // namespace
}  // namespace lockstep
