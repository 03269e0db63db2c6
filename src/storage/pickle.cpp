#include "storage/pickle.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

namespace lockstep {
namespace {

using Ref = std::uint32_t;
constexpr std::size_t most_values = 1 << 22;   // a ResNet-152 with its optimizer's state needs about 100,000

/// Globals that a state dict may name.  Storages follow, one an element type.
enum Allowed : std::int64_t { ordered_dict, size, set, rebuild_tensor, rebuild_tensor_2, rebuild_parameter, first_storage };
constexpr std::string_view allowed_names[] = {"collections.OrderedDict", "torch.Size", "set", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2",
                                              "torch._utils._rebuild_parameter"};

std::int64_t allowed(std::string_view module, std::string_view name) {
  const bool is_builtin = module == "builtins" || module == "__builtin__";
  const std::string whole = is_builtin ? std::string(name == "frozenset" ? "set" : name) : std::string(module) + "." + std::string(name);
  for (std::size_t i = 0; i < std::size(allowed_names); ++i)
    if (whole == allowed_names[i]) return static_cast<std::int64_t>(i);
  for (const ElementName& element : element_names)
    if (module == "torch" && name == element.storage) return first_storage + static_cast<std::int64_t>(element.type);
  return -1;
}

class Unpickler {
 public:
  Unpickler(const std::string& path, std::span<const char> bytes, std::size_t begin) : path_(path), bytes_(bytes), at_(begin), begin_(begin) {}

  Pickle read() {
    while (step(static_cast<std::uint8_t>(take(1)[0]))) require_modest(0);
    pickle_.root = pop();
    pickle_.end = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void damaged(const std::string& what) const { fail(path_, ": the pickle is damaged at byte ", at_, ": ", what, ". Download or save it again."); }

  /// What it makes stays small whatever it says: lists may be taken from the memo and copied many times.
  void require_modest(std::size_t more) const {
    require(pickle_.values.size() + stack_.size() + marks_.size() + memo_.size() + added_ + more < most_values, path_, " has more than ", most_values,
            " values in its pickle: it is no state dict. In Python save one: torch.save(model.state_dict(), \"state_dict.pth\")");
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) damaged("it is cut off");
    const std::string_view taken(bytes_.data() + at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::string_view rest(bytes_.data() + at_, bytes_.size() - at_);
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) damaged("it is cut off");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  // ---- the stack, the marks in it, the memo ----

  void push(PickleValue value) {
    pickle_.values.push_back(std::move(value));
    stack_.push_back(static_cast<Ref>(pickle_.values.size() - 1));
  }
  void push_integer(std::int64_t value) { push({.kind = PickleValue::number, .integer = value}); }
  void push_text(std::string_view text) { push({.kind = PickleValue::text_value, .text = text}); }
  Ref top() const {
    if (stack_.size() <= floor()) damaged("its stack is empty");
    return stack_.back();
  }
  Ref pop() {
    const Ref value = top();
    stack_.pop_back();
    return value;
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) damaged("it has no mark");
    std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  PickleValue& value(Ref ref) { return pickle_.values[ref]; }
  PickleValue& top_of(PickleValue::Kind kind, const char* what) {
    PickleValue& v = value(top());
    if (v.kind != kind) damaged(text_of("something is put into what is no ", what));
    return v;
  }
  void extend(const std::vector<Ref>& items, PickleValue::Kind kind, const char* what) {
    added_ += items.size();
    PickleValue& to = top_of(kind, what);
    if (kind == PickleValue::dict && items.size() % 2 != 0) damaged("a key without a value");
    to.items.insert(to.items.end(), items.begin(), items.end());
  }
  void push_sequence(std::vector<Ref> items) {
    added_ += items.size();
    push({.kind = PickleValue::sequence, .items = std::move(items)});
  }
  void push_last(std::size_t count) {
    std::vector<Ref> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push_sequence(std::move(items));
  }
  void get(std::uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) damaged("it asks for a value that it has not kept");
    stack_.push_back(found->second);
  }
  void put(std::uint32_t key) { memo_[key] = top(); }

  // ---- names, and what they make ----

  /// Whether what was just named is made without arguments, as pickled objects are: EMPTY_TUPLE NEWOBJ, with puts between.
  bool is_object_made() const {
    std::size_t at = at_;
    for (const std::uint8_t wanted : {0x29, 0x81}) {
      while (at < bytes_.size() && (bytes_[at] == 'q' || bytes_[at] == 'r' || static_cast<std::uint8_t>(bytes_[at]) == 0x94)) at += bytes_[at] == 'q' ? 2 : bytes_[at] == 'r' ? 5 : 1;
      if (at >= bytes_.size() || static_cast<std::uint8_t>(bytes_[at]) != wanted) return false;
      ++at;
    }
    return true;
  }

  void push_global(std::string_view module, std::string_view name, bool is_first) {
    const std::int64_t known = allowed(module, name);
    if (known >= 0) {
      push({.kind = PickleValue::name, .integer = known});
      return;
    }
    const std::string whole = shown(module) + "." + shown(name);
    // Before 1.6 PyTorch wrote ('module', class, source) where a module's class is named.
    const bool is_module_class = !stack_.empty() && value(stack_.back()).text == "module";
    const bool is_torchs = module.starts_with("torch.nn") || module.starts_with("torchvision.");
    require(!is_module_class && !(is_object_made() && (is_first || is_torchs)), path_, " is a pickled nn.Module (", whole, "), not a state dict, and lockstep runs no code of a file. In Python: "
            "import torch; torch.save(torch.load(\"", path_, "\", weights_only=False).state_dict(), \"state_dict.pth\")");
    fail(path_, " asks for ", whole, ", which is neither a tensor nor a plain container; lockstep runs no code of a file. If you trust it, in Python: "
         "import torch; torch.save(torch.load(\"", path_, "\")[\"state_dict\"], \"state_dict.pth\")");
  }

  PickleValue& argument(Ref arguments, std::size_t i, PickleValue::Kind kind) {
    const PickleValue& list = value(arguments);
    if (i >= list.items.size() || value(list.items[i]).kind != kind) damaged("a tensor is made of something else than a storage, an offset, sizes and strides");
    return value(list.items[i]);
  }

  /// OrderedDict() or OrderedDict([[key, value], ...]).
  void make_dict(Ref arguments) {
    PickleValue made{.kind = PickleValue::dict};
    if (!value(arguments).items.empty())
      for (const Ref pair : argument(arguments, 0, PickleValue::sequence).items) {
        const PickleValue& p = value(pair);
        if (p.kind != PickleValue::sequence || p.items.size() != 2) damaged("an OrderedDict is made of something else than pairs");
        made.items.insert(made.items.end(), p.items.begin(), p.items.end());
        require_modest(made.items.size());
      }
    added_ += made.items.size();
    push(std::move(made));
  }

  void make(Ref callable, Ref arguments) {
    if (value(callable).kind != PickleValue::name || value(arguments).kind != PickleValue::sequence) damaged("it calls what is no name");
    const std::int64_t what = value(callable).integer;
    switch (what) {
      case ordered_dict: return make_dict(arguments);
      case size: case set: {
        if (value(arguments).items.empty()) return push_sequence({});
        argument(arguments, 0, PickleValue::sequence);
        stack_.push_back(value(arguments).items[0]);
        return;
      }
      case rebuild_tensor: case rebuild_tensor_2: {
        argument(arguments, 0, PickleValue::storage);
        const std::int64_t offset = argument(arguments, 1, PickleValue::number).integer;
        argument(arguments, 2, PickleValue::sequence), argument(arguments, 3, PickleValue::sequence);
        const std::vector<Ref>& items = value(arguments).items;
        return push({.kind = PickleValue::tensor, .integer = offset, .items = {items[0], items[2], items[3]}});
      }
      case rebuild_parameter: {
        argument(arguments, 0, PickleValue::tensor);
        stack_.push_back(value(arguments).items[0]);
        return;
      }
      default: damaged("it calls a storage");
    }
  }

  /// ('storage', type, key, device, elements): what a tensor's elements lie in.
  void push_storage(Ref id) {
    const PickleValue& v = value(id);
    const auto is_kind = [&](std::size_t i, PickleValue::Kind kind) { return i < v.items.size() && value(v.items[i]).kind == kind; };
    const bool is_storage = v.kind == PickleValue::sequence && is_kind(0, PickleValue::text_value) && value(v.items[0]).text == "storage" && is_kind(1, PickleValue::name) &&
                            value(v.items[1]).integer >= first_storage && is_kind(2, PickleValue::text_value) && is_kind(4, PickleValue::number) && value(v.items[4]).integer >= 0;
    if (!is_storage || (v.items.size() > 5 && value(v.items[5]).kind != PickleValue::none)) damaged("it refers to something else than a storage");
    push({.kind = PickleValue::storage, .integer = value(v.items[4]).integer, .text = value(v.items[2]).text,
          .type = static_cast<ElementType>(value(v.items[1]).integer - first_storage)});
  }

  void push_long(std::uint64_t bytes) {
    const std::string_view digits = take(bytes);
    std::int64_t value = !digits.empty() && digits.back() < 0 ? -1 : 0;   // two's complement, little endian; longer ones are no sizes
    if (bytes <= 8) std::memcpy(&value, digits.data(), digits.size());
    else value = -1;
    push_integer(value);
  }

  /// One opcode.  False at the end.
  bool step(std::uint8_t op) {
    switch (op) {
      case 0x80: number<std::uint8_t>(); return true;                                // PROTO
      case 0x95: number<std::uint64_t>(); return true;                               // FRAME
      case '.': return false;                                                        // STOP
      case '(': marks_.push_back(stack_.size()); return true;                        // MARK
      case '0': pop(); return true;                                                  // POP
      case '1': pop_to_mark(); return true;                                          // POP_MARK
      case '2': stack_.push_back(top()); return true;                                // DUP
      case 'N': push({}); return true;
      case 0x88: case 0x89: push_integer(op == 0x88); return true;                   // NEWTRUE, NEWFALSE
      case 'J': push_integer(number<std::int32_t>()); return true;                   // BININT
      case 'K': push_integer(number<std::uint8_t>()); return true;
      case 'M': push_integer(number<std::uint16_t>()); return true;
      case 0x8a: push_long(number<std::uint8_t>()); return true;                     // LONG1
      case 0x8b: push_long(number<std::uint32_t>()); return true;                    // LONG4
      case 'G': take(8), push_integer(-1); return true;                              // BINFLOAT: no size is one
      case 'X': case 'T': case 'B': push_text(take(number<std::uint32_t>())); return true;      // BINUNICODE, BINSTRING, BINBYTES
      case 0x8c: case 'U': case 'C': push_text(take(number<std::uint8_t>())); return true;      // the short ones
      case 0x8d: case 0x8e: push_text(take(number<std::uint64_t>())); return true;              // BINUNICODE8, BINBYTES8
      case ']': case ')': case 0x8f: push_sequence({}); return true;                 // EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET
      case 'l': case 't': case 0x91: push_sequence(pop_to_mark()); return true;      // LIST, TUPLE, FROZENSET
      case 0x85: case 0x86: case 0x87: push_last(op - 0x84u); return true;           // TUPLE1, TUPLE2, TUPLE3
      case '}': push({.kind = PickleValue::dict}); return true;
      case 'd': { auto items = pop_to_mark(); push({.kind = PickleValue::dict}); extend(items, PickleValue::dict, "dict"); return true; }
      case 'a': { const Ref item = pop(); extend({item}, PickleValue::sequence, "list"); return true; }
      case 'e': case 0x90: { const auto items = pop_to_mark(); extend(items, PickleValue::sequence, "list"); return true; }   // APPENDS, ADDITEMS
      case 's': { const Ref item = pop(), key = pop(); extend({key, item}, PickleValue::dict, "dict"); return true; }
      case 'u': { const auto items = pop_to_mark(); extend(items, PickleValue::dict, "dict"); return true; }
      case 'q': put(number<std::uint8_t>()); return true;                            // BINPUT
      case 'r': put(number<std::uint32_t>()); return true;
      case 0x94: put(static_cast<std::uint32_t>(memo_.size())); return true;         // MEMOIZE
      case 'h': get(number<std::uint8_t>()); return true;                            // BINGET
      case 'j': get(number<std::uint32_t>()); return true;
      case 'c': { const bool is_first = at_ <= begin_ + 3; const std::string_view module = line(), name = line(); push_global(module, name, is_first); return true; }   // GLOBAL
      case 0x93: { const Ref name = pop(), module = pop(); push_global(value(module).text, value(name).text, pickle_.values.size() <= 2); return true; }   // STACK_GLOBAL
      case 'R': case 0x81: { const Ref arguments = pop(), callable = pop(); make(callable, arguments); return true; }   // REDUCE, NEWOBJ
      case 'b': pop(), top_of(PickleValue::dict, "dict"); return true;               // BUILD: a state dict's _metadata, which says nothing of its tensors
      case 'Q': push_storage(pop()); return true;                                    // BINPERSID
    }
    fail(path_, ": its pickle has opcode ", static_cast<int>(op), " at byte ", at_ - 1, ", which torch.save never writes; nothing of it was run. Save a state dict with torch.save.");
  }

  const std::string& path_;
  std::span<const char> bytes_;
  std::size_t at_, begin_, added_ = 0;
  Pickle pickle_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Ref> memo_;
};

// ---- writing ----

void put_number(std::string& out, std::int64_t value) {
  out += "\x8a\x08";                                                                 // LONG1 of 8 bytes
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  const auto bytes = static_cast<std::uint32_t>(text.size());
  out += 'X';
  out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  out += text;
}
void put_tuple(std::string& out, const std::vector<std::int64_t>& numbers) {
  out += '(';
  for (const std::int64_t n : numbers) put_number(out, n);
  out += 't';
}

}  // namespace

Pickle read_pickle(const std::string& path, std::span<const char> bytes, std::size_t begin) { return Unpickler(path, bytes, begin).read(); }

std::string state_dict_pickle(const std::vector<NamedArray>& arrays) {
  const std::string empty_dict = "ccollections\nOrderedDict\n)R";
  std::string out = "\x80\x02" + empty_dict + "(";
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const NamedArray& array = arrays[i];
    put_text(out, array.name);
    out += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put_text(out, "storage");
    out += text_of("ctorch\n", name_of(array.type).storage, "\n");
    put_text(out, std::to_string(i)), put_text(out, "cpu"), put_number(out, element_count(array.shape));
    out += "tQ";
    put_number(out, 0), put_tuple(out, array.shape), put_tuple(out, contiguous(array.shape));
    out += "\x89" + empty_dict + "tR";                                               // requires_grad = False, no hooks
  }
  return out + "u.";
}

}  // namespace lockstep
