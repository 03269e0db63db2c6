#include "storage/named_array.hpp"

#include <sys/stat.h>

#include <cstring>

#include "base/aside.hpp"
#include "base/dtype.hpp"
#include "storage/descriptor.hpp"
#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t largest_file = std::int64_t{16} << 30, largest_count = std::int64_t{1} << 62;

template <class T>
T at(const char* data, std::int64_t element) {
  T value;
  std::memcpy(&value, data + element * static_cast<std::int64_t>(sizeof(T)), sizeof value);
  return value;
}

float float_at(ElementType type, const char* data, std::int64_t element) {
  switch (type) {
    case ElementType::f64: return static_cast<float>(at<double>(data, element));
    case ElementType::f32: return at<float>(data, element);
    case ElementType::f16: return detail::f16_value(at<std::uint16_t>(data, element));
    case ElementType::bf16: return detail::float_of(std::uint32_t{at<std::uint16_t>(data, element)} << 16);
    default: return 0;
  }
}

}  // namespace

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return -1;
    if (extent > 0 && count > largest_count / extent) return -1;
    count *= extent;
  }
  return count;
}

std::vector<std::int64_t> contiguous(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  if (element_count(shape) <= 0) return strides;   // no element to go to; the product of the others may be too large
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string shown(std::string_view text) {
  constexpr std::size_t most = 160;
  std::string clean(text.substr(0, most));
  for (char& c : clean)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return clean + (text.size() > most ? "..." : "");
}

std::vector<float> floats_of(const NamedArray& array) {
  require(array.type <= ElementType::bf16, array.name, " is of ", name_of(array.type).name, ", a network's weights are floating-point numbers. Quantized weights must be made into those first.");
  const auto count = static_cast<std::size_t>(element_count(array.shape));
  std::vector<float> values(count);
  std::vector<std::int64_t> index(array.shape.size(), 0);
  std::int64_t element = 0;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = float_at(array.type, array.data, element);
    for (std::size_t d = index.size(); d-- > 0;) {   // the next index, the last dimension first
      element += array.strides[d];
      if (++index[d] < array.shape[d]) break;
      element -= array.strides[d] * array.shape[d];
      index[d] = 0;
    }
  }
  return values;
}

std::vector<char> bytes_of_file(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  require(static_cast<bool>(file), path, " cannot be opened: ", reason(), ". Check the path.");
  struct stat status {};
  require(::fstat(file.fd, &status) == 0 && S_ISREG(status.st_mode), path, " is no regular file. Name a file of weights.");
  require(status.st_size <= largest_file, path, " has ", status.st_size, " bytes, more than any file of weights that lockstep has a network for (16 GiB). Check the path.");
  std::vector<char> bytes(static_cast<std::size_t>(status.st_size));
  const std::int64_t got = read_at(file, bytes.data(), status.st_size, 0);
  require(got >= 0, path, " cannot be read: ", reason(), ".");
  require(got == status.st_size, path, " became shorter while it was read. Wait until it is written.");
  return bytes;
}

void write_whole_file(const std::string& path, const std::vector<std::string_view>& parts) {
  const std::string temporary = aside_of(path);
  try {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    require(static_cast<bool>(file), path, " cannot be written: ", reason(), ". Check the folder and its permissions.");
    std::int64_t offset = 0;
    for (const std::string_view part : parts) {
      require(write_at(file, part.data(), static_cast<std::int64_t>(part.size()), offset), path, " cannot be written: ", reason(), ". Check free space.");
      offset += static_cast<std::int64_t>(part.size());
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  publish(temporary, path);
}

}  // namespace lockstep
