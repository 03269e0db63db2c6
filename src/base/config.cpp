// config: reads TOML and overrides into a Config, and prints a Config as TOML.
// Every walk over the keys goes through for_each_key, so a key's one line in config.hpp is all that there is to know about it.
#include "base/config.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <type_traits>

#include <toml++/toml.h>

namespace lockstep {
namespace {

constexpr std::size_t most_dots = 1000;                   // of a line
constexpr std::uintmax_t largest_input_bytes = 4 << 20;   // a shard given by mistake is not worth parsing

template <class T> struct is_list : std::false_type {};
template <class T> struct is_list<std::vector<T>> : std::true_type {};
template <class T> struct element { using type = T; };
template <class T> struct element<std::vector<T>> { using type = T; };

std::string join(const std::string& section, const std::string& name) { return section.empty() ? name : section + "." + name; }

/// Calls visit(section, name, value, rule, meaning) for every key; the section of a top-level key is "".
template <class Visit>
void for_each_key(Config& config, Visit&& visit) {
  std::string section;
  auto key = [&](const char* name, auto& value, const Rule& rule, const char* meaning) { visit(section, std::string(name), value, rule, meaning); };
  config.keys(key);
  config.sections([&](const char* name, auto& part) {
    section = name;
    part.keys(key);
  });
}

struct KeyName {
  std::string section, name;
};
const std::vector<KeyName>& all_keys() {
  static const std::vector<KeyName> names = [] {
    std::vector<KeyName> found;
    Config config;
    for_each_key(config, [&](const std::string& section, const std::string& name, auto&, const Rule&, const char*) { found.push_back({section, name}); });
    return found;
  }();
  return names;
}
const std::vector<std::string>& all_sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    Config().sections([&](const char* name, auto&) { found.push_back(name); });
    return found;
  }();
  return names;
}
std::vector<std::string> names_in(const std::string& section) {
  std::vector<std::string> names;
  for (const KeyName& key : all_keys())
    if (key.section == section) names.push_back(key.name);
  return names;
}
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}
bool is_section(const std::string& name) { return std::ranges::count(all_sections(), name) > 0; }
bool is_key(const std::string& section, const std::string& name) {
  return std::ranges::any_of(all_keys(), [&](const KeyName& key) { return key.section == section && key.name == name; });
}

std::string literal(bool value) { return value ? "true" : "false"; }
std::string literal(std::int64_t value) { return std::to_string(value); }
std::string literal(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};   // shortest that reads back equal; a whole number is legal for a float key
}
std::string literal(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') (text += '\\') += c;
    else if (c == '\n') text += "\\n";
    else if (c == '\t') text += "\\t";
    else if (byte < 0x20 || byte == 0x7f) (text += "\\u00") += {"0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
    else text += c;
  }
  return text + '"';
}
template <class T>
std::string literal(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + literal(value);
  return text + "]";
}

std::string value_of(const Config& config, const KeyName& key) {
  std::string text;
  Config copy = config;
  for_each_key(copy, [&](const std::string& section, const std::string& name, auto& value, const Rule&, const char*) {
    if (section == key.section && name == key.name) text = literal(value);
  });
  return text;
}

/// A value as the user wrote it, cut short.
std::string shown(const toml::node& node) {
  if (const auto* value = node.as_string()) return literal(value->get());
  if (const auto* value = node.as_integer()) return literal(value->get());
  if (const auto* value = node.as_floating_point()) return literal(value->get());
  if (const auto* value = node.as_boolean()) return literal(value->get());
  if (const auto* value = node.as_array()) {
    std::string text;
    for (const toml::node& item : *value) {
      if (text.size() > 60) { text += ", ..."; break; }
      text += (text.empty() ? "" : ", ") + shown(item);
    }
    return "[" + text + "]";
  }
  return node.is_table() ? "{...}" : "a date or time";
}

std::string bound(double value) { return std::abs(value) < 1e16 && value == std::floor(value) ? literal(static_cast<std::int64_t>(value)) : literal(value); }

/// What a key of type T may hold: `"full", "window" or "none"`, `a number from 0 to 1`, `a list of integers, each from 0 to 9`.
template <class T>
std::string legal(const Rule& rule) {
  using Element = typename element<T>::type;
  constexpr bool list = is_list<T>::value;
  if constexpr (std::is_same_v<Element, bool>) return "true or false";
  if constexpr (std::is_same_v<Element, std::string>) {
    if (rule.words.empty()) return list ? "a list of texts in quotes" : "a text in quotes";
    std::string text = list ? "a list of " : "";
    for (std::size_t i = 0; i < rule.words.size(); ++i) text += (i == 0 ? "" : i + 1 == rule.words.size() ? " or " : ", ") + literal(rule.words[i]);
    return text;
  }
  std::string text = std::is_same_v<Element, double> ? (list ? "a list of numbers" : "a number") : (list ? "a list of integers" : "an integer");
  return text + (list ? ", each from " : " from ") + bound(rule.low) + " to " + bound(rule.high);
}

/// Puts a node into a key.  Returns what is wrong with it ("is a text"), or nothing.
std::string take(const toml::node& node, const Rule&, bool& target) {
  if (const auto* value = node.as_boolean()) return target = value->get(), "";
  return "is not";
}
std::string take(const toml::node& node, const Rule& rule, std::int64_t& target) {
  if (node.is_floating_point()) return "has a fraction or an exponent";
  const auto* value = node.as_integer();
  if (!value) return "is no integer";
  const auto number = static_cast<long double>(value->get());   // exact for every int64
  if (number < rule.low || number > rule.high) return "is out of range";
  return target = value->get(), "";
}
std::string take(const toml::node& node, const Rule& rule, double& target) {
  const auto number = node.value<double>();
  if (!node.is_number() || !number) return "is no number";
  if (!std::isfinite(*number)) return "is not finite";
  if (*number < rule.low || *number > rule.high) return "is out of range";
  return target = *number + 0.0, "";     // -0 becomes 0, whose text reads back equal
}
std::string take(const toml::node& node, const Rule& rule, std::string& target) {
  const auto* value = node.as_string();
  if (!value) return "is no text";
  if (!rule.words.empty() && std::ranges::count(rule.words, value->get()) == 0) return "is unknown";
  if (value->get().find('\0') != std::string::npos) return "holds a NUL character";
  return target = value->get(), "";
}
template <class T>
std::string take(const toml::node& node, const Rule& rule, std::vector<T>& target) {
  const auto* array = node.as_array();
  if (!array) return "is no list";
  std::vector<T> values(array->size());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const std::string wrong = take((*array)[i], rule, values[i]); !wrong.empty()) return "has " + shown((*array)[i]) + ", which " + wrong;
  return target = std::move(values), "";
}

/// Puts a node into the key, or throws.  `where` opens the message.
template <class T>
void assign(const std::string& where, const KeyName& key, const toml::node& node, const Rule& rule, T& target) {
  const std::string wrong = take(node, rule, target);
  if (wrong.empty()) return;
  const std::string word = node.is_string() ? node.as_string()->get() : "";
  fail(where, ": ", join(key.section, key.name), " = ", shown(node), wrong == "is not" ? " is neither true nor false" : " " + wrong, "; it must be ", legal<T>(rule),
       wrong == "is not" ? ", without quotes." : ".", did_you_mean(word, rule.words), " Default: ", value_of(Config(), key), ".");
}

/// Where else a key of this name is, or which is nearest.
std::string advice(const std::string& section, const std::string& name) {
  if (!section.empty() && is_key("", name)) return " It belongs to no section: write it above the first [section].";
  for (const KeyName& key : all_keys())
    if (key.name == name) return " Did you mean [" + key.section + "] " + name + "?";
  if (const std::string near = did_you_mean(name, names_in(section)); !near.empty()) return near;
  std::vector<std::string> elsewhere;
  for (const KeyName& key : all_keys()) elsewhere.push_back(key.name);
  if (const std::string near = nearest(name, elsewhere); !near.empty())
    for (const KeyName& key : all_keys())
      if (key.name == near) return key.section.empty() ? " Did you mean \"" + near + "\", above the first [section]?" : " Did you mean [" + key.section + "] " + near + "?";
  return section.empty() ? " Keys belong to sections: section.key=value, or a line below [section]." : " It has: " + listed(names_in(section)) + ".";
}

[[noreturn]] void fail_unknown_key(const std::string& where, const std::string& section, const std::string& name) {
  fail(where, ": ", section.empty() ? "there is" : "[" + section + "] has", " no key \"", name, "\"", section.empty() ? " outside a section." : ".",
       advice(section, name), " `lockstep keys` explains all.");
}
[[noreturn]] void fail_unknown_section(const std::string& where, const std::string& name) {
  const std::string near = nearest(name, all_sections());
  fail(where, ": there is no section [", name, "].",
       near.empty() ? " Sections: " + listed(all_sections()) + "." : " Did you mean [" + near + "]?", " `lockstep keys` explains all.");
}

std::string one_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\r', ' ');
  return line;
}

/// Each dot of a.a.a.a = 1 is a table in a table, and the library walks and frees them by calling itself: its limit is on brackets alone.
toml::table parse_toml(const std::string& text) {
  std::size_t dots = 0;
  for (const char c : text)
    if (dots = c == '\n' ? 0 : dots + (c == '.'); dots > most_dots) fail("a line has more than ", most_dots, " dots, as no key and no list of numbers has");
  return toml::parse(text);
}

toml::table parse(const std::string& text, const std::string& origin) {
  try {
    return parse_toml(text);
  } catch (const Error& error) {
    fail(origin, ": ", error.what(), ". Name a TOML file, such as inputs/quickstart.toml.");
  } catch (const toml::parse_error& error) {
    fail(origin, ":", error.source().begin.line, ": this is no TOML: ", one_line(error.description()), ". Lines read `key = value` under a [section]; texts stand in quotes.");
  }
}

void fill(Config& config, const toml::table& root, const std::string& origin) {
  const auto place = [&](const toml::source_region& source) { return text_of(origin, ":", source.begin.line); };
  for (const auto& [key, node] : root) {
    const std::string name(key.str()), where = place(key.source());
    if (is_section(name)) {
      require(node.is_table(), where, ": ", name, " is a section: write [", name, "] on one line and its keys below it.");
      for (const auto& [inner, value] : *node.as_table())
        if (!is_key(name, std::string(inner.str()))) fail_unknown_key(place(inner.source()), name, std::string(inner.str()));
    } else if (!is_key("", name)) {
      if (node.is_table() || node.is_array_of_tables()) fail_unknown_section(where, name);
      fail_unknown_key(where, "", name);
    }
  }
  for_each_key(config, [&](const std::string& section, const std::string& name, auto& value, const Rule& rule, const char*) {
    const toml::table* table = section.empty() ? &root : root[section].as_table();
    if (const toml::node* node = table ? table->get(name) : nullptr) assign(place(node->source()), {section, name}, *node, rule, value);
  });
}

/// The text of an override as a node of a one-key table.
template <class T>
toml::table override_value(const std::string& text, const std::string& where) {
  std::string_view trimmed(text);
  while (!trimmed.empty() && trimmed.front() == ' ') trimmed.remove_prefix(1);
  // A text key takes its value as it stands (run.name=5, data.path=a b), unless it is in quotes.
  const bool is_quoted = !trimmed.empty() && (trimmed.front() == '"' || trimmed.front() == '\'');
  if (!std::is_same_v<T, std::string> || is_quoted) try {
      toml::table table = parse_toml("value = " + text);
      if (table.size() == 1) return table;
    } catch (const toml::parse_error&) {   // no TOML value: a bare word
    } catch (const Error& error) {
      fail(where, ": ", error.what(), ". Name a TOML file instead.");
    }
  return parse("value = " + literal(text), where);
}

void apply_override(Config& config, const std::string& text) {
  const std::string where = "argument \"" + one_line(text) + "\"";
  const std::size_t equals = text.find('=');
  require(equals != std::string::npos && equals > 0, where, ": this is no override. Write section.key=value, such as run.epochs=10.");
  const std::string full_name = text.substr(0, equals), value = text.substr(equals + 1);
  const std::size_t dot = full_name.find('.');
  const std::string section = dot == std::string::npos ? "" : full_name.substr(0, dot), name = dot == std::string::npos ? full_name : full_name.substr(dot + 1);
  if (!section.empty() && !is_section(section)) fail_unknown_section(where, section);
  if (!is_key(section, name)) {
    for (const KeyName& key : all_keys())   // a section's name left out is the usual slip
      if (section.empty() && key.name == name) fail(where, ": there is no key \"", name, "\" outside a section. Did you mean ", join(key.section, name), "=", value, "?");
    fail_unknown_key(where, section, name);
  }
  for_each_key(config, [&]<class T>(const std::string& in, const std::string& key, T& target, const Rule& rule, const char*) {
    if (in != section || key != name) return;
    const toml::table table = override_value<T>(value, where);
    assign(where, {section, name}, *table.get("value"), rule, target);
  });
}

/// What the keys can tell about each other; facts that need data or ranks are the trainer's.
void validate(const Config& c, const std::string& origin) {
  const auto check = [&](bool holds, const auto&... parts) { require(holds, origin, ": ", parts...); };
  check(c.data.mean.empty() == c.data.std.empty(), "data.mean and data.std belong together: give both, or neither to take the shards'.");
  for (const auto* list : {&c.data.mean, &c.data.std})
    check(list->empty() || list->size() == 1 || list->size() == 3, list == &c.data.mean ? "data.mean" : "data.std", " = ", literal(*list), " has ", list->size(),
          " entries; it must have 3 (red, green, blue) or 1 for all.");
  check(c.data.global_batch == 0 || c.data.rank_batch == 0, "data.global_batch = ", c.data.global_batch, " and data.rank_batch = ", c.data.rank_batch,
        " are both set. Keep one of them (0 unsets the other): global_batch = rank_batch x ranks.");
  check(c.augment.scale_min <= c.augment.scale_max, "augment.scale_min = ", literal(c.augment.scale_min), " is above augment.scale_max = ", literal(c.augment.scale_max),
        ". Lower the first or raise the second.");
  check(c.augment.eval != "center_crop" || c.augment.eval_short == 0 || c.augment.eval_short >= c.augment.size, "augment.eval_short = ", c.augment.eval_short,
        " is less than augment.size = ", c.augment.size, ", so that no center_crop fits. Raise it, or set augment.eval = \"resize\".");
  check(!c.optimizer.nesterov || c.optimizer.kind != "sgd" || c.optimizer.momentum > 0, "optimizer.nesterov needs momentum. Set optimizer.momentum, 0.9 for example, or nesterov = false.");
  check(c.optimizer.loss_scale == 0 || c.precision == "fp16", "optimizer.loss_scale = ", literal(c.optimizer.loss_scale), " is for precision = \"fp16\", and it is \"", c.precision,
        "\". Leave it 0.");
  check(c.optimizer.rate_parameters.size() == c.optimizer.rate_factors.size(), "optimizer.rate_parameters has ", counted(std::ssize(c.optimizer.rate_parameters), "pattern"),
        " and optimizer.rate_factors ", counted(std::ssize(c.optimizer.rate_factors), "factor"), ". Give each pattern its factor.");
  const auto rises = [](const auto& list) { return std::ranges::adjacent_find(list, std::greater_equal<>()) == list.end(); };
  check(rises(c.schedule.milestones_epochs), "schedule.milestones_epochs = ", literal(c.schedule.milestones_epochs), " does not rise. Sort it, each value once.");
  check(rises(c.schedule.milestones_steps), "schedule.milestones_steps = ", literal(c.schedule.milestones_steps), " does not rise. Sort it, each value once.");
  check(c.schedule.milestones_epochs.empty() || c.schedule.milestones_steps.empty(), "schedule.milestones_epochs and schedule.milestones_steps are both set. Keep one of them.");
  check(c.schedule.kind != "multistep" || !c.schedule.milestones_epochs.empty() || !c.schedule.milestones_steps.empty(),
        "schedule.kind = \"multistep\" needs schedule.milestones_epochs or schedule.milestones_steps, such as milestones_epochs = [30, 60, 80].");
  const std::filesystem::path name(c.run.name);
  check(!name.is_absolute() && std::ranges::count(name, "..") == 0 && std::ranges::count(name, ".") == 0, "run.name = ", literal(c.run.name),
        " must be a folder's name below run.outputs, without a leading /, . or ... Set run.outputs to write elsewhere.");
}

std::string file_text(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  require(!fs::is_directory(path, ignored), path, ": this is a folder. Name an input file, such as inputs/quickstart.toml.");
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int code = errno;
    std::vector<std::string> others;
    const fs::path folder = fs::path(path).parent_path();
    for (fs::directory_iterator it(folder.empty() ? fs::path(".") : folder, ignored), end; !ignored && it != end; it.increment(ignored))
      if (it->path().extension() == ".toml") others.push_back(it->path().filename().string());
    const std::string near = nearest(fs::path(path).filename().string(), others);
    fail(path, ": cannot be read: ", std::strerror(code), ".", near.empty() ? "" : " Did you mean " + (folder / near).string() + "?", " Name an input file, such as inputs/quickstart.toml.");
  }
  const auto bytes = fs::file_size(path, ignored);
  require(ignored || bytes <= largest_input_bytes, path, ": holds ", bytes, " bytes, more than an input file does. Name a TOML file, such as inputs/quickstart.toml.");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  require(!text.starts_with("\x89HDF"), path, ": is a checkpoint or a shard, not an input file. Name its run's INPUT.toml, and eval.checkpoint=PATH to choose a checkpoint.");
  return text;
}

}  // namespace

Config read_config(const std::string& path, std::span<const std::string> overrides) {
  Config config;
  if (!path.empty()) fill(config, parse(file_text(path), path), path);
  for (const std::string& text : overrides) apply_override(config, text);
  if (config.run.name.empty()) config.run.name = std::filesystem::path(path).stem().string();
  validate(config, path.empty() ? "arguments" : path);
  return config;
}

Config parse_config(const std::string& text, const std::string& origin) {
  Config config;
  fill(config, parse(text, origin), origin);
  validate(config, origin);
  return config;
}

std::string to_toml(const Config& config) {
  std::string text, current;
  Config copy = config;
  for_each_key(copy, [&](const std::string& section, const std::string& name, auto& value, const Rule&, const char*) {
    if (section != current) text += "\n[" + (current = section) + "]\n";
    text += name + " = " + literal(value) + "\n";
  });
  return text;
}

std::string describe_keys() {
  std::string text, current;
  Config config;
  for_each_key(config, [&]<class T>(const std::string& section, const std::string& name, T& value, const Rule& rule, const char* meaning) {
    if (section != current) text += "\n", current = section;
    std::string line = join(section, name) + " = " + literal(value);
    line.resize(std::max<std::size_t>(line.size(), 38), ' ');
    text += line + "  " + meaning + "  (" + legal<T>(rule) + ")\n";
  });
  return text;
}

std::vector<Difference> differences(const Config& before, const Config& after) {
  std::vector<Difference> found;
  for (const KeyName& key : all_keys())
    if (std::string old_value = value_of(before, key), new_value = value_of(after, key); old_value != new_value)
      found.push_back({join(key.section, key.name), std::move(old_value), std::move(new_value)});
  return found;
}

bool changes_result(const std::string& key) {
  // A new key changes the result until it is listed here: refusing a resume is the safe side.
  static const std::vector<std::string> free_sections = {"checkpoint", "eval", "bench", "comm", "backends", "graph", "device"};
  static const std::vector<std::string> free_keys = {
      "data.path", "data.rank_batch", "data.eval_batch", "data.readers", "data.slots", "data.cache", "data.stage", "data.stage_gib",
      "run.name", "run.outputs", "run.resume", "run.epochs", "run.max_steps", "run.ranks", "run.log_every", "run.evaluate_every_epochs",
      "run.max_skipped", "run.profile_from", "run.stall_seconds", "run.start_seconds"};
  const std::size_t dot = key.find('.');
  const std::string section = dot == std::string::npos ? "" : key.substr(0, dot), name = dot == std::string::npos ? key : key.substr(dot + 1);
  if (!is_key(section, name)) return true;
  return std::ranges::count(free_sections, section) == 0 && std::ranges::count(free_keys, key) == 0;
}

}  // namespace lockstep
