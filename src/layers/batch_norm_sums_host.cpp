#include "layers/batch_norm_sums.hpp"

namespace lockstep {

/// end(channel, ...) of the partial sums of all chunks, taken in order.
template <class End>
void batch_norm_add_chunks(const Device& device, const RowCut& cut, const float* partial, const End& end) {
  const std::int64_t c = cut.c, chunks = cut.chunks();
  Kokkos::parallel_for("batch_norm.add_chunks", range(device, c), KOKKOS_LAMBDA(std::int64_t i) {
    double first = 0, second = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) first += partial[chunk * 2 * c + i], second += partial[chunk * 2 * c + c + i];
    end(i, first, second);
  });
}

namespace {

template <class T, Mask mask>
void grad_sum(const Device& device, const GradSumArguments& a, const RowCut& cut, float* partial) {
  for_each_block("batch_norm.grad_sum", device, cut,
                 BatchNormGradSum<T, mask>{a.x.as<T>(), a.grad_out.as<T>(), a.mask_source, a.residual.as<T>(), a.adds_residual, a.vectors, partial, cut.c});
}

}  // namespace

std::int64_t batch_norm_partials(const Shape& x, DType) { return chunk_bound(x) * 2 * x.c; }

void batch_norm_sums(const Device& device, Tensor x, const float* center, float* partial, const ForwardEnd& end) {
  const RowCut cut = cut_statistics(x.shape);
  dispatch(x.dtype, [&]<class T>(T) { for_each_block("batch_norm.sum", device, cut, BatchNormSum<T>{x.as<T>(), center, partial, cut.c}); });
  batch_norm_add_chunks(device, cut, partial, end);
}

void batch_norm_grad_sums(const Device& device, const GradSumArguments& a, float* partial, const BackwardEnd& end) {
  const RowCut cut = cut_statistics(a.x.shape);
  dispatch(a.x.dtype, [&]<class T>(T) {
    if (a.mask == Mask::none) grad_sum<T, Mask::none>(device, a, cut, partial);
    else if (a.mask == Mask::output) grad_sum<T, Mask::output>(device, a, cut, partial);
    else grad_sum<T, Mask::recompute>(device, a, cut, partial);
  });
  batch_norm_add_chunks(device, cut, partial, end);
}

}  // namespace lockstep
