#include "storage/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "storage/aside_file.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::json;                   // of a file that is read: the ordered one takes n^2 steps for n names
using OrderedJson = nlohmann::ordered_json;
constexpr std::uint64_t largest_header = 100'000'000;   // the reference's limit
constexpr std::size_t length_bytes = 8;
constexpr const char* again = " Download it again.";

std::uint64_t header_length(std::span<const char> bytes) {
  std::uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length;
}

/// Hears the names in a JSON text, and nothing else.  (The library's parser with a callback takes n^2 steps for n names.)
struct NameListener final : nlohmann::json_sax<Json> {
  std::vector<std::string> names;                // of the outermost object, in the text's order
  std::string twice;                             // a name that comes twice in one object
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open.emplace_back(), true; }
  bool end_object() override { return open.pop_back(), true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
  bool key(string_t& name) override {
    if (!open.back().insert(name).second) twice = shown(name);
    if (open.size() == 1) names.push_back(name);
    return true;
  }

 private:
  std::vector<std::set<std::string>> open;       // names of the objects around
};

struct Header {
  Json json;
  std::vector<std::string> names;                // in the file's order
};

/// The header's JSON; a name that comes twice in one object is an error, where the library would keep the last.
Header header_of(const WeightFile& file, std::string_view text) {
  NameListener heard;
  Header header{.json = Json::parse(text, nullptr, false), .names = {}};
  require(Json::sax_parse(text, &heard) && !header.json.is_discarded() && header.json.is_object(), file.path, ": the safetensors header is no JSON object: the file is damaged.", again);
  require(heard.twice.empty(), file.path, ": \"", heard.twice, "\" comes twice in the safetensors header. Write the file again with one of them.");
  header.names = std::move(heard.names);
  return header;
}

/// A list of whole numbers from 0 to 2^62.
std::vector<std::int64_t> numbers_in(const WeightFile& file, const std::string& tensor, const Json& entry, const char* key) {
  std::vector<std::int64_t> numbers;
  const auto found = entry.find(key);
  const auto is_number = [](const Json& n) { return n.is_number_unsigned() && n.get<std::uint64_t>() <= std::uint64_t{1} << 62; };
  require(found != entry.end() && found->is_array() && std::all_of(found->begin(), found->end(), is_number), file.path, ": ", tensor, " has no ", key,
          " of whole numbers in the safetensors header: the file is damaged.", again);
  for (const Json& n : *found) numbers.push_back(static_cast<std::int64_t>(n.get<std::uint64_t>()));
  return numbers;
}

ElementType type_in(const WeightFile& file, const std::string& tensor, const Json& entry) {
  const auto found = entry.find("dtype");
  require(found != entry.end() && found->is_string(), file.path, ": ", tensor, " has no dtype in the safetensors header: the file is damaged.", again);
  const auto name = found->get<std::string>();
  for (const ElementName& known : element_names)
    if (known.safetensors == name) return known.type;
  fail(file.path, ": ", tensor, " is of dtype ", shown(name), ", which lockstep does not know. Write it as F32 first.");
}

}  // namespace

bool is_safetensors(std::span<const char> bytes) {
  return bytes.size() > length_bytes && bytes[length_bytes] == '{' && header_length(bytes) <= largest_header;
}

void read_safetensors(WeightFile& file) {
  file.form = "safetensors";
  const std::span<const char> bytes = file.bytes;
  require(bytes.size() > length_bytes, file.path, " has ", bytes.size(), " bytes: its safetensors header is cut off.", again);
  const std::uint64_t length = header_length(bytes);
  require(length <= largest_header && length <= bytes.size() - length_bytes, file.path, ": its safetensors header is cut off: it has ", length, " bytes, the file ",
          bytes.size() - length_bytes, " behind the length.", again);
  const Header header = header_of(file, {bytes.data() + length_bytes, static_cast<std::size_t>(length)});
  const std::span<const char> data = bytes.subspan(length_bytes + static_cast<std::size_t>(length));

  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const std::string& key : header.names) {
    const Json& entry = header.json.at(key);
    const std::string name = shown(key);
    require(entry.is_object(), file.path, ": ", name, " is no object in the safetensors header: the file is damaged.", again);
    if (name == "__metadata__") {
      for (const auto& [about, text] : entry.items())
        if (text.is_string()) file.notes.emplace_back(shown(about), shown(text.get<std::string>()));
      continue;
    }
    NamedArray array{.name = name, .type = type_in(file, name, entry), .shape = numbers_in(file, name, entry, "shape"), .strides = {}};
    const std::vector<std::int64_t> range = numbers_in(file, name, entry, "data_offsets");
    const std::int64_t count = element_count(array.shape), size = name_of(array.type).bytes;
    require(range.size() == 2 && range[0] <= range[1] && range[1] <= std::ssize(data), file.path, ": ", name, " ends behind the file's end, which has ", data.size(),
            " bytes of elements: the file is cut off.", again);
    require(count >= 0 && range[1] - range[0] == count * size && (range[1] - range[0]) / size == count, file.path, ": ", name, " of ", shape_text(array.shape), " ",
            name_of(array.type).name, " has ", range[1] - range[0], " bytes, which do not fit each other: the file is damaged.", again);
    array.strides = contiguous(array.shape);
    array.data = data.data() + range[0];
    ranges.emplace_back(range[0], range[1]);
    file.arrays.push_back(std::move(array));
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (const auto& [begin, after] : ranges) {
    require(begin == end, file.path, ": its tensors overlap or leave a gap at byte ", std::min(begin, end), " of the elements: the file is damaged.", again);
    end = after;
  }
  require(end == std::ssize(data), file.path, " has ", data.size(), " bytes of elements, its header speaks of ", end, ": the file is cut off or damaged.", again);
}

void write_safetensors(const std::string& path, std::vector<NamedArray> arrays, const std::map<std::string, std::string>& metadata) {
  std::stable_sort(arrays.begin(), arrays.end(), [](const NamedArray& a, const NamedArray& b) { return name_of(a.type).bytes > name_of(b.type).bytes; });
  OrderedJson header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::string_view> parts(2);
  std::int64_t offset = 0;
  for (const NamedArray& array : arrays) {
    const std::int64_t bytes = element_count(array.shape) * name_of(array.type).bytes;
    header[array.name] = {{"dtype", std::string(name_of(array.type).safetensors)}, {"shape", array.shape}, {"data_offsets", {offset, offset + bytes}}};
    parts.emplace_back(array.data, static_cast<std::size_t>(bytes));
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');   // the elements begin at a multiple of 8
  const std::uint64_t length = text.size();
  parts[0] = {reinterpret_cast<const char*>(&length), sizeof length};
  parts[1] = text;
  write_whole_file(path, parts);
}

}  // namespace lockstep
