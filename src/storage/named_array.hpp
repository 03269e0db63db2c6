// named_array: a tensor of a weight file, and a file of them.  What the readers of other frameworks' files give and their writers take.
// A reader has checked that every element lies in the file's bytes: who takes an array need not look again.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace lockstep {

enum class ElementType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// How an element type is called in messages, in safetensors and by PyTorch's storages.
struct ElementName {
  ElementType type;
  std::int64_t bytes;
  std::string_view name, safetensors, storage;
};
inline constexpr std::array<ElementName, 10> element_names = {{
    {ElementType::f64, 8, "float64", "F64", "DoubleStorage"},
    {ElementType::f32, 4, "float32", "F32", "FloatStorage"},
    {ElementType::f16, 2, "float16", "F16", "HalfStorage"},
    {ElementType::bf16, 2, "bfloat16", "BF16", "BFloat16Storage"},
    {ElementType::i64, 8, "int64", "I64", "LongStorage"},
    {ElementType::i32, 4, "int32", "I32", "IntStorage"},
    {ElementType::i16, 2, "int16", "I16", "ShortStorage"},
    {ElementType::i8, 1, "int8", "I8", "CharStorage"},
    {ElementType::u8, 1, "uint8", "U8", "ByteStorage"},
    {ElementType::boolean, 1, "bool", "BOOL", "BoolStorage"},
}};
inline const ElementName& name_of(ElementType type) { return element_names[static_cast<std::size_t>(type)]; }

/// `data`: the first element, of any alignment, in the WeightFile's bytes or whatever a writer is given.
struct NamedArray {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape, strides;   // in elements; strides of a contiguous array by contiguous()
  const char* data = nullptr;
};

/// What a file of weights holds.  To be moved, not copied: the arrays point into the bytes.
struct WeightFile {
  std::string path, form;                // form: "safetensors", "PyTorch's zip", ...
  std::vector<char> bytes;
  std::vector<NamedArray> arrays;        // in the file's order
  std::vector<std::string> beside;       // names of what is no tensor, or lies beside the state dict
  std::vector<std::pair<std::string, std::string>> notes;   // texts that the file holds about itself: key, text; as shown()
};

/// Product of the extents; -1 where one is negative or the product passes 2^62.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
std::vector<std::int64_t> contiguous(const std::vector<std::int64_t>& shape);
/// "[64, 3, 7, 7]".
std::string shape_text(const std::vector<std::int64_t>& shape);
/// A file's own text in names and messages: short, on one line.
std::string shown(std::string_view text);
/// The elements in row-major order as f32, from f64, f32, f16 or bf16.  Error for other types.
std::vector<float> floats_of(const NamedArray& array);
/// The bytes of a regular file.  Error where it cannot be read or is larger than any file of weights.
std::vector<char> bytes_of_file(const std::string& path);

}  // namespace lockstep
