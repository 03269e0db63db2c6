// batch_norm_sums on a GPU: plain CUDA, because a range of Kokkos has no shared memory, and its thousand partial sums a channel, added by one
// thread, took 40 of the 93 ms of a ResNet-50 step (batch 256, fp16, H200, 2026-11-30).
// A block sums every n-th row of up to 32 packets of channels, its threads' sums meet in shared memory, and a second kernel adds the blocks'.
#include <algorithm>

#include "layers/batch_norm_sums.hpp"

namespace lockstep {
namespace {

constexpr int block_threads = 256, blocks_each = 2, most_columns = 32, fewest_rows = 4;
constexpr int most_blocks = 132 * blocks_each;   // what an H200 runs at once: each block takes as many turns as the others, and none waits for another to end

/// How [rows, c] is cut: x, y threads of a block are packets of a row and rows; blocks.x take turns on rows, blocks.y divide the channels.
struct Launch {
  dim3 threads, blocks;
};
Launch launch_for(const Shape& x, int width) {
  const std::int64_t rows = x.n * x.h * x.w, packets = (x.c + width - 1) / width, columns = std::min<std::int64_t>(packets, most_columns);
  const std::int64_t lines = block_threads / columns, parts = (packets + columns - 1) / columns;
  const std::int64_t turns = std::clamp<std::int64_t>(rows / (lines * fewest_rows), 1, std::max<std::int64_t>(1, most_blocks / parts));
  const auto u = [](std::int64_t v) { return static_cast<unsigned>(v); };
  return {dim3(u(columns), u(lines)), dim3(u(turns), u(parts))};
}

template <class T>
int width_for(std::int64_t c) { return c % lane_width<T> == 0 ? lane_width<T> : 1; }

}  // namespace

/// The sums of a block's threads over its rows, to partial[blockIdx.x][count][c].
template <int count, int width>
__device__ void add_rows_of_block(const Lanes<width> (&of_thread)[count], std::int64_t c, float* partial) {
  __shared__ float sums[count][block_threads * width];
  const int line = static_cast<int>(blockDim.x) * width, thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int k = 0; k < count; ++k)
    for (int i = 0; i < width; ++i) sums[k][thread * width + i] = of_thread[k].v[i];
  __syncthreads();
  for (int i = thread; i < line; i += static_cast<int>(blockDim.x * blockDim.y)) {
    const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * line + i;
    if (channel >= c) continue;
    for (int k = 0; k < count; ++k) {
      float sum = 0;
      for (int row = 0; row < static_cast<int>(blockDim.y); ++row) sum += sums[k][row * line + i];
      partial[(static_cast<std::int64_t>(blockIdx.x) * count + k) * c + channel] = sum;
    }
  }
}

/// body(first row, how many: a constant) for every step-th row from `row` on, rows_together at a time.
template <class Body>
__device__ void for_turns(std::int64_t row, std::int64_t step, std::int64_t rows, const Body& body) {
  for (; row + (rows_together - 1) * step < rows; row += rows_together * step) body(row, std::integral_constant<int, rows_together>());
  for (; row < rows; row += step) body(row, std::integral_constant<int, 1>());
}

template <class T, int width>
__global__ void __launch_bounds__(block_threads, blocks_each) batch_norm_sum_rows(const T* x, const float* center, std::int64_t rows, std::int64_t c, float* partial) {
  take_turn_in_stream();
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x) * width, step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  Lanes<width> sums[2] = {zeros<width>(), zeros<width>()};
  if (channel < c) {
    const Lanes<width> k = load<width>(center + channel);
    for_turns(static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step, rows, [&]<int turns>(std::int64_t row, std::integral_constant<int, turns>) {
      Raw<width, T> xs[turns];
      for (int i = 0; i < turns; ++i) xs[i] = load_raw<width>(x + (row + i * step) * c + channel);
      for (int i = 0; i < turns; ++i) {
        const Lanes<width> d = xs[i].lanes() - k;
        sums[0] = sums[0] + d, sums[1] = sums[1] + d * d;
      }
    });
  }
  add_rows_of_block(sums, c, partial);
}

template <class T, int width, Mask mask>
__global__ void __launch_bounds__(block_threads, blocks_each) batch_norm_grad_sum_rows(const T* x, const T* grad_out, const void* mask_source, T* residual, bool adds_residual,
                                                                          BatchNormVectors vectors, std::int64_t rows, std::int64_t c, float* partial) {
  take_turn_in_stream();
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x) * width, step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  Lanes<width> sums[2] = {zeros<width>(), zeros<width>()};
  if (channel < c) {
    const BlockVectors<width> v(vectors, channel);
    for_turns(static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step, rows, [&]<int turns>(std::int64_t row, std::integral_constant<int, turns>) {
      Raw<width, T> xs[turns], gs[turns];
      MaskPacket<mask, width, T> masks[turns];
      for (int i = 0; i < turns; ++i) {
        const std::int64_t at = (row + i * step) * c + channel;
        xs[i] = load_raw<width>(x + at), gs[i] = load_raw<width>(grad_out + at), masks[i].read(mask_source, at);
      }
      for (int i = 0; i < turns; ++i) {
        const std::int64_t at = (row + i * step) * c + channel;
        const Lanes<width> centered = xs[i].lanes() - v.mean, g = masks[i](gs[i].lanes(), centered, v);
        sums[0] = sums[0] + g, sums[1] = sums[1] + g * centered;
        if (residual) store(residual + at, adds_residual ? load<width>(residual + at) + g : g);
      }
    });
  }
  add_rows_of_block(sums, c, partial);
}

template <class T, int width, Mask mask>
__global__ void __launch_bounds__(block_threads, blocks_each) batch_norm_pair_grad_sum_rows(const T* a, const T* b, const T* grad_out, const void* mask_source, BatchNormVectors of_a,
                                                                               BatchNormVectors of_b, std::int64_t rows, std::int64_t c, float* partial) {
  take_turn_in_stream();
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y * blockDim.x + threadIdx.x) * width, step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  Lanes<width> sums[3] = {zeros<width>(), zeros<width>(), zeros<width>()};
  if (channel < c) {
    const BlockVectors<width> va(of_a, channel);
    const Lanes<width> mean_b = load<width>(of_b.mean + channel);
    for_turns(static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step, rows, [&]<int turns>(std::int64_t row, std::integral_constant<int, turns>) {
      Raw<width, T> as[turns], bs[turns], gs[turns];
      MaskPacket<mask, width, T> masks[turns];
      for (int i = 0; i < turns; ++i) {
        const std::int64_t at = (row + i * step) * c + channel;
        as[i] = load_raw<width>(a + at), bs[i] = load_raw<width>(b + at), gs[i] = load_raw<width>(grad_out + at), masks[i].read(mask_source, at);
      }
      for (int i = 0; i < turns; ++i) {
        const Lanes<width> centered = as[i].lanes() - va.mean, g = masks[i](gs[i].lanes(), centered, va);
        sums[0] = sums[0] + g, sums[1] = sums[1] + g * centered, sums[2] = sums[2] + g * (bs[i].lanes() - mean_b);
      }
    });
  }
  add_rows_of_block(sums, c, partial);
}

/// end(channel, sums) of the blocks' partial sums: a warp's lane is a channel, 32 warps share the blocks.
template <class End>
__global__ void batch_norm_add_blocks(const float* partial, std::int64_t blocks, std::int64_t c, End end) {
  __shared__ double of_warps[End::count][32][33];
  take_turn_in_stream();
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  double sums[End::count] = {};
  if (channel < c)
    for (std::int64_t block = threadIdx.y; block < blocks; block += 32)
      for (int k = 0; k < End::count; ++k) sums[k] += partial[(block * End::count + k) * c + channel];
  for (int k = 0; k < End::count; ++k) of_warps[k][threadIdx.y][threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.y != 0 || channel >= c) return;
  for (int warp = 1; warp < 32; ++warp)
    for (int k = 0; k < End::count; ++k) sums[k] += of_warps[k][warp][threadIdx.x];
  end(channel, sums);
}

namespace {

template <class End>
void add_blocks(const Device& device, std::int64_t blocks, std::int64_t c, const float* partial, const End& end) {
  launch_early(device, &batch_norm_add_blocks<End>, dim3(static_cast<unsigned>((c + 31) / 32)), dim3(32, 32), partial, blocks, c, end);
}

template <class T, int width>
void grad_sum(const Device& device, const GradSumArguments& a, const Launch& l, float* partial) {
  const Shape& s = a.x.shape;
  const auto run = [&](auto kernel) {
    launch_early(device, kernel, l.blocks, l.threads, a.x.as<T>(), a.grad_out.as<T>(), a.mask_source, a.residual.as<T>(), a.adds_residual, a.vectors, s.n * s.h * s.w, s.c,
                 partial);
  };
  if (a.mask == Mask::none) run(&batch_norm_grad_sum_rows<T, width, Mask::none>);
  else if (a.mask == Mask::output) run(&batch_norm_grad_sum_rows<T, width, Mask::output>);
  else if (a.mask == Mask::bits) run(&batch_norm_grad_sum_rows<T, width, Mask::bits>);
  else run(&batch_norm_grad_sum_rows<T, width, Mask::recompute>);
}

}  // namespace

std::int64_t batch_norm_partials(const Shape& x, DType dtype, int sums) {
  return dispatch(dtype, [&]<class T>(T) { return static_cast<std::int64_t>(launch_for(x, width_for<T>(x.c)).blocks.x) * sums * x.c; });
}

void batch_norm_sums(const Device& device, Tensor x, const float* center, float* partial, const ForwardEnd& end) {
  const std::int64_t rows = x.shape.n * x.shape.h * x.shape.w, c = x.shape.c;
  dispatch(x.dtype, [&]<class T>(T) {
    const int width = width_for<T>(c);
    const Launch l = launch_for(x.shape, width);
    launch_early(device, width == 1 ? &batch_norm_sum_rows<T, 1> : &batch_norm_sum_rows<T, lane_width<T>>, l.blocks, l.threads, x.as<T>(), center, rows, c, partial);
    add_blocks(device, l.blocks.x, c, partial, end);
  });
}

void batch_norm_take_sums(const Device& device, Tensor sums, const RawForwardEnd& end) {
  add_blocks(device, sums.size() / (2 * end.end.c), end.end.c, sums.as<float>(), end);
}

void batch_norm_grad_sums(const Device& device, const GradSumArguments& a, float* partial, const BackwardEnd& end) {
  dispatch(a.x.dtype, [&]<class T>(T) {
    const int width = width_for<T>(a.x.shape.c);
    const Launch l = launch_for(a.x.shape, width);
    width == 1 ? grad_sum<T, 1>(device, a, l, partial) : grad_sum<T, lane_width<T>>(device, a, l, partial);
    add_blocks(device, l.blocks.x, a.x.shape.c, partial, end);
  });
}

void batch_norm_pair_grad_sums(const Device& device, const PairGradSumArguments& a, float* partial, const PairBackwardEnd& end) {
  const Shape& s = a.a.shape;
  dispatch(a.a.dtype, [&]<class T>(T) {
    const int width = width_for<T>(s.c);
    const Launch l = launch_for(s, width);
    const auto run = [&](auto kernel) {
      launch_early(device, kernel, l.blocks, l.threads, a.a.as<T>(), a.b.as<T>(), a.grad_out.as<T>(), a.mask_source, a.of_a, a.of_b, s.n * s.h * s.w, s.c, partial);
    };
    if (a.mask == Mask::bits) run(&batch_norm_pair_grad_sum_rows<T, lane_width<T>, Mask::bits>);
    else if (width == 1) run(&batch_norm_pair_grad_sum_rows<T, 1, Mask::output>);
    else run(&batch_norm_pair_grad_sum_rows<T, lane_width<T>, Mask::output>);
    add_blocks(device, l.blocks.x, s.c, partial, end);
  });
}

}  // namespace lockstep
