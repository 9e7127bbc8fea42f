#include "attention_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

namespace fakegpu::torchhost {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor widen(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// grouped queries: each key/value head serves `count` query heads
at::Tensor repeat_heads(const at::Tensor& tensor, int64_t heads) {
  return tensor.size(1) == heads ? tensor : tensor.repeat_interleave(heads / tensor.size(1), 1);
}

at::Tensor sum_heads(const at::Tensor& gradient, int64_t heads) {
  if (gradient.size(1) == heads) return gradient;
  return gradient.unflatten(1, {heads, gradient.size(1) / heads}).sum(2);
}

bool blocked_kernel_takes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const AttentionOptions& options) {
  if (options.dropout > 0.0 || query.numel() == 0 || key.numel() == 0) return false;
  if (query.size(3) != key.size(3) || query.size(3) != value.size(3)) return false;
  if (!options.bias.has_value()) return true;
  return options.bias->dim() == 4 && options.bias->scalar_type() == query.scalar_type() && !options.causal;
}

at::Tensor scores(const at::Tensor& query, const at::Tensor& key, const AttentionOptions& options, double scale) {
  at::Tensor s = at::matmul(widen(query), widen(key).transpose(-2, -1)).mul_(scale);
  if (options.bias.has_value()) s = s + widen(*options.bias);
  if (options.causal) {
    s.masked_fill_(at::ones({s.size(-2), s.size(-1)}, s.options().dtype(at::kBool)).tril_().logical_not_(), -kInfinity);
  }
  return s;
}

// a row without any allowed key has log-sum-exp -inf and probability 0 everywhere
at::Tensor probabilities(const at::Tensor& s, const at::Tensor& log_sum_exp) {
  return (s - log_sum_exp.masked_fill(log_sum_exp.abs() == kInfinity, 0.0).unsqueeze(-1)).exp_();
}

// 0 or 1/(1-p) per score
at::Tensor dropout_mask(const at::Tensor& like, const AttentionOptions& options) {
  double keep = 1.0 - options.dropout;
  at::Tensor mask = at::empty(like.sizes(), like.options()).bernoulli_(keep, host_generator(options.random));
  return keep > 0.0 ? mask.div_(keep) : mask;
}

double scale_of(const at::Tensor& query, const AttentionOptions& options) {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
}

}  // namespace

AttentionForward attention_forward(const at::Tensor& query, const at::Tensor& given_key, const at::Tensor& given_value,
                                   const AttentionOptions& options) {
  at::Tensor key = repeat_heads(given_key, query.size(1)), value = repeat_heads(given_value, query.size(1));
  if (blocked_kernel_takes(query, key, value, options)) {
    auto [out, log_sum_exp] = at::cpu::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, options.causal, options.bias, options.scale);
    return {out, log_sum_exp};
  }
  at::Tensor s = scores(query, key, options, scale_of(query, options));
  at::Tensor log_sum_exp = s.logsumexp(-1);
  at::Tensor p = probabilities(s, log_sum_exp);
  if (options.dropout > 0.0) p.mul_(dropout_mask(p, options));
  return {at::matmul(p, widen(value)).to(query.scalar_type()), log_sum_exp};
}

AttentionBackward attention_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& given_key,
                                     const at::Tensor& given_value, const at::Tensor& out,
                                     const at::Tensor& log_sum_exp, const AttentionOptions& options,
                                     bool bias_gradient) {
  at::Tensor key = repeat_heads(given_key, query.size(1)), value = repeat_heads(given_value, query.size(1));
  int64_t heads = given_key.size(1);
  if (!bias_gradient && blocked_kernel_takes(query, key, value, options)) {
    auto [q, k, v] = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, log_sum_exp, 0.0, options.causal, options.bias, options.scale);
    return {q, sum_heads(k, heads), sum_heads(v, heads), {}};
  }
  double scale = scale_of(query, options);
  at::Tensor g = widen(grad);
  at::Tensor p = probabilities(scores(query, key, options, scale), log_sum_exp);
  at::Tensor dp = at::matmul(g, widen(value).transpose(-2, -1));
  at::Tensor kept = p;
  if (options.dropout > 0.0) {
    at::Tensor mask = dropout_mask(p, options);
    kept = p * mask;
    dp.mul_(mask);
  }
  at::Tensor ds = p * (dp - (g * widen(out)).sum(-1, true));
  at::Tensor dq = at::matmul(ds, widen(key)).mul_(scale);
  at::Tensor dk = sum_heads(at::matmul(ds.transpose(-2, -1), widen(query)).mul_(scale), heads);
  at::Tensor dv = sum_heads(at::matmul(kept.transpose(-2, -1), g), heads);
  at::Tensor db;
  if (bias_gradient) db = ds.sum_to_size(options.bias->sizes()).to(options.bias->scalar_type());
  return {dq.to(query.scalar_type()), dk.to(given_key.scalar_type()), dv.to(given_value.scalar_type()), db};
}

}  // namespace fakegpu::torchhost
