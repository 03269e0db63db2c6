// loss: cross entropy with label smoothing, its gradient, and the counts that training and evaluation report.
#include "layers/lanes.hpp"
#include "layers/layers.hpp"
#include "layers/standing.hpp"

namespace lockstep {

/// What one image adds to the sums.
struct ImageLoss {
  float loss;
  std::int32_t rank;                     // classes that stand before the label's; 0: top-1 is right
};
/// Softmax of one image is exp(z - largest - log_sum).
struct SoftmaxTerms {
  float largest, log_sum;
};

struct LossArguments {
  std::int64_t images, classes;
  float smoothing;
  const std::int32_t* labels;            // [n]
  const StepState* step;
  ImageLoss* losses;                     // [n]
  SoftmaxTerms* terms;                   // [n]; null in evaluation
  Prediction* predictions;               // [n]; null in training
};

/// A class and its logit; which of two stands first is a reduction in any order.
struct Standing {
  float z;
  std::int64_t k;
};
struct FirstStanding {
  using reducer = FirstStanding;
  using value_type = Standing;
  using result_view_type = Kokkos::View<Standing, ExecutionSpace, Kokkos::MemoryUnmanaged>;
  Standing& first;
  LOCKSTEP_FUNCTION explicit FirstStanding(Standing& to) : first(to) {}
  LOCKSTEP_FUNCTION void join(Standing& a, const Standing& b) const {
    if (b.k >= 0 && (a.k < 0 || stands_before(b.z, b.k, a.z, a.k))) a = b;
  }
  LOCKSTEP_FUNCTION void init(Standing& a) const { a = {0, -1}; }
  LOCKSTEP_FUNCTION Standing& reference() const { return first; }
  LOCKSTEP_FUNCTION result_view_type view() const { return result_view_type(&first); }
  LOCKSTEP_FUNCTION bool references_scalar() const { return true; }
};

/// logits [n, 1, 1, classes], out [n, 1, 1, 1]: (1 - smoothing) * -log p(label) + smoothing * mean of -log p.  A label that is no class: NaN.
template <class T>
void cross_entropy_forward(const Device& device, Tensor logits, Tensor out, LossArguments a) {
  const T* z_all = logits.as<T>();
  T* y = out.as<T>();
  Kokkos::parallel_for("cross_entropy.forward", teams(device, a.images, 32), KOKKOS_LAMBDA(const Teams::member_type& team) {
    const std::int64_t n = team.league_rank(), classes = a.classes;
    const T* z = z_all + n * classes;
    const auto all_classes = Kokkos::TeamThreadRange(team, classes);
    Standing best{};
    Kokkos::parallel_reduce(all_classes, [&](std::int64_t k, Standing& first) { FirstStanding(first).join(first, {static_cast<float>(z[k]), k}); }, FirstStanding(best));
    const float largest = best.z;
    double sum = 0, sum_below = 0;                                       // of exp(z - largest), of largest - z
    Kokkos::parallel_reduce(all_classes, [&](std::int64_t k, double& of_exp, double& of_below) {
      const float below = largest - static_cast<float>(z[k]);
      of_exp += Kokkos::exp(-below);
      of_below += below;
    }, sum, sum_below);
    const std::int64_t label = a.labels[n];
    const bool is_class = label >= 0 && label < classes;
    const float z_label = is_class ? static_cast<float>(z[label]) : Kokkos::Experimental::quiet_NaN_v<float>;
    std::int32_t rank = 0;
    Kokkos::parallel_reduce(all_classes, [&](std::int64_t k, std::int32_t& before) { before += k != label && stands_before(static_cast<float>(z[k]), k, z_label, label); }, rank);
    if (team.team_rank() != 0) return;
    const float log_sum = static_cast<float>(Kokkos::log(sum));
    const float own_loss = log_sum + (largest - z_label);
    float loss = own_loss;
    if (a.smoothing > 0) loss = (1 - a.smoothing) * loss + a.smoothing * (log_sum + static_cast<float>(sum_below / static_cast<double>(classes)));
    a.losses[n] = {loss, is_class ? rank : static_cast<std::int32_t>(classes)};
    if (a.terms) a.terms[n] = {largest, log_sum};
    if (a.predictions) a.predictions[n] = {static_cast<std::int32_t>(best.k), Kokkos::exp(-log_sum), own_loss};
    y[n] = T(loss);
  });
}

/// Adds the images that count, in an order that only their number decides.  nonfinite: null in evaluation.
inline void cross_entropy_sum(const Device& device, LossArguments a, MetricSums* metrics, float* nonfinite) {
  Kokkos::parallel_for("cross_entropy.sum", teams(device, 1, 256), KOKKOS_LAMBDA(const Teams::member_type& team) {
    const std::int64_t count = a.step->local_count < a.images ? a.step->local_count : a.images;
    const std::int64_t fifth = a.classes < 5 ? a.classes : 5;
    double loss = 0;
    std::int64_t top1 = 0, top5 = 0, bad = 0;
    Kokkos::parallel_reduce(Kokkos::TeamThreadRange(team, count), [&](std::int64_t n, double& losses, std::int64_t& first, std::int64_t& first_five, std::int64_t& nonfinites) {
      const ImageLoss image = a.losses[n];
      losses += image.loss;
      first += image.rank < 1;
      first_five += image.rank < fifth;
      nonfinites += !Kokkos::isfinite(image.loss);
    }, loss, top1, top5, bad);
    if (team.team_rank() != 0) return;
    metrics->loss += loss;
    metrics->images += count;
    metrics->top1 += top1;
    metrics->top5 += top5;
    if (nonfinite) *nonfinite += static_cast<float>(bad);
  });
}

/// grad_logits = or += (softmax - target) * loss_scale / global count; 0 for images that do not count.
template <class T>
void cross_entropy_backward(const Device& device, Tensor logits, Tensor grad_logits, LossArguments a, bool adds) {
  const T* z = logits.as<T>();
  T* dz = grad_logits.as<T>();
  Kokkos::parallel_for("cross_entropy.backward", range(device, a.images * a.classes), KOKKOS_LAMBDA(std::int64_t i) {
    const std::int64_t n = quotient(i, a.classes), k = i - n * a.classes;
    float g = 0;
    if (n < a.step->local_count) {
      const SoftmaxTerms t = a.terms[n];
      const float p = Kokkos::exp(static_cast<float>(z[i]) - t.largest - t.log_sum);
      const float target = (k == a.labels[n] ? 1 - a.smoothing : 0.f) + a.smoothing / static_cast<float>(a.classes);
      g = (p - target) * (a.step->loss_scale * a.step->inverse_global_count);
    }
    dz[i] = T(adds ? static_cast<float>(dz[i]) + g : g);
  });
}

namespace {

/// cross_entropy: logits [n, 1, 1, classes] -> the loss of each image [n, 1, 1, 1].  Keeps the logits and two numbers an image.
class CrossEntropy final : public Layer {
 public:
  explicit CrossEntropy(double smoothing) : smoothing_(static_cast<float>(smoothing)) {}
  std::string kind() const override { return "cross_entropy"; }
  Shape output(Shapes in) const override {
    require(in[0].h == 1 && in[0].w == 1, "cross_entropy: logits ", text(in[0]), " must be [n, 1, 1, classes]");
    return {in[0].n, 1, 1, 1};
  }
  Needs needs(DType, Shapes in) const override {
    const auto images = static_cast<std::size_t>(in[0].n);
    return {.keeps_input = true, .saved_bytes = images * sizeof(SoftmaxTerms), .workspace_bytes = images * sizeof(ImageLoss)};
  }
  void forward(const Forward& f) override {
    const bool is_training = f.mode == Mode::training;
    if (f.in[0].shape.n == 0) return;
    const LossArguments a{f.in[0].shape.n, f.in[0].shape.c, smoothing_, f.labels.as<std::int32_t>(), f.step, f.workspace.as<ImageLoss>(),
                          is_training ? f.saved.as<SoftmaxTerms>() : nullptr, f.predictions};
    dispatch(f.in[0].dtype, [&]<class T>(T) { cross_entropy_forward<T>(f.device, f.in[0], f.out, a); });
    cross_entropy_sum(f.device, a, f.metrics, is_training ? f.nonfinite_losses : nullptr);
  }
  void backward_input(const Backward& b) override {
    const GradIn& to = b.grad_in[0];
    if (to.mode == GradMode::skip) return;
    const Shape& logits = b.in[0].shape;
    const LossArguments a{logits.n, logits.c, smoothing_, b.labels.as<std::int32_t>(), b.step, nullptr, b.saved.as<SoftmaxTerms>(), nullptr};
    dispatch(b.in[0].dtype, [&]<class T>(T) { cross_entropy_backward<T>(b.device, b.in[0], to.tensor, a, to.mode == GradMode::add); });
  }

 private:
  float smoothing_;
};

}  // namespace

Value cross_entropy(Value logits, double label_smoothing) {
  const Value in[] = {logits};
  return logits.graph().append<CrossEntropy>(in, "", label_smoothing);
}

}  // namespace lockstep
