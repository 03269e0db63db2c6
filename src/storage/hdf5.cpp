// hdf5: the one file that calls libhdf5, with hdf5_objects.hpp.
// One mutex around every call, because a serial libhdf5 is not thread-safe.  Files hold no time stamps, so equal content gives equal bytes.
#include "storage/hdf5.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "storage/descriptor.hpp"
#include "storage/hdf5_objects.hpp"

namespace lockstep {

using namespace hdf5_objects;

struct H5File::State {
  static constexpr std::size_t most_objects = 1 << 14;   // of a listed group; a ResNet-152 has 932 tensors
  std::string path;
  SealedBytes bytes;                       // that the library reads in the place of the file; outlive it
  Handle file;
  std::int64_t file_bytes = 0;             // of a file that is read
  mutable std::string hard_parent = {};    // a group that was reached by hard links alone; what makes others does not run beside us

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const { fail(path, ": ", parts..., " (HDF5: ", library_words(), ")."); }
  void check(bool holds, const auto&... parts) const { if (!holds) fail_here(parts...); }
  void check_written(bool holds, const auto&... parts) const { if (!holds) fail(path, ": ", parts..., " cannot be written: ", library_words(), ". Free space, or write elsewhere."); }

  /// Links to other names and other files are not followed: each part of the name is looked at, its parent's parts once for all that follow below it.
  void require_hard_links(const char* kind, const std::string& name) const {
    if (name == "/") return;
    const std::size_t last = name.rfind('/');
    const bool is_parent_known = last > 0 && name.compare(0, last, hard_parent) == 0;
    for (std::size_t end = is_parent_known ? std::string::npos : name.find('/', 1);; end = name.find('/', end + 1)) {
      H5L_info_t link{};
      const std::string part = name.substr(0, end);
      check(H5Lget_info(file.id(), part.c_str(), &link, H5P_DEFAULT) >= 0, "has no ", kind, " ", name, "; make it again, or name another file");
      require_hard(link.type, part);
      if (end == std::string::npos) break;
    }
    if (last != std::string::npos) hard_parent.assign(name, 0, last);
  }
  void require_hard(H5L_type_t type, const std::string& name) const {
    require(type == H5L_TYPE_HARD, path, ": ", name, " is a link to something else, as lockstep writes none. Make the file again.");
  }
  /// A dataset of a file that is read, all of whose bytes lie in it.
  Handle dataset(const std::string& name) const {
    require_hard_links("dataset", name);
    Handle found(H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), H5Dclose);
    check(static_cast<bool>(found), "has no dataset ", name, "; make it again, or name another file");
    require_contained(found, name);
    return found;
  }
  void require_contained(const Handle& found, const std::string& name) const {
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
  H5DatasetInfo info(const Handle& found, const std::string& name) const {
    const Handle type(H5Dget_type(found.id()), H5Tclose), space(H5Dget_space(found.id()), H5Sclose);
    const int kind = kind_of(type.id());
    require(kind >= 0, path, ": the dataset ", name, " is of a type that lockstep does not use.");
    const haddr_t offset = H5Dget_offset(found.id());
    return {name, static_cast<H5Type>(kind), shape_of(space.id()), offset == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(offset)};
  }
  /// What is linked in a group, in one pass: the library's search by number makes a table of all names for each of them.  One more than the limit at most.
  static std::vector<std::pair<std::string, H5L_type_t>> links_in(const Handle& group, bool& is_read) {
    std::vector<std::pair<std::string, H5L_type_t>> links;
    const auto take = [](hid_t, const char* name, const H5L_info_t* link, void* out) -> herr_t {
      auto& taken = *static_cast<std::vector<std::pair<std::string, H5L_type_t>>*>(out);
      taken.emplace_back(name, link->type);
      return taken.size() > most_objects ? 1 : 0;
    };
    is_read = H5Literate(group.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, take, &links) >= 0;
    return links;
  }
  /// All below a group that is open and whose own links are hard.
  void list(const Handle& group, const std::string& name, std::vector<H5DatasetInfo>& found, std::size_t& objects, int depth) const {
    require(depth < 32, path, ": the group ", name, " is too deep: it may lead to itself. Make the file again.");
    bool is_read = false;
    const auto links = links_in(group, is_read);
    check(is_read, "the group ", name, " cannot be read");
    for (const auto& [link, type] : links) {
      const std::string full = (name == "/" ? "/" : name + "/") + link;
      require(++objects <= most_objects, path, ": the group ", name, " holds more than ", most_objects, " objects, more than any network has tensors. Make the file again.");
      require_hard(type, full);
      const Handle object(H5Oopen(group.id(), link.c_str(), H5P_DEFAULT), H5Oclose);
      check(static_cast<bool>(object), full, " cannot be read");
      if (H5Iget_type(object.id()) == H5I_GROUP) list(object, full, found, objects, depth + 1);
      if (H5Iget_type(object.id()) == H5I_DATASET) require_contained(object, full), found.push_back(info(object, full));
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
  auto state = std::make_unique<State>(State{path, SealedBytes(), Handle(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.id(), access.id()), H5Fclose), std::int64_t{1} << 62});
  state->check(static_cast<bool>(state->file), "cannot be made. Check that its folder exists and can be written");
  return H5File(std::move(state));
}

H5File H5File::open(const std::string& path) {
  const Locked locked;
  const Handle access = access_list();
  auto state = std::make_unique<State>(State{path, SealedBytes(), Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose), 0});
  state->check(static_cast<bool>(state->file), "cannot be read");
  std::error_code unknown;
  state->file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, unknown));
  return H5File(std::move(state));
}

H5File H5File::open(const std::string& path, SealedBytes bytes) {
  if (!bytes) return open(path);
  const Locked locked;
  const std::span<char> image = bytes.bytes();
  auto state = std::make_unique<State>(State{path, std::move(bytes), open_in_memory(image), std::ssize(image)});
  state->check(static_cast<bool>(state->file), "cannot be read");
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
  const Handle found = state_->dataset(path);
  const H5DatasetInfo info = state_->info(found, path);
  std::size_t size = 1;                    // no more than the file has bytes
  for (const std::int64_t extent : info.shape) size *= static_cast<std::size_t>(extent);
  require(info.type == type && size == elements, state_->path, ": the dataset ", path, " holds ", size, " of ", name_of(info.type), "; it must hold ", elements,
          " of ", name_of(type), ".");
  if (elements > 0)
    state_->check(H5Dread(found.id(), file_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "the dataset ", path, " cannot be read");
}

bool H5File::has(const std::string& path) const {
  const Locked locked;
  return state_->has(path);
}

H5DatasetInfo H5File::info(const std::string& path) const {
  const Locked locked;
  return state_->info(state_->dataset(path), path);
}

std::vector<H5DatasetInfo> H5File::list(const std::string& group) const {
  const Locked locked;
  std::vector<H5DatasetInfo> found;
  std::size_t objects = 0;
  state_->require_hard_links("group", group);
  const Handle open(H5Gopen2(state_->file.id(), group.c_str(), H5P_DEFAULT), H5Gclose);
  state_->check(static_cast<bool>(open), "has no group ", group);
  state_->list(open, group, found, objects, 0);
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
