// cifar_target: CIFAR's binary files in a .tar or .tar.gz, as downloaded.
#include <zlib.h>

#include <cstdio>

#include "base/error.hpp"
#include "convert/source.hpp"
#include "fuzz/target.hpp"

namespace lockstep {
std::unique_ptr<Source> make_cifar10();
}

namespace lockstep::fuzz {
namespace {

std::string tar_entry(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char octal[12];
  std::snprintf(octal, sizeof octal, "%011zo", content.size());
  header.replace(124, 11, octal, 11);
  header[156] = '0';
  header.replace(257, 5, "ustar");
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

std::string archive() {
  std::string bytes;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) bytes += tar_entry(std::string("cifar-10-batches-bin/") + name, std::string(3073, '\x03'));
  return bytes + tar_entry("cifar-10-batches-bin/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n") + std::string(1024, '\0');
}

std::string compressed(const std::string& bytes) {
  z_stream z{};
  if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw Fault{"zlib"};
  std::string out(deflateBound(&z, bytes.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data())), z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

}  // namespace

Target cifar_target() {
  return {.name = "cifar",
          .seeds = {archive(), compressed(archive())},
          .words = {"ustar", "77777777777", "00000000000", "-0000000001", "data_batch_1.bin", "test_batch.bin", "\x1f\x8b\x08", std::string(512, '\0')},
          .read = [](const std::string& bytes) {
            const std::string path = scratch("cifar-10-binary.tar.gz");
            put(path, bytes);
            const std::unique_ptr<Source> source = make_cifar10();
            const Listing listing = source->open(path, 0);
            for (std::size_t split = 0; split < listing.splits.size(); ++split)
              for (std::size_t item = 0; item < listing.splits[split].items.size(); ++item) source->image(listing, split, item);
          },
          .repair = [](std::string mutant, Random& random) { return !mutant.starts_with("\x1f\x8b") && random.one_in(4) ? compressed(mutant) : mutant; },
          .names = {"cifar-10-binary.tar.gz"},
          .bytes_constant = 8 << 20,                                  // zlib's windows, and a buffer of 1 MB
          .bytes_a_byte = 1100};                                      // deflate makes at most 1032 bytes of one
}

}  // namespace lockstep::fuzz
