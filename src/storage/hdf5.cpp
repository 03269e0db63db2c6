// hdf5: the one file that calls libhdf5.
// One mutex around every call, because a serial libhdf5 is not thread-safe.  Files hold no time stamps, so equal content gives equal bytes.
#include "storage/hdf5.hpp"

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <utility>

#include "storage/descriptor.hpp"

namespace lockstep {
namespace {

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
std::string library_words() {
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
hid_t file_type(H5Type type) {
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

const char* name_of(H5Type type) {
  constexpr const char* names[] = {"u8", "i32", "u32", "i64", "f32", "f64", "text"};
  return names[static_cast<int>(type)];
}

Handle text_type(std::size_t bytes) {   // H5T_VARIABLE, or of fixed length
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), bytes), H5Tset_cset(type.id(), H5T_CSET_UTF8);
  if (bytes != H5T_VARIABLE) H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  return type;
}

/// A property list of objects without time stamps.
Handle stampless(hid_t kind) {
  Handle list(H5Pcreate(kind), H5Pclose);
  H5Pset_obj_track_times(list.id(), false);
  return list;
}

Handle access_list() {
  Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(list.id(), false, true);   // file systems of clusters often cannot lock; runs have a lock of their own
  // The newer format keeps attributes above 64 KB (class names); HDF5 1.8 reads it already.
  H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  return list;
}

Handle space_of(std::span<const std::int64_t> shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
}

std::vector<std::int64_t> shape_of(hid_t space) {
  std::vector<hsize_t> extents(static_cast<std::size_t>(std::max(H5Sget_simple_extent_ndims(space), 0)));
  if (!extents.empty()) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

/// Elements of a space; -1 where a file of so many bytes has no room for them.
std::int64_t points_of(hid_t type, hid_t space, std::int64_t file_bytes) {
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
int kind_of(hid_t type) {
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

}  // namespace

struct H5File::State {
  static constexpr std::size_t most_objects = 1 << 14;   // of a listed group; a ResNet-152 has 932 tensors
  std::string path;
  Handle file;
  std::int64_t file_bytes = 0;             // of a file that is read

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const { fail(path, ": ", parts..., " (HDF5: ", library_words(), ")."); }
  void check(bool holds, const auto&... parts) const { if (!holds) fail_here(parts...); }
  void check_written(bool holds, const auto&... parts) const { if (!holds) fail(path, ": ", parts..., " cannot be written: ", library_words(), ". Free space, or write elsewhere."); }

  /// Links to other names and other files are not followed.
  void require_hard_links(const char* kind, const std::string& name) const {
    if (name == "/") return;
    for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
      H5L_info_t link{};
      const std::string part = name.substr(0, end);
      check(H5Lget_info(file.id(), part.c_str(), &link, H5P_DEFAULT) >= 0, "has no ", kind, " ", name);
      require(link.type == H5L_TYPE_HARD, path, ": ", part, " is a link to something else, as lockstep writes none. Make the file again.");
      if (end == std::string::npos) return;
    }
  }
  /// A dataset of a file that is read, all of whose bytes lie in it.
  Handle dataset(const std::string& name) const {
    require_hard_links("dataset", name);
    Handle found(H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), H5Dclose);
    check(static_cast<bool>(found), "has no dataset ", name, "; make it again, or name another file");
    const Handle type(H5Dget_type(found.id()), H5Tclose), space(H5Dget_space(found.id()), H5Sclose), properties(H5Dget_create_plist(found.id()), H5Pclose);
    const H5D_layout_t layout = H5Pget_layout(properties.id());
    require((layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) && H5Pget_external_count(properties.id()) == 0, path, ": the dataset ", name,
            " is chunked, compressed or in another file, as lockstep writes none. Store it contiguously.");
    const std::int64_t points = points_of(type.id(), space.id(), file_bytes);
    require(points >= 0, path, ": the dataset ", name, " is larger than the file. Make the file again.");
    const haddr_t offset = H5Dget_offset(found.id());
    const auto bytes = static_cast<std::uint64_t>(points) * H5Tget_size(type.id());
    require(layout == H5D_COMPACT || bytes == 0 || (offset != HADDR_UNDEF && offset <= static_cast<std::uint64_t>(file_bytes) && bytes <= static_cast<std::uint64_t>(file_bytes) - offset),
            path, ": the dataset ", name, " reaches past the file's end. Make the file again.");
    return found;
  }
  Handle attribute(const std::string& name) const {
    Handle found(H5Aopen(file.id(), name.c_str(), H5P_DEFAULT), H5Aclose);
    check(static_cast<bool>(found), "has no attribute \"", name, "\"; make it again, or name another file");
    return found;
  }
  bool has(const std::string& name) const {   // each part must be asked for: H5Lexists fails when a parent is missing
    if (name == "/") return true;
    for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
      if (H5Lexists(file.id(), name.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
      if (end == std::string::npos) return true;
    }
  }
  void make_parents(const std::string& name) {
    const Handle properties = stampless(H5P_GROUP_CREATE);
    for (std::size_t end = name.find('/', 1); end != std::string::npos; end = name.find('/', end + 1)) {
      const std::string group = name.substr(0, end);
      if (H5Lexists(file.id(), group.c_str(), H5P_DEFAULT) > 0) continue;
      const Handle made(H5Gcreate2(file.id(), group.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), H5Gclose);
      check_written(static_cast<bool>(made), "the group ", group);
    }
  }
  void write(const std::string& name, hid_t type, std::span<const std::int64_t> shape, const void* data) {
    make_parents(name);
    const Handle space = space_of(shape), properties = stampless(H5P_DATASET_CREATE);
    H5Pset_layout(properties.id(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER);
    const Handle made(H5Dcreate2(file.id(), name.c_str(), type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), H5Dclose);
    check_written(static_cast<bool>(made), "the dataset ", name);
    if (data) check_written(H5Dwrite(made.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "the dataset ", name);
  }
  void set(const std::string& name, hid_t type, const Handle& space, const void* data) {
    if (H5Aexists(file.id(), name.c_str()) > 0) check(H5Adelete(file.id(), name.c_str()) >= 0, "the attribute \"", name, "\" cannot be replaced");
    const Handle made(H5Acreate2(file.id(), name.c_str(), type, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const bool is_empty = H5Sget_simple_extent_npoints(space.id()) == 0;
    check_written(made && (is_empty || H5Awrite(made.id(), type, data) >= 0), "the attribute \"", name, "\"");
  }
  H5DatasetInfo info(const std::string& name) const {
    const Handle found = dataset(name), type(H5Dget_type(found.id()), H5Tclose), space(H5Dget_space(found.id()), H5Sclose);
    const int kind = kind_of(type.id());
    require(kind >= 0, path, ": the dataset ", name, " is of a type that lockstep does not use.");
    const haddr_t offset = H5Dget_offset(found.id());
    return {name, static_cast<H5Type>(kind), shape_of(space.id()), offset == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(offset)};
  }
  void list(const std::string& group, std::vector<H5DatasetInfo>& found, std::size_t& objects, int depth) const {
    require_hard_links("group", group);
    const Handle open(H5Gopen2(file.id(), group.c_str(), H5P_DEFAULT), H5Gclose);
    H5G_info_t count{};
    check(open && H5Gget_info(open.id(), &count) >= 0, "has no group ", group);
    require(depth < 32, path, ": the group ", group, " is too deep.");   // a link to a parent would never end, two of them would visit 2^32 groups
    for (hsize_t i = 0; i < count.nlinks; ++i) {
      const auto name_at = [&](char* text, std::size_t bytes) { return H5Lget_name_by_idx(open.id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, text, bytes, H5P_DEFAULT); };
      const ssize_t bytes = name_at(nullptr, 0);
      check(bytes >= 0, "the group ", group, " cannot be read");
      std::string name(static_cast<std::size_t>(bytes), '\0');
      name_at(name.data(), name.size() + 1);
      const std::string full = (group == "/" ? "/" : group + "/") + name;
      require(++objects <= most_objects, path, ": the group ", group, " holds more than ", most_objects, " objects, more than any network has tensors. Make the file again.");
      require_hard_links("object", full);
      const Handle object(H5Oopen(file.id(), full.c_str(), H5P_DEFAULT), H5Oclose);
      check(static_cast<bool>(object), full, " cannot be read");
      if (H5Iget_type(object.id()) == H5I_GROUP) list(full, found, objects, depth + 1);
      if (H5Iget_type(object.id()) == H5I_DATASET) found.push_back(info(full));
    }
  }
};

H5File::H5File(std::unique_ptr<State> state) : state_(std::move(state)) {}
H5File::H5File(H5File&&) noexcept = default;
H5File& H5File::operator=(H5File&& other) noexcept {
  H5File(std::move(other)).state_.swap(state_);
  return *this;
}
H5File::~H5File() {
  if (!state_) return;
  const Locked locked;
  state_.reset();
}

H5File H5File::create(const std::string& path, std::int64_t align_large) {
  const Locked locked;
  require(!std::filesystem::exists(path), path, ": is there already. Remove it, or write elsewhere.");
  const Handle creation = stampless(H5P_FILE_CREATE), access = access_list();
  if (align_large > 0) H5Pset_alignment(access.id(), static_cast<hsize_t>(align_large), static_cast<hsize_t>(align_large));
  auto state = std::make_unique<State>(State{path, Handle(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.id(), access.id()), H5Fclose), std::int64_t{1} << 62});
  state->check(static_cast<bool>(state->file), "cannot be made. Check that its folder exists and can be written");
  return H5File(std::move(state));
}

H5File H5File::open(const std::string& path) {
  const Locked locked;
  const Handle access = access_list();
  auto state = std::make_unique<State>(State{path, Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose), 0});
  state->check(static_cast<bool>(state->file), "cannot be read");
  std::error_code unknown;
  state->file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, unknown));
  return H5File(std::move(state));
}

void H5File::close() {
  const Locked locked;
  if (!state_->file) return;
  const bool written = H5Fflush(state_->file.id(), H5F_SCOPE_LOCAL) >= 0;
  const std::string words = written ? "" : library_words();
  const bool closed = state_->file.close();
  require(written && closed, state_->path, ": cannot be written to its end: ", written ? library_words() : words, ". Free space, or write elsewhere.");
}

void H5File::write(const std::string& path, H5Type type, std::span<const std::int64_t> shape, const void* data) {
  const Locked locked;
  state_->write(path, file_type(type), shape, data);
}

void H5File::read(const std::string& path, H5Type type, void* data, std::size_t elements) const {
  const Locked locked;
  const H5DatasetInfo found = state_->info(path);
  std::size_t size = 1;                    // no more than the file has bytes
  for (const std::int64_t extent : found.shape) size *= static_cast<std::size_t>(extent);
  require(found.type == type && size == elements, state_->path, ": the dataset ", path, " holds ", size, " of ", name_of(found.type), "; it must hold ", elements,
          " of ", name_of(type), ".");
  if (elements > 0)
    state_->check(H5Dread(state_->dataset(path).id(), file_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "the dataset ", path, " cannot be read");
}

bool H5File::has(const std::string& path) const {
  const Locked locked;
  return state_->has(path);
}

H5DatasetInfo H5File::info(const std::string& path) const {
  const Locked locked;
  return state_->info(path);
}

std::vector<H5DatasetInfo> H5File::list(const std::string& group) const {
  const Locked locked;
  std::vector<H5DatasetInfo> found;
  std::size_t objects = 0;
  state_->list(group, found, objects, 0);
  std::ranges::sort(found, {}, &H5DatasetInfo::path);
  return found;
}

void H5File::write_texts(const std::string& path, std::span<const std::string> texts) {
  const Locked locked;
  std::size_t width = 1;
  for (const std::string& text : texts) width = std::max(width, text.size());
  std::vector<char> characters(width * texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) std::ranges::copy(texts[i], &characters[i * width]);
  const std::int64_t count = static_cast<std::int64_t>(texts.size());
  state_->write(path, text_type(width).id(), {&count, 1}, texts.empty() ? nullptr : characters.data());
}

std::vector<std::string> H5File::read_texts(const std::string& path) const {
  const Locked locked;
  const Handle found = state_->dataset(path), type(H5Dget_type(found.id()), H5Tclose), space(H5Dget_space(found.id()), H5Sclose);
  std::vector<std::string> texts;
  const auto read = [&](hid_t memory, void* data) { return H5Dread(found.id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data); };
  state_->check(take_texts(type.id(), space.id(), state_->file_bytes, texts, read), "the dataset ", path, " holds no texts");
  return texts;
}

// Texts in attributes are of variable length: h5py then gives str, where it gives bytes for a fixed length.

void H5File::set_attribute(const std::string& name, const std::string& text) {
  const Locked locked;
  const char* pointer = text.c_str();
  state_->set(name, text_type(H5T_VARIABLE).id(), space_of({}), &pointer);
}

void H5File::set_attribute(const std::string& name, std::int64_t value) {
  const Locked locked;
  state_->set(name, H5T_STD_I64LE, space_of({}), &value);
}

void H5File::set_attribute(const std::string& name, std::span<const double> values) {
  const Locked locked;
  const std::int64_t count = static_cast<std::int64_t>(values.size());
  state_->set(name, H5T_IEEE_F64LE, space_of({&count, 1}), values.data());
}

void H5File::set_attribute(const std::string& name, std::span<const std::string> texts) {
  const Locked locked;
  const std::int64_t count = static_cast<std::int64_t>(texts.size());
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  state_->set(name, text_type(H5T_VARIABLE).id(), space_of({&count, 1}), pointers.data());
}

bool H5File::has_attribute(const std::string& name) const {
  const Locked locked;
  return H5Aexists(state_->file.id(), name.c_str()) > 0;
}

std::vector<std::string> H5File::texts_attribute(const std::string& name) const {
  const Locked locked;
  const Handle found = state_->attribute(name), type(H5Aget_type(found.id()), H5Tclose), space(H5Aget_space(found.id()), H5Sclose);
  std::vector<std::string> texts;
  state_->check(take_texts(type.id(), space.id(), state_->file_bytes, texts, [&](hid_t memory, void* data) { return H5Aread(found.id(), memory, data); }),
                "the attribute \"", name, "\" holds no texts");
  return texts;
}

std::string H5File::text_attribute(const std::string& name) const {
  const std::vector<std::string> texts = texts_attribute(name);
  require(texts.size() == 1, state_->path, ": the attribute \"", name, "\" holds ", texts.size(), " texts; it must hold one.");
  return texts[0];
}

std::vector<double> H5File::numbers_attribute(const std::string& name) const {
  const Locked locked;
  const Handle found = state_->attribute(name), type(H5Aget_type(found.id()), H5Tclose), space(H5Aget_space(found.id()), H5Sclose);
  const H5T_class_t kind = H5Tget_class(type.id());
  const std::int64_t points = points_of(type.id(), space.id(), state_->file_bytes);
  require((kind == H5T_FLOAT || kind == H5T_INTEGER) && points >= 0, state_->path, ": the attribute \"", name, "\" holds no numbers.");
  std::vector<double> values(static_cast<std::size_t>(points));
  if (!values.empty()) state_->check(H5Aread(found.id(), H5T_NATIVE_DOUBLE, values.data()) >= 0, "the attribute \"", name, "\" cannot be read");
  return values;
}

std::int64_t H5File::integer_attribute(const std::string& name) const {
  const Locked locked;
  const Handle found = state_->attribute(name), type(H5Aget_type(found.id()), H5Tclose), space(H5Aget_space(found.id()), H5Sclose);
  require(H5Tget_class(type.id()) == H5T_INTEGER && H5Sget_simple_extent_npoints(space.id()) == 1, state_->path, ": the attribute \"", name, "\" is no single integer.");
  std::int64_t value = 0;
  state_->check(H5Aread(found.id(), H5T_NATIVE_INT64, &value) >= 0, "the attribute \"", name, "\" cannot be read");
  return value;
}

bool is_hdf5(const std::string& path) {
  char signature[4] = {};
  const Descriptor file(path, O_RDONLY);
  return file && read_at(file, signature, sizeof signature, 0) == sizeof signature && std::memcmp(signature, "\x89HDF", sizeof signature) == 0;
}

std::string hdf5_version() {
  const Locked locked;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return text_of(major, ".", minor, ".", release);
}

}  // namespace lockstep
