// hdf5_objects: libhdf5's identifiers, types, spaces and words, for hdf5.cpp alone.
#pragma once
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "storage/hdf5.hpp"

namespace lockstep::hdf5_objects {

/// Held during every public call.  The library's own printing is off: its words go into our Error.
struct Locked {
  std::lock_guard<std::mutex> guard;
  Locked() : guard(mutex()) {
    // Without this, exit() while another thread is in the library would tear it down under that thread.
    static const bool once = [] { return H5dont_atexit() >= 0; }();
    static_cast<void>(once);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  static std::mutex& mutex() {
    static std::mutex the_mutex;
    return the_mutex;
  }
};

/// What the library says of its last failure: the innermost message, which names the cause.  Of a failed write or read only
/// the system's words are kept: the rest is addresses.
inline std::string library_words() {
  std::string words;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD,
           [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
             if (n == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
             return 0;
           },
           &words);
  std::ranges::replace(words, '\n', ' ');
  H5Eclear2(H5E_DEFAULT);
  constexpr std::string_view system = "error message = '";
  if (const std::size_t begin = words.find(system); begin != std::string::npos) words = words.substr(begin + system.size(), words.find('\'', begin + system.size()) - begin - system.size());
  return words.empty() ? "no reason given" : words;
}

/// An identifier, closed by the function of its kind.
class Handle {
 public:
  Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_), std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() { if (id_ >= 0) close_(id_); }
  hid_t id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  bool close() { return close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// The type as it lies in a file: little endian everywhere.
inline hid_t file_type(H5Type type) {
  switch (type) {
    case H5Type::u8: return H5T_STD_U8LE;
    case H5Type::i32: return H5T_STD_I32LE;
    case H5Type::u32: return H5T_STD_U32LE;
    case H5Type::i64: return H5T_STD_I64LE;
    case H5Type::f32: return H5T_IEEE_F32LE;
    case H5Type::f64: return H5T_IEEE_F64LE;
    case H5Type::text: break;
  }
  fail_with(exit_internal, "hdf5: texts are written by write_texts.");
}
static_assert(std::endian::native == std::endian::little, "a file's type is also the memory's");

inline const char* name_of(H5Type type) {
  constexpr const char* names[] = {"u8", "i32", "u32", "i64", "f32", "f64", "text"};
  return names[static_cast<int>(type)];
}

inline Handle text_type(std::size_t bytes) {   // H5T_VARIABLE, or of fixed length
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), bytes), H5Tset_cset(type.id(), H5T_CSET_UTF8);
  if (bytes != H5T_VARIABLE) H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  return type;
}

/// A property list of objects without time stamps.
inline Handle stampless(hid_t kind) {
  Handle list(H5Pcreate(kind), H5Pclose);
  H5Pset_obj_track_times(list.id(), false);
  return list;
}

inline Handle access_list() {
  Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(list.id(), false, true);   // file systems of clusters often cannot lock; runs have a lock of their own
  // The newer format keeps attributes above 64 KB (class names); HDF5 1.8 reads it already.
  H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  return list;
}

/// These bytes in the place of a file, to be read alone; they are neither copied nor changed, and must live longer than it.
inline Handle open_in_memory(std::span<char> bytes) {
  H5FD_file_image_callbacks_t shared{};
  shared.image_malloc = [](std::size_t, H5FD_file_image_op_t, void* image) { return image; };
  shared.image_memcpy = [](void* to, const void*, std::size_t, H5FD_file_image_op_t, void*) { return to; };
  shared.image_realloc = [](void*, std::size_t, H5FD_file_image_op_t, void*) -> void* { return nullptr; };
  shared.image_free = [](void*, H5FD_file_image_op_t, void*) -> herr_t { return 0; };
  shared.udata_copy = [](void* image) { return image; };
  shared.udata_free = [](void*) -> herr_t { return 0; };
  shared.udata = bytes.data();
  const Handle access = access_list();
  H5Pset_fapl_core(access.id(), 1 << 16, false);
  H5Pset_file_image_callbacks(access.id(), &shared);
  H5Pset_file_image(access.id(), bytes.data(), bytes.size());
  // A name that no file can have, or the library refuses; of one name it makes one file, so it says where the bytes are.
  return {H5Fopen(text_of("/dev/null/", static_cast<const void*>(bytes.data())).c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose};
}

inline Handle space_of(std::span<const std::int64_t> shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
}

inline std::vector<std::int64_t> shape_of(hid_t space) {
  std::vector<hsize_t> extents(static_cast<std::size_t>(std::max(H5Sget_simple_extent_ndims(space), 0)));
  if (!extents.empty()) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

/// Elements of a space; -1 where a file of so many bytes has no room for them.
inline std::int64_t points_of(hid_t type, hid_t space, std::int64_t file_bytes) {
  const hssize_t points = H5Sget_simple_extent_npoints(space);
  const std::size_t size = H5Tget_size(type);
  const std::vector<std::int64_t> shape = shape_of(space);
  if (points < 0 || size == 0 || std::cmp_greater(size, file_bytes) || std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; })) return -1;
  if (points == 0 || std::ranges::count(shape, 0) > 0) return 0;
  std::int64_t left = file_bytes / static_cast<std::int64_t>(size);   // divided, because the library's own product may have passed 2^64
  for (const std::int64_t extent : shape) left /= extent;
  return left > 0 ? static_cast<std::int64_t>(points) : -1;
}

/// -1 for a type that is none of ours.
inline int kind_of(hid_t type) {
  if (H5Tget_class(type) == H5T_STRING) return static_cast<int>(H5Type::text);
  for (H5Type known : {H5Type::u8, H5Type::i32, H5Type::u32, H5Type::i64, H5Type::f32, H5Type::f64})
    if (H5Tequal(type, file_type(known)) > 0) return static_cast<int>(known);
  return -1;
}

/// Texts out of a dataset or an attribute that lies in a file of so many bytes; read(memory type, data) reads all of it.
template <class Read>
bool take_texts(hid_t type, hid_t space, std::int64_t file_bytes, std::vector<std::string>& texts, Read&& read) {
  const std::int64_t points = points_of(type, space, file_bytes);
  if (points < 0 || H5Tget_class(type) != H5T_STRING) return false;
  texts.resize(static_cast<std::size_t>(points));
  if (points == 0) return true;
  if (H5Tis_variable_str(type) > 0) {
    Handle memory(H5Tcopy(type), H5Tclose);
    std::vector<char*> pointers(texts.size(), nullptr);
    if (read(memory.id(), static_cast<void*>(pointers.data())) < 0) return false;
    for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = pointers[i] ? pointers[i] : "";
    H5Dvlen_reclaim(memory.id(), space, H5P_DEFAULT, pointers.data());
    return true;
  }
  const std::size_t width = H5Tget_size(type);
  std::vector<char> characters(texts.size() * width);
  if (read(type, static_cast<void*>(characters.data())) < 0) return false;
  for (std::size_t i = 0; i < texts.size(); ++i) texts[i].assign(&characters[i * width], strnlen(&characters[i * width], width));
  return true;
}

}  // namespace lockstep::hdf5_objects
