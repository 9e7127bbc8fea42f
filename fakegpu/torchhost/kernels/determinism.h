/* torch.use_deterministic_algorithms: operators whose CUDA kernels refuse that mode refuse it here too, in torch's
 * words, so that a program that would stop on hardware stops before it gets there. */
#pragma once
#include <ATen/core/Tensor.h>
#include <string_view>

namespace fakegpu::torchhost {

struct Alert {
  const char* kernel = nullptr;  // the name in torch's message; nullptr: the operator is deterministic
  bool floating_only = false;
};

/* By operator name without namespace and overload. */
Alert nondeterministic_alert(std::string_view base);

/* Raises or warns as the mode says. */
void raise_alert(const Alert& alert, at::ScalarType type);

}  // namespace fakegpu::torchhost
