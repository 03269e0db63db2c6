// train_errors: how far single steps of ours and of PyTorch's f32 lie from PyTorch's f64, tensor by tensor, and the statement about both.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace lockstep::test {

/// Distance (L2) of one tensor in one step from the truth, and the length that it is measured by.
struct Distance {
  double ours = 0, scale = 0;
  std::vector<double> torch;             // of each f32 step that PyTorch made; may be none in this step
  double rounding = 0;                   // what rounding the tensor to f32 a few times makes of it
};

/// Collects a quantity's tensors over the steps.  A relu or max pool whose inputs are equal but for rounding turns one way or the other, for
/// PyTorch in one step and tensor and for us in another, and what lies before it then errs a thousand times as much as usual.  So a tensor's
/// middle step is held against PyTorch's middle step of that tensor, and its worst step against the worst of all of PyTorch's tensors and
/// steps: a fault of ours would show in every step.  Of steps that PyTorch did not make in f32 too, a tenth may be such ties.
class Errors {
 public:
  void add(const std::string& quantity, const std::string& tensor, const Distance& d) {
    series_[quantity][tensor].add(d);
    Distance& all = now_[quantity];
    all.ours += d.ours * d.ours, all.scale += d.scale * d.scale, all.rounding += d.rounding * d.rounding;
    all.torch.resize(d.torch.size());
    for (std::size_t i = 0; i < d.torch.size(); ++i) all.torch[i] += d.torch[i] * d.torch[i];
  }
  /// A step's quantities as one vector each.
  void end_step() {
    for (auto& [quantity, d] : now_) {
      d.ours = std::sqrt(d.ours), d.scale = std::sqrt(d.scale), d.rounding = std::sqrt(d.rounding);
      for (double& torch : d.torch) torch = std::sqrt(torch);
      series_[quantity]["whole"].add(d);
    }
    now_.clear();
  }

  /// Within `times` PyTorch's error, plus rounding.  Prints what was measured.
  void expect_within(double times) const {
    for (const auto& [quantity, tensors] : series_) {
      double nearest = 0, our_worst = 0, torch_worst = 0, rounding = 0;   // nearest: share of what a tensor is allowed
      std::string nearest_tensor, worst_tensor;
      for (const auto& [tensor, s] : tensors) {
        const double share = middle(s.ours) / (times * middle(s.torch) + s.rounding);
        if (share >= nearest) nearest = share, nearest_tensor = tensor;
        if (const double worst = std::max(most(s.beside_torch), usual_most(s.alone)); worst >= our_worst) our_worst = worst, worst_tensor = tensor;
        torch_worst = std::max(torch_worst, most(s.torch)), rounding = std::max(rounding, s.rounding);
      }
      EXPECT_LT(nearest, 1) << quantity << " of " << nearest_tensor << ": the middle step's error, as a share of " << times << " times PyTorch's";
      EXPECT_LT(our_worst, times * torch_worst + rounding) << quantity << " of " << worst_tensor << ": the worst step; PyTorch's worst is " << torch_worst;
      const Series& whole = tensors.at("whole");
      std::printf("%-12s middle step: ours %.1e, PyTorch's f32 %.1e, a tensor's at most %.0f %% of its limit (%s); worst step: ours %.1e (%s), PyTorch's %.1e\n",
                  quantity.c_str(), middle(whole.ours), middle(whole.torch), 100 * nearest, nearest_tensor.c_str(), our_worst, worst_tensor.c_str(), torch_worst);
    }
  }

 private:
  struct Series {
    std::vector<double> ours, torch;     // relative, by step
    std::vector<double> beside_torch, alone;   // ours, of the steps that PyTorch made in f32 too, and of the others
    double rounding = 0;
    void add(const Distance& d) {
      const double scale = std::max(d.scale, 1e-30);
      ours.push_back(d.ours / scale);
      (d.torch.empty() ? alone : beside_torch).push_back(d.ours / scale);
      rounding = std::max(rounding, d.rounding / scale);
      if (!d.torch.empty()) torch.push_back(*std::max_element(d.torch.begin(), d.torch.end()) / scale);
    }
  };
  static double middle(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }
  static double most(const std::vector<double>& values) { return values.empty() ? 0 : *std::max_element(values.begin(), values.end()); }
  /// The largest but for a tenth of the values.
  static double usual_most(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() - 1 - values.size() / 10];
  }

  std::map<std::string, std::map<std::string, Series>> series_;
  std::map<std::string, Distance> now_;
};

}  // namespace lockstep::test
