// hdf5: handles that close themselves, and the dozen HDF5 calls we use, each checked once.
// The only file that sees hdf5.h is hdf5.cpp.  One mutex around every call.  File locking is off for readers.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {

enum class H5Type { u8, i32, u32, i64, f32, f64, text };

struct H5DatasetInfo {
  std::string path;
  H5Type type;
  std::vector<std::int64_t> shape;
  std::int64_t file_offset = -1;   // of contiguous data; -1 when there is none
};

/// A file that is open.  Paths are absolute ("/model/conv1.weight"); missing groups are made on write.
/// Reading takes only what lockstep writes: hard links, and datasets that lie whole in this file, neither chunked nor compressed nor in other files.
/// So no value is believed that would take more memory than the file has bytes.
class H5File {
 public:
  /// Fails if it exists.  align_large > 0: datasets of at least so many bytes begin at a multiple of it.
  static H5File create(const std::string& path, std::int64_t align_large = 0);
  static H5File open(const std::string& path);            // read only; the caller has verified the seal
  static H5File open(const std::string& path, SealedBytes bytes);   // of read_sealed: libhdf5 then reads memory alone, if there are any
  ~H5File();
  H5File(H5File&&) noexcept;
  H5File& operator=(H5File&&) noexcept;
  void close();                                            // flushes; errors are thrown here, not in the destructor

  /// Contiguous dataset, space allocated at once; data may be null (then only allocated).
  void write(const std::string& path, H5Type type, std::span<const std::int64_t> shape, const void* data);
  void read(const std::string& path, H5Type type, void* data, std::size_t elements) const;   // Error if type or size differ
  bool has(const std::string& path) const;
  H5DatasetInfo info(const std::string& path) const;
  std::vector<H5DatasetInfo> list(const std::string& group) const;                           // datasets below, full paths, sorted

  void write_texts(const std::string& path, std::span<const std::string> texts);             // fixed-length UTF-8 [n]
  std::vector<std::string> read_texts(const std::string& path) const;

  // Root attributes.
  void set_attribute(const std::string& name, const std::string& text);
  void set_attribute(const std::string& name, std::int64_t value);
  void set_attribute(const std::string& name, std::span<const double> values);
  void set_attribute(const std::string& name, std::span<const std::string> texts);
  bool has_attribute(const std::string& name) const;
  std::string text_attribute(const std::string& name) const;
  std::int64_t integer_attribute(const std::string& name) const;
  std::vector<double> numbers_attribute(const std::string& name) const;
  std::vector<std::string> texts_attribute(const std::string& name) const;

 private:
  struct State;
  explicit H5File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Whether a file begins as an HDF5 file does; false where it cannot be read.
bool is_hdf5(const std::string& path);
std::string hdf5_version();

}  // namespace lockstep
