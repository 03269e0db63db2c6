// train_oracle: starts tests/train/torch_oracle.py and reads the arrays that it writes, while it works on the next ones.
#pragma once
#include <fcntl.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "support/python.hpp"
#include "support/scratch.hpp"
#include "tensor/device.hpp"

namespace lockstep::test {

/// What is trained or evaluated, on both sides.
struct TorchCase {
  std::string name;                      // of the test
  ModelConfig model;
  OptimizerConfig optimizer = {};
  double label_smoothing = 0;
  std::int64_t batch = 2, size = 32, steps = 50;
  std::int64_t f32_every = 1;            // steps between two for which PyTorch's own error is measured; 0: none
  std::string precision = "fp32";        // on both sides: PyTorch's autocast

  double loss_scale() const { return precision == "fp16" ? 1024 : 1; }
};

inline void PrintTo(const TorchCase& c, std::ostream* out) { *out << c.name; }

/// task: "logits" or "steps".
inline std::string request_of(const TorchCase& c, const std::string& task, bool is_teacher) {
  const auto word = [](bool yes) { return yes ? "true" : "false"; };
  return text_of("{\"task\": \"", task, "\", \"seed\": 5, \"name\": \"", c.model.name, "\", \"classes\": ", c.model.classes, ", \"stem\": \"", c.model.stem,
                 "\", \"batch\": ", c.batch, ", \"size\": ", c.size, ", \"steps\": ", c.steps, ", \"f32_every\": ", c.f32_every, ", \"is_teacher\": ",
                 word(is_teacher), ", \"kind\": \"", c.optimizer.kind, "\", \"rate\": ", c.optimizer.learning_rate, ", \"momentum\": ", c.optimizer.momentum,
                 ", \"weight_decay\": ", c.optimizer.weight_decay, ", \"decay_all\": ", word(c.optimizer.decay_norm_and_bias), ", \"smoothing\": ",
                 c.label_smoothing, ", \"precision\": \"", c.precision, "\", \"loss_scale\": ", c.loss_scale(), ", \"device\": \"", is_host_build() ? "cpu" : "cuda", "\"}");
}

class TorchOracle {
 public:
  explicit TorchOracle(const std::string& request) {
    const std::string script = (std::filesystem::path(__FILE__).parent_path().parent_path() / "train" / "torch_oracle.py").string();
    // Freed blocks of any size stay with the process: fresh pages cost more than the arithmetic on them.
    pipe_ = popen(("MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 OPENBLAS_NUM_THREADS=1 " + python_program() + " -B '" + script + "' '" + request + "'").c_str(), "r");
    if (!pipe_) throw std::runtime_error("cannot start " + script);
    fcntl(fileno(pipe_), F_SETPIPE_SZ, 1 << 20);
  }
  ~TorchOracle() { pclose(pipe_); }
  TorchOracle(const TorchOracle&) = delete;
  TorchOracle& operator=(const TorchOracle&) = delete;

  template <class T>
  void read(std::span<T> values) {
    if (std::fread(values.data(), sizeof(T), values.size(), pipe_) != values.size())
      throw std::runtime_error("torch_oracle.py ended early; what it says stands above");
  }
  template <class T>
  std::vector<T> read(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    read(std::span<T>(values));
    return values;
  }
  template <class T>
  T read_one() { return read<T>(1)[0]; }
  /// Whether all that it wrote has been read.
  bool is_at_end() { return std::fgetc(pipe_) == EOF; }

 private:
  std::FILE* pipe_ = nullptr;
};

}  // namespace lockstep::test
