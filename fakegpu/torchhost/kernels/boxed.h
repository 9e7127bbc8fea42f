/* The kernel that most CUDA operators get: runs the operator's CPU kernel on aliases of the arguments. */
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <vector>

#include "determinism.h"
#include "host_call.h"

namespace fakegpu::torchhost {

/* Which CPU tensors an operator takes beside CUDA tensors. Every other mixture goes to the kernel that was there
 * before, whose own check raises torch's own text (or whose slow path takes it apart). */
enum class Mixing : uint8_t {
  kNone,     // not even 0-dim ones
  kScalars,  // 0-dim tensors, as TensorIterator
  kIndices,  // those, and index lists
  kCopy,     // any
};

class HostKernel final : public c10::OperatorKernel {
 public:
  HostKernel(const c10::FunctionSchema& schema, c10::DispatchKey host_key, Mixing mixing, bool seeded,
             c10::KernelFunction replaced);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  enum class Kind : uint8_t { kOther, kTensor, kTensorList, kOptionalTensorList, kDevice, kPinMemory };
  struct Argument {
    size_t index;
    Kind kind;
    bool written;
  };
  struct Devices {
    std::optional<c10::Device> cuda;
    bool refused = false;  // a mixture that mixing_ does not take
    bool narrow = false;   // a type that some CPU kernels lack
  };

  void inspect(const at::Tensor& tensor, bool index_list, Devices* seen) const;
  Devices inspect(const torch::jit::Stack& stack, size_t base) const;
  void to_host(HostCall& call, c10::IValue& value, const Argument& argument) const;
  void to_cuda(HostCall& call, c10::IValue& value) const;
  void run(const c10::OperatorHandle& op, bool narrow, size_t base, torch::jit::Stack* stack);
  bool copies_by_runtime(const torch::jit::Stack& stack, size_t base) const;
  void drain_source(const torch::jit::Stack& stack, size_t base, c10::Device device) const;

  std::vector<Argument> arguments_;  // those that need a conversion or a look
  std::vector<int> returned_;        // per result: the written argument it is, or -1
  size_t count_;
  int generator_ = -1;  // position of the generator argument
  std::string name_;
  c10::DispatchKey host_key_;
  Mixing mixing_;
  Alert alert_;
  bool seeded_;
  c10::KernelFunction replaced_;
};

}  // namespace fakegpu::torchhost
