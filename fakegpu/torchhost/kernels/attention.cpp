// The fused attention operators that torch's own backend selection picks on CUDA: flash, memory-efficient, cudnn.
// Results have the layouts of the CUDA kernels, because programs (DTensor rules, views) depend on them.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "attention_math.h"
#include "host_call.h"
#include "special.h"

namespace fakegpu::torchhost {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr int64_t kEfficientRowBlock = 32;  // log-sum-exp rows are padded to this
constexpr int64_t kBiasAlignment = 16;

// like the flash kernels: the layout of `like` seen as [batch, sequence, heads, width]
Tensor flash_layout(const Tensor& result, const Tensor& like) {
  Tensor out = at::empty_like(like.transpose(1, 2)).transpose(1, 2);
  if (out.sizes() != result.sizes()) out = at::empty_like(result.transpose(1, 2)).transpose(1, 2);
  return out.strides() == result.strides() ? result : out.copy_(result);
}

Tensor sequence_major(const Tensor& result) {
  return result.transpose(1, 2).contiguous().transpose(1, 2);
}

Tensor random_word(uint64_t word, at::ScalarType type) {
  return at::full({}, static_cast<int64_t>(word), at::TensorOptions().dtype(at::kLong)).to(type);
}

AttentionOptions options_of(const Optional& bias, double dropout, bool causal, std::optional<double> scale) {
  AttentionOptions options;
  if (bias.has_value() && bias->defined()) options.bias = *bias;
  options.dropout = dropout;
  options.causal = causal;
  options.scale = scale;
  return options;
}

struct Inputs {
  HostCall call;
  Tensor query, key, value;
  Inputs(const Tensor& q, const Tensor& k, const Tensor& v)
      : query(call.to_host(q)), key(call.to_host(k)), value(call.to_host(v)) {}
};

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool causal, bool debug_mask,
    std::optional<double> scale) {
  TORCH_CHECK(!debug_mask, "fakegpu: _scaled_dot_product_flash_attention: return_debug_mask=True is not supported");
  Inputs in(query, key, value);
  HostCall& call = in.call;
  call.enter("_scaled_dot_product_flash_attention");
  auto options = options_of({}, dropout, causal, scale);
  Tensor state = at::zeros({2}, at::TensorOptions().dtype(at::kLong));
  if (dropout > 0.0) {
    options.random = next_random_state({}, call.device());
    state[0] = static_cast<int64_t>(options.random.seed);
    state[1] = static_cast<int64_t>(options.random.offset);
  }
  auto [out, lse] = attention_forward(in.query, in.key, in.value, options);
  out = flash_layout(out, in.query);
  lse = lse.contiguous();
  Tensor unused = random_word(0, at::kUInt64), mask = at::empty({0}, out.options());
  call.leave();
  return {call.to_cuda(out), call.to_cuda(lse), Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          call.to_cuda(state.view(at::kUInt64)), call.to_cuda(unused), call.to_cuda(mask)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
    const Tensor& lse, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal,
    const Tensor& rng_state, const Tensor&, std::optional<double> scale) {
  Inputs in(query, key, value);
  HostCall& call = in.call;
  Tensor g = call.to_host(grad), o = call.to_host(out), l = call.to_host(lse), state = call.to_host(rng_state);
  call.enter("_scaled_dot_product_flash_attention_backward");
  auto options = options_of({}, dropout, causal, scale);
  if (dropout > 0.0) {
    const auto* words = static_cast<const uint64_t*>(state.const_data_ptr());
    options.random = {words[0], words[1]};
  }
  auto grads = attention_backward(g, in.query, in.key, in.value, o, l, options, false);
  Tensor dq = flash_layout(grads.query, in.query), dk = flash_layout(grads.key, in.key),
         dv = flash_layout(grads.value, in.value);
  call.leave();
  return {call.to_cuda(dq), call.to_cuda(dk), call.to_cuda(dv)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& query, const Tensor& key, const Tensor& value,
                                                     const Optional& bias, bool compute_lse, double dropout,
                                                     bool causal, std::optional<double> scale) {
  Inputs in(query, key, value);
  HostCall& call = in.call;
  auto options = options_of(bias.has_value() ? Optional(call.to_host(*bias)) : Optional(), dropout, causal, scale);
  call.enter("_scaled_dot_product_efficient_attention");
  if (dropout > 0.0) options.random = next_random_state({}, call.device());
  auto [out, lse] = attention_forward(in.query, in.key, in.value, options);
  int64_t rows = query.size(2);
  int64_t padded = compute_lse ? (rows + kEfficientRowBlock - 1) / kEfficientRowBlock * kEfficientRowBlock : 0;
  Tensor full = at::full({query.size(0), query.size(1), padded}, std::numeric_limits<double>::infinity(),
                         out.options().dtype(at::kFloat));
  if (compute_lse) full.narrow(2, 0, rows).copy_(lse);
  out = sequence_major(out);
  Tensor seed = random_word(options.random.seed, at::kLong), offset = random_word(options.random.offset, at::kLong);
  call.leave();
  return {call.to_cuda(out), call.to_cuda(full), call.to_cuda(seed), call.to_cuda(offset)};
}

// as the CUDA kernel gives it: rows aligned to 16 elements
Tensor aligned_bias(const Tensor& gradient) {
  auto sizes = gradient.sizes().vec();
  int64_t last = sizes.back();
  sizes.back() = (last + kBiasAlignment - 1) / kBiasAlignment * kBiasAlignment;
  if (sizes.back() == last) return gradient;
  return at::empty(sizes, gradient.options()).narrow(-1, 0, last).copy_(gradient);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    const Tensor& out, const Tensor& lse, const Tensor& seed, const Tensor& offset, double dropout,
    std::array<bool, 4> wanted, bool causal, std::optional<double> scale) {
  if (!grad.defined()) return {};
  Inputs in(query, key, value);
  HostCall& call = in.call;
  Tensor g = call.to_host(grad), o = call.to_host(out), l = call.to_host(lse), b = call.to_host(bias);
  Tensor s = call.to_host(seed), f = call.to_host(offset);
  call.enter("_scaled_dot_product_efficient_attention_backward");
  auto options = options_of(b, dropout, causal, scale);
  if (dropout > 0.0) {
    options.random = {static_cast<uint64_t>(s.item<int64_t>()), static_cast<uint64_t>(f.item<int64_t>())};
  }
  bool bias_gradient = b.defined() && wanted[3];
  auto grads = attention_backward(g, in.query, in.key, in.value, o, l.narrow(2, 0, query.size(2)), options,
                                  bias_gradient);
  Tensor dq = sequence_major(grads.query), dk = sequence_major(grads.key), dv = sequence_major(grads.value);
  Tensor db = bias_gradient ? aligned_bias(grads.bias) : Tensor();
  call.leave();
  return {call.to_cuda(dq), call.to_cuda(dk), call.to_cuda(dv), call.to_cuda(db)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> cudnn(
    const Tensor& query, const Tensor& key, const Tensor& value, const Optional& bias, bool, double dropout,
    bool causal, bool debug_mask, std::optional<double> scale) {
  TORCH_CHECK(!debug_mask, "fakegpu: _scaled_dot_product_cudnn_attention: return_debug_mask=True is not supported");
  Inputs in(query, key, value);
  HostCall& call = in.call;
  auto options = options_of(bias.has_value() ? Optional(call.to_host(*bias)) : Optional(), dropout, causal, scale);
  call.enter("_scaled_dot_product_cudnn_attention");
  if (dropout > 0.0) options.random = next_random_state({}, call.device());
  auto [out, lse] = attention_forward(in.query, in.key, in.value, options);
  out = flash_layout(out, in.query);
  lse = lse.to(at::kFloat).contiguous().unsqueeze(-1);
  Tensor seed = random_word(options.random.seed, at::kLong), offset = random_word(options.random.offset, at::kLong);
  call.leave();
  return {call.to_cuda(out), call.to_cuda(lse), Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          call.to_cuda(seed), call.to_cuda(offset), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
    const Tensor& lse, const Tensor& seed, const Tensor& offset, const Tensor& bias, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool causal, std::optional<double> scale) {
  Inputs in(query, key, value);
  HostCall& call = in.call;
  Tensor g = call.to_host(grad), o = call.to_host(out), l = call.to_host(lse), b = call.to_host(bias);
  Tensor s = call.to_host(seed), f = call.to_host(offset);
  call.enter("_scaled_dot_product_cudnn_attention_backward");
  auto options = options_of(b, dropout, causal, scale);
  if (dropout > 0.0) {
    options.random = {static_cast<uint64_t>(s.item<int64_t>()), static_cast<uint64_t>(f.item<int64_t>())};
  }
  auto grads = attention_backward(g, in.query, in.key, in.value, o, l.squeeze(-1), options, false);
  Tensor dq = flash_layout(grads.query, in.query), dk = flash_layout(grads.key, in.key),
         dv = flash_layout(grads.value, in.value);
  call.leave();
  return {call.to_cuda(dq), call.to_cuda(dk), call.to_cuda(dv)};
}

}  // namespace

void register_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash));
  library.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
  library.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  library.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
  library.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnn));
  library.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnn_backward));
}

}  // namespace fakegpu::torchhost
