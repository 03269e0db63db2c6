#include "layers/batch_norm_pair.hpp"

#include "layers/batch_norm_sums.hpp"

namespace lockstep {

/// Rows that are asked for at once: two arrays each, and a GPU's threads have no registers for more.
inline constexpr int pairs_together = runs_on_host ? 1 : 2;

/// y = relu(norm of a + norm of b).
template <class T>
struct BatchNormPairApply {
  using Element = T;
  const T *a, *b;
  T* y;
  std::uint8_t* bits;                    // for Mask::bits; null: not wanted
  BatchNormVectors of_a, of_b;
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const BlockVectors<width> va(of_a, channel), vb(of_b, channel);
    for_rows<pairs_together>(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      const std::int64_t at = row * c + channel, ahead = at + few_rows * c;
      prefetch(a + ahead), prefetch(b + ahead), prefetch_for_writing(y + ahead);
      Raw<width, T> as[rows], bs[rows];
      for (int i = 0; i < rows; ++i) as[i] = load_raw_last<width>(a + at + i * c), bs[i] = load_raw_last<width>(b + at + i * c);
      for (int i = 0; i < rows; ++i) {
        const Lanes<width> z = (as[i].lanes() - va.mean) * va.scale + va.bias + ((bs[i].lanes() - vb.mean) * vb.scale + vb.bias);
        if constexpr (!runs_on_host && width > 1)
          if (bits) bits[(at + i * c) / width] = positive_bits(z);
        store(y + at + i * c, positive_part(z));
      }
    });
  }
};

/// Gradients of both inputs; a null grad is not wanted, null means are of constants.
template <class T, Mask mask>
struct BatchNormPairGradApply {
  using Element = T;
  const T *a, *b, *grad_out;
  const void* mask_source;
  T *grad_a, *grad_b;
  bool adds_a, adds_b;
  BatchNormVectors of_a, of_b;
  const float *means_a, *means_b;        // [2, c]
  std::int64_t c;

  template <int width>
  LOCKSTEP_FUNCTION void run(std::int64_t begin, std::int64_t end, std::int64_t, std::int64_t channel) const {
    const GradMap<width> map_a(of_a, means_a, c, channel), map_b(of_b, means_b, c, channel);
    for_rows<pairs_together>(begin, end, [&]<int rows>(std::int64_t row, std::integral_constant<int, rows>) {
      const std::int64_t at = row * c + channel, ahead = at + few_rows * c;
      prefetch(a + ahead), prefetch(b + ahead), prefetch(grad_out + ahead);
      Raw<width, T> as[rows], bs[rows], gs[rows];
      MaskPacket<mask, width, T> masks[rows];
      for (int i = 0; i < rows; ++i) {
        as[i] = load_raw_last<width>(a + at + i * c), bs[i] = load_raw_last<width>(b + at + i * c), gs[i] = load_raw_last<width>(grad_out + at + i * c);
        masks[i].read(mask_source, at + i * c);
      }
      for (int i = 0; i < rows; ++i) {
        const Lanes<width> in_a = as[i].lanes() - map_a.v.mean, in_b = bs[i].lanes() - map_b.v.mean, g = masks[i](gs[i].lanes(), in_a, map_a.v);
        const Lanes<width> da = map_a(in_a, g), db = map_b(in_b, g);
        if (grad_a) store(grad_a + at + i * c, adds_a ? load<width>(grad_a + at + i * c) + da : da);
        if (grad_b) store(grad_b + at + i * c, adds_b ? load<width>(grad_b + at + i * c) + db : db);
      }
    });
  }
};

namespace {

/// saved: the states of a and b, then bits.  workspace: a's totals, b's, partial sums; in evaluation states behind the totals.
struct Layout {
  std::int64_t c;
  std::int64_t totals() const { return BatchNormState::room(2 * c + count_parts); }   // of one, f32 elements
  float* totals(Tensor workspace, std::size_t which) const { return workspace.as<float>() + static_cast<std::int64_t>(which) * totals(); }
  float* partial(Tensor workspace) const { return totals(workspace, 2) + 2 * BatchNormState::bytes(c) / sizeof(float); }
  BatchNormState state(void* states, std::size_t which) const { return {c, static_cast<char*>(states) + which * BatchNormState::bytes(c)}; }
  std::uint8_t* bits(Tensor saved) const { return saved.as<std::uint8_t>() + 2 * BatchNormState::bytes(c); }
  Tensor both_totals(Tensor workspace) const { return {workspace.data, vector_shape(2 * totals()), DType::f32}; }
};

}  // namespace

Needs BatchNormPair::needs(DType dtype, Shapes in) const {
  const Layout layout{channels_};
  const bool has_bits = has_mask_bits(dtype, channels_);
  const std::size_t states = 2 * BatchNormState::bytes(channels_);
  return {.keeps_input = true, .keeps_output = !has_bits, .saved_bytes = states + (has_bits ? mask_bits_bytes(in[0], dtype) : 0),
          .workspace_bytes = static_cast<std::size_t>(2 * layout.totals() + batch_norm_partials(in[0], dtype, 3)) * sizeof(float) + states, .grad_over_input = true, .grad_over_grad = true};
}

void BatchNormPair::forward(const Forward& f) {
  const bool is_training = f.mode == Mode::training;
  const Layout layout{channels_};
  void* const states = is_training ? f.saved.data : layout.totals(f.workspace, 2);
  const BatchNormState state[2] = {layout.state(states, 0), layout.state(states, 1)};
  for (std::size_t i = 0; i < 2; ++i) batch_norm_statistics(f, i, options_[i], uses_running_[i], state[i], layout.totals(f.workspace, i), layout.partial(f.workspace));
  if (f.exchange && is_training && !(uses_running_[0] && uses_running_[1])) {
    f.exchange->sum(f.device, layout.both_totals(f.workspace));
    for (std::size_t i = 0; i < 2; ++i)
      if (!uses_running_[i]) batch_norm_finish(f, i, options_[i], state[i], layout.totals(f.workspace, i));
  }
  const auto vectors = [&](std::size_t i) { return batch_norm_vectors(state[i], f.weights, i); };
  std::uint8_t* const bits = is_training && has_mask_bits(f.in[0].dtype, channels_) ? layout.bits(f.saved) : nullptr;
  dispatch(f.in[0].dtype, [&]<class T>(T) {
    for_each_block("batch_norm_pair.apply", f.device, cut_rows(f.out.shape, few_rows),
                   BatchNormPairApply<T>{f.in[0].as<T>(), f.in[1].as<T>(), f.out.as<T>(), bits, vectors(0), vectors(1), channels_}, Walk::backwards);
  });
}

void BatchNormPair::backward_input(const Backward& b) {
  const Layout layout{channels_};
  const BatchNormState state[2] = {layout.state(b.saved.data, 0), layout.state(b.saved.data, 1)};
  const auto vectors = [&](std::size_t i) { return batch_norm_vectors(state[i], b.weights, i); };
  const bool has_bits = has_mask_bits(b.in[0].dtype, channels_);
  const void* const mask_source = has_bits ? static_cast<const void*>(layout.bits(b.saved)) : b.out.data;
  const auto end = [&](std::size_t i) { return batch_norm_backward_end(b, i, state[i], layout.totals(b.workspace, i)); };
  const auto passes_on = [&](std::size_t i) { return b.grad_in[i].mode != GradMode::skip; };
  const auto needs_means = [&](std::size_t i) { return passes_on(i) && !uses_running_[i]; };
  batch_norm_pair_grad_sums(b.device, {.a = b.in[0], .b = b.in[1], .grad_out = b.grad_out, .mask = has_bits ? Mask::bits : Mask::output, .mask_source = mask_source,
                                       .of_a = vectors(0), .of_b = vectors(1)},
                            layout.partial(b.workspace), {end(0), end(1)});
  if (b.exchange && (needs_means(0) || needs_means(1))) {
    b.exchange->sum(b.device, layout.both_totals(b.workspace));
    for (std::size_t i = 0; i < 2; ++i) batch_norm_average(b.device, end(i));
  }
  if (!passes_on(0) && !passes_on(1)) return;
  const auto grad = [&](std::size_t i) { return passes_on(i) ? b.grad_in[i].tensor : Tensor{}; };
  const auto adds = [&](std::size_t i) { return b.grad_in[i].mode == GradMode::add; };
  const auto means = [&](std::size_t i) { return needs_means(i) ? layout.totals(b.workspace, i) : nullptr; };
  dispatch(b.in[0].dtype, [&]<class T>(T) {
    const auto run = [&]<Mask mask>() {
      for_each_block("batch_norm_pair.grad_apply", b.device, cut_rows(b.in[0].shape, few_rows),
                     BatchNormPairGradApply<T, mask>{b.in[0].as<T>(), b.in[1].as<T>(), b.grad_out.as<T>(), mask_source, grad(0).template as<T>(), grad(1).template as<T>(),
                                                     adds(0), adds(1), vectors(0), vectors(1), means(0), means(1), channels_}, Walk::backwards);
    };
    has_bits ? run.template operator()<Mask::bits>() : run.template operator()<Mask::output>();
  });
}

}  // namespace lockstep
