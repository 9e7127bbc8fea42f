// cudnn's operators on host. torch.backends.cudnn stays enabled, as on hardware; where torch asks whether cudnn takes a
// tensor (RNN, CTC) it does not, and torch's own CUDA path, which is on host too, is used.
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/affine_grid_generator_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include "special.h"

namespace fakegpu::torchhost {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr int64_t kBilinear = 0, kZeros = 0;  // the only mode and padding cudnn has; corners always aligned

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const Tensor& weight, const Optional& bias,
                                                      const Optional& mean, const Optional& variance, bool training,
                                                      double momentum, double eps) {
  auto [out, save_mean, save_invstd] =
      at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
  return {out, save_mean, save_invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& input, const Tensor& grad, const Tensor& weight,
                                                       const Optional& mean, const Optional& variance,
                                                       const Optional& save_mean, const Optional& save_invstd,
                                                       double eps, const Tensor&) {
  return at::native_batch_norm_backward(grad, input, weight, mean, variance, save_mean, save_invstd, /*train=*/true,
                                        eps, {true, true, true});
}

Tensor grid_sampler(const Tensor& self, const Tensor& grid) {
  return at::grid_sampler_2d(self, grid, kBilinear, kZeros, /*align_corners=*/true);
}

std::tuple<Tensor, Tensor> grid_sampler_backward(const Tensor& self, const Tensor& grid, const Tensor& grad) {
  return at::grid_sampler_2d_backward(grad, self, grid, kBilinear, kZeros, /*align_corners=*/true, {true, true});
}

Tensor affine_grid(const Tensor& theta, int64_t n, int64_t c, int64_t h, int64_t w) {
  return at::affine_grid_generator(theta, {n, c, h, w}, /*align_corners=*/true);
}

Tensor affine_grid_backward(const Tensor& grad, int64_t n, int64_t c, int64_t h, int64_t w) {
  return at::affine_grid_generator_backward(grad, {n, c, h, w}, /*align_corners=*/true);
}

// views of one buffer, as cudnn leaves the weights of a recurrent module
Tensor flatten_weight(at::TensorList weights, int64_t, c10::SymInt, int64_t, c10::SymInt, c10::SymInt, int64_t, bool,
                      bool) {
  int64_t count = 0, offset = 0;
  for (const auto& weight : weights) count += weight.numel();
  Tensor buffer = at::empty({count}, weights[0].options());
  for (Tensor weight : weights) {
    Tensor slice = buffer.narrow(0, offset, weight.numel()).view_symint(weight.sym_sizes());
    slice.copy_(weight);
    offset += weight.numel();
    weight.set_(slice.storage(), slice.storage_offset(), slice.sizes(), slice.strides());
  }
  return buffer;
}

bool is_acceptable(const Tensor&) {
  return false;
}

bool use_ctc_loss(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}

bool use_ctc_loss_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

}  // namespace

void register_cudnn(torch::Library& library) {
  library.impl("cudnn_batch_norm", TORCH_FN(batch_norm));
  library.impl("cudnn_batch_norm_backward", TORCH_FN(batch_norm_backward));
  library.impl("cudnn_grid_sampler", TORCH_FN(grid_sampler));
  library.impl("cudnn_grid_sampler_backward", TORCH_FN(grid_sampler_backward));
  library.impl("cudnn_affine_grid_generator", TORCH_FN(affine_grid));
  library.impl("cudnn_affine_grid_generator_backward", TORCH_FN(affine_grid_backward));
  library.impl("_cudnn_rnn_flatten_weight", TORCH_FN(flatten_weight));
  library.impl("cudnn_is_acceptable", TORCH_FN(is_acceptable));
  library.impl("_use_cudnn_ctc_loss", TORCH_FN(use_ctc_loss));
  library.impl("_use_cudnn_ctc_loss.Tensor", TORCH_FN(use_ctc_loss_tensor));
  library.impl("_use_miopen_ctc_loss", TORCH_FN(use_ctc_loss));
  library.impl("_use_miopen_ctc_loss.Tensor", TORCH_FN(use_ctc_loss_tensor));
}

}  // namespace fakegpu::torchhost
