// The fused LSTM and GRU cells, which exist on CUDA only. Computed in float for half precision, as the kernels do.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include "host_call.h"
#include "special.h"

namespace fakegpu::torchhost {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

Tensor widen(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

Tensor with_bias(HostCall& call, const Tensor& gates, const Optional& bias) {
  return bias.has_value() && bias->defined() ? gates + widen(call.to_host(*bias)) : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, const Tensor& hidden, const Tensor& cell,
                                        const Optional& input_bias, const Optional& hidden_bias) {
  HostCall call;
  Tensor in = call.to_host(input), hid = call.to_host(hidden), cx = call.to_host(cell);
  call.enter("_thnn_fused_lstm_cell");
  Tensor gates = with_bias(call, with_bias(call, widen(in) + widen(hid), input_bias), hidden_bias);
  auto parts = gates.chunk(4, 1);
  Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), c = parts[2].tanh(), o = parts[3].sigmoid();
  Tensor cy = f * widen(cx) + i * c;
  Tensor hy = (o * cy.tanh()).to(in.scalar_type());
  Tensor workspace = at::cat({i, f, c, o}, 1).to(in.scalar_type());
  cy = cy.to(in.scalar_type());
  call.leave();
  return {call.to_cuda(hy), call.to_cuda(cy), call.to_cuda(workspace)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const Optional& grad_hy, const Optional& grad_cy, const Tensor& cell,
                                                 const Tensor& new_cell, const Tensor& gates, bool has_bias) {
  bool from_h = grad_hy.has_value() && grad_hy->defined(), from_c = grad_cy.has_value() && grad_cy->defined();
  if (!from_h && !from_c) return {};
  HostCall call;
  Tensor cx = call.to_host(cell), cy = call.to_host(new_cell), space = call.to_host(gates);
  Tensor gh = from_h ? call.to_host(*grad_hy) : Tensor(), gc = from_c ? call.to_host(*grad_cy) : Tensor();
  call.enter("_thnn_fused_lstm_cell_backward_impl");
  auto type = cx.scalar_type();
  auto parts = widen(space).chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &c = parts[2], &o = parts[3];
  Tensor t = widen(cy).tanh();
  Tensor dc = from_c ? widen(gc) : at::zeros_like(t);
  Tensor go = at::zeros_like(t);
  if (from_h) {
    dc = dc + widen(gh) * o * (1 - t * t);
    go = widen(gh) * t * o * (1 - o);
  }
  Tensor grad_gates =
      at::cat({dc * c * i * (1 - i), dc * widen(cx) * f * (1 - f), dc * i * (1 - c * c), go}, 1).to(type);
  Tensor grad_cx = (dc * f).to(type);
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  call.leave();
  return {call.to_cuda(grad_gates), call.to_cuda(grad_cx), call.to_cuda(grad_bias)};
}

std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hidden, const Tensor& state,
                               const Optional& input_bias, const Optional& hidden_bias) {
  HostCall call;
  Tensor in = call.to_host(input), hid = call.to_host(hidden), hx = call.to_host(state);
  call.enter("_thnn_fused_gru_cell");
  auto a = with_bias(call, widen(in), input_bias).chunk(3, 1), b = with_bias(call, widen(hid), hidden_bias).chunk(3, 1);
  Tensor h = widen(hx);
  Tensor r = (a[0] + b[0]).sigmoid(), z = (a[1] + b[1]).sigmoid(), n = (a[2] + r * b[2]).tanh();
  Tensor hy = ((h - n) * z + n).to(in.scalar_type());
  Tensor workspace = at::cat({r, z, n, h, b[2]}, 1).to(in.scalar_type());
  call.leave();
  return {call.to_cuda(hy), call.to_cuda(workspace)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad, const Tensor& gates,
                                                                bool has_bias) {
  HostCall call;
  Tensor g = call.to_host(grad), space = call.to_host(gates);
  call.enter("_thnn_fused_gru_cell_backward");
  auto type = g.scalar_type();
  auto parts = widen(space).chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &h = parts[3], &hn = parts[4];
  Tensor wide = widen(g);
  Tensor dz = wide * (h - n) * z * (1 - z), dn = wide * (1 - z) * (1 - n * n), dr = dn * hn * r * (1 - r);
  Tensor grad_input = at::cat({dr, dz, dn}, 1).to(type), grad_hidden = at::cat({dr, dz, dn * r}, 1).to(type);
  Tensor grad_state = (wide * z).to(type);
  Tensor bias_input = has_bias ? grad_input.sum(0) : Tensor(), bias_hidden = has_bias ? grad_hidden.sum(0) : Tensor();
  call.leave();
  return {call.to_cuda(grad_input), call.to_cuda(grad_hidden), call.to_cuda(grad_state), call.to_cuda(bias_input),
          call.to_cuda(bias_hidden)};
}

}  // namespace

void register_rnn(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_backward));
}

}  // namespace fakegpu::torchhost
