// pack: neighbouring elements that a kernel reads and writes at once.
#pragma once

namespace lockstep {

template <class T, int count>
struct alignas(count * sizeof(T)) Pack {
  T of[count];
};

}  // namespace lockstep
