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

/// Collects a quantity's tensors over the steps.  A relu whose input lies at 0 but for rounding turns one way or the other, for PyTorch in one
/// step and for us in another; so a step of ours is held against the worst of PyTorch's steps, and the middle one against the middle one.
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
      double largest_share = 0;          // of what is allowed
      std::string nearest;
      for (const auto& [tensor, s] : tensors) {
        const double allowed_middle = times * middle(s.torch) + s.rounding, allowed_most = times * most(s.torch) + s.rounding;
        EXPECT_LT(middle(s.ours), allowed_middle) << quantity << " of " << tensor << ", the middle step; PyTorch " << middle(s.torch);
        EXPECT_LT(most(s.ours), allowed_most) << quantity << " of " << tensor << ", the worst step; PyTorch " << most(s.torch);
        const double share = std::max(middle(s.ours) / allowed_middle, most(s.ours) / allowed_most);
        if (share >= largest_share) largest_share = share, nearest = tensor;
      }
      const Series& whole = tensors.at("whole");
      std::printf("%-12s ours %.1e, worst %.1e; PyTorch's f32 %.1e, worst %.1e; tensor nearest to its limit: %.0f %% (%s)\n", quantity.c_str(), middle(whole.ours),
                  most(whole.ours), middle(whole.torch), most(whole.torch), 100 * largest_share, nearest.c_str());
    }
  }

 private:
  struct Series {
    std::vector<double> ours, torch;     // relative, by step
    double rounding = 0;
    void add(const Distance& d) {
      const double scale = std::max(d.scale, 1e-30);
      ours.push_back(d.ours / scale);
      rounding = std::max(rounding, d.rounding / scale);
      if (!d.torch.empty()) torch.push_back(*std::max_element(d.torch.begin(), d.torch.end()) / scale);
    }
  };
  static double middle(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }
  static double most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

  std::map<std::string, std::map<std::string, Series>> series_;
  std::map<std::string, Distance> now_;
};

}  // namespace lockstep::test
