// formatted: printf into a string, with a decimal point whatever locale a library of this process has set.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>

#include <locale.h>

namespace lockstep {

__attribute__((format(printf, 1, 2))) inline std::string formatted(const char* format, ...) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const locale_t before = uselocale(plain);                 // of this thread
  std::va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  std::string text(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, format, list)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(list);
  uselocale(before);
  return text;
}

}  // namespace lockstep
