/* Scaled dot product attention on CPU tensors [batch, heads, sequence, width]: torch's blocked CPU kernel where it
 * can, plain matrix products otherwise (dropout, bias gradients, unequal widths). */
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "random.h"

namespace fakegpu::torchhost {

struct AttentionOptions {
  std::optional<at::Tensor> bias;  // added to the scores; broadcasts over them
  double dropout = 0.0;
  bool causal = false;  // aligned at the top left corner
  std::optional<double> scale;
  RandomState random{0, 0};  // of the dropout mask: forward and backward pass the same
};

struct AttentionForward {
  at::Tensor out;
  at::Tensor log_sum_exp;  // [batch, heads, sequence], float (double for double)
};

struct AttentionBackward {
  at::Tensor query, key, value, bias;  // bias undefined unless asked for
};

AttentionForward attention_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                   const AttentionOptions& options);

AttentionBackward attention_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                     const at::Tensor& value, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                     const AttentionOptions& options, bool bias_gradient);

}  // namespace fakegpu::torchhost
