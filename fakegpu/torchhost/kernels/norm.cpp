// _fused_rms_norm, which exists on CUDA only: float statistics and one rounding at the end, as the kernel does.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>

#include <limits>
#include <numeric>

#include "host_call.h"
#include "special.h"

namespace fakegpu::torchhost {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

Tensor widen(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> dims(static_cast<size_t>(end - begin));
  std::iota(dims.begin(), dims.end(), begin);
  return dims;
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef shape, const Optional& weight,
                                    std::optional<double> eps) {
  HostCall call;
  Tensor x = call.to_host(input);
  Tensor w = weight.has_value() ? call.to_host(*weight) : Tensor();
  call.enter("_fused_rms_norm");
  Tensor wide = widen(x);
  double smallest = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                   : std::numeric_limits<float>::epsilon();
  int64_t outer = x.dim() - static_cast<int64_t>(shape.size());
  Tensor rstd = (wide * wide).mean(range(outer, x.dim()), true).add_(eps.value_or(smallest)).rsqrt_();
  Tensor out = wide * rstd;
  if (w.defined()) out.mul_(w);
  out = out.to(x.scalar_type());
  call.leave();
  return {call.to_cuda(out), call.to_cuda(rstd)};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                                             const Tensor& rstd, const Optional& weight,
                                             std::array<bool, 2> wanted) {
  HostCall call;
  Tensor g = call.to_host(grad), x = call.to_host(input), r = call.to_host(rstd);
  Tensor w = weight.has_value() ? call.to_host(*weight) : Tensor();
  call.enter("_fused_rms_norm_backward");
  Tensor wide = widen(g), normal = widen(x) * r, grad_input, grad_weight;
  int64_t outer = x.dim() - static_cast<int64_t>(shape.size());
  if (wanted[0]) {
    Tensor scaled = w.defined() ? wide * w : wide;
    Tensor along = (scaled * normal).mean(range(outer, x.dim()), true);
    grad_input = (r * (scaled - normal * along)).to(x.scalar_type());
  }
  if (wanted[1] && w.defined()) {
    grad_weight = wide * normal;
    if (outer > 0) grad_weight = grad_weight.sum(range(0, outer));
    grad_weight = grad_weight.to(w.scalar_type());
  }
  call.leave();
  return {call.to_cuda(grad_input), call.to_cuda(grad_weight)};
}

}  // namespace

void register_norm(torch::Library& library) {
  library.impl("_fused_rms_norm", TORCH_FN(rms_norm));
  library.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}

}  // namespace fakegpu::torchhost
