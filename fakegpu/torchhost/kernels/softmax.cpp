// _softmax and _log_softmax: on CUDA they convert half precision to float on the way (half_to_float).
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>

#include "host_call.h"
#include "special.h"

namespace fakegpu::torchhost {
namespace {

using Forward = at::Tensor (*)(const at::Tensor&, int64_t, bool);
using Backward = at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType);

at::Tensor forward(Forward kernel, const char* name, const at::Tensor& input, int64_t dim, bool half_to_float) {
  TORCH_CHECK(!half_to_float || input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16,
              "conversion is supported for Half and BFloat16 types only");
  HostCall call;
  at::Tensor host = call.to_host(input);
  call.enter(name);
  at::Tensor out = kernel(half_to_float ? host.to(at::kFloat) : host, dim, false);
  call.leave();
  return call.to_cuda(out);
}

at::Tensor backward(Backward kernel, const char* name, const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                    at::ScalarType input_type) {
  HostCall call;
  at::Tensor host_grad = call.to_host(grad), host_output = call.to_host(output);
  call.enter(name);
  at::Tensor out = kernel(host_grad.to(host_output.scalar_type()), host_output, dim, host_output.scalar_type());
  out = out.to(input_type);
  call.leave();
  return call.to_cuda(out);
}

at::Tensor softmax(const at::Tensor& input, int64_t dim, bool half_to_float) {
  return forward(&at::cpu::_softmax, "_softmax", input, dim, half_to_float);
}

at::Tensor log_softmax(const at::Tensor& input, int64_t dim, bool half_to_float) {
  return forward(&at::cpu::_log_softmax, "_log_softmax", input, dim, half_to_float);
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType type) {
  return backward(&at::cpu::_softmax_backward_data, "_softmax_backward_data", grad, output, dim, type);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType type) {
  return backward(&at::cpu::_log_softmax_backward_data, "_log_softmax_backward_data", grad, output, dim, type);
}

}  // namespace

void register_softmax(torch::Library& library) {
  library.impl("_softmax", TORCH_FN(softmax));
  library.impl("_log_softmax", TORCH_FN(log_softmax));
  library.impl("_softmax_backward_data", TORCH_FN(softmax_backward));
  library.impl("_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
}

}  // namespace fakegpu::torchhost
