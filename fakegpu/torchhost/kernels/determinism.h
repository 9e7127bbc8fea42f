/* torch.use_deterministic_algorithms: operators whose CUDA kernels refuse that mode refuse it here too, in torch's
 * words, so that a program that would stop on hardware stops before it gets there. */
#pragma once
#include <ATen/core/ivalue.h>
#include <string_view>

namespace fakegpu::torchhost {

struct Alert {
  const char* kernel = nullptr;  // the name in torch's message; nullptr: the operator is deterministic
  bool (*when)(const c10::IValue* arguments) = nullptr;  // nullptr: always
};

/* By operator name without namespace. */
Alert nondeterministic_alert(std::string_view name, std::string_view overload);

/* Raises or warns as the mode says. */
void raise_alert(const Alert& alert, const c10::IValue* arguments);

}  // namespace fakegpu::torchhost
