/* The kernel of an operator that cannot run on a fake device: it names the operator, the reason and a way out. */
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <string>

namespace fakegpu::torchhost {

class Refusal final : public c10::OperatorKernel {
 public:
  explicit Refusal(std::string reason) : reason_(std::move(reason)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "fakegpu: ", op.operator_name(), " does not run on a fake device: ", reason_);
  }

 private:
  std::string reason_;
};

}  // namespace fakegpu::torchhost
