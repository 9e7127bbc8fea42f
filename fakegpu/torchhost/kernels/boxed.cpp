#include "boxed.h"

#include "capture.h"
#include "random.h"
#include "runtime.h"
#include "widen.h"

namespace fakegpu::torchhost {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

int written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!is_written(result)) return -1;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i]) && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool is_one_block(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

HostKernel::HostKernel(const c10::FunctionSchema& schema, c10::DispatchKey host_key, Mixing mixing, bool seeded,
                       c10::KernelFunction replaced)
    : count_(schema.arguments().size()),
      name_(schema.name()),
      host_key_(host_key),
      mixing_(mixing),
      alert_(host_key == c10::DispatchKey::CPU ? nondeterministic_alert(std::string_view(name_).substr(6), schema.overload_name())
                                              : Alert{}),
      seeded_(seeded),
      replaced_(std::move(replaced)) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < count_; ++i) {
    std::string type = arguments[i].type()->str();
    Kind kind = Kind::kOther;
    if (type == "Tensor" || type == "Tensor?") kind = Kind::kTensor;
    if (type == "Tensor[]") kind = Kind::kTensorList;
    if (type == "Tensor?[]") kind = Kind::kOptionalTensorList;
    if (type == "Device" || type == "Device?") kind = Kind::kDevice;
    if (arguments[i].name() == "pin_memory") kind = Kind::kPinMemory;
    if (type == "Generator" || type == "Generator?") generator_ = static_cast<int>(i);
    if (kind != Kind::kOther) arguments_.push_back({i, kind, is_written(arguments[i])});
  }
  for (const auto& result : schema.returns()) returned_.push_back(written_argument(schema, result));
}

void HostKernel::inspect(const at::Tensor& tensor, bool index_list, Devices* seen) const {
  if (!tensor.defined()) return;
  if (has_wider_type(tensor.scalar_type())) seen->narrow = true;
  if (tensor.is_cuda()) {
    if (!seen->cuda.has_value()) {
      seen->cuda = tensor.device();
    } else if (*seen->cuda != tensor.device() && mixing_ != Mixing::kCopy) {
      seen->refused = true;
    }
    return;
  }
  if (mixing_ == Mixing::kCopy || !tensor.device().is_cpu()) return;
  bool scalar = tensor.dim() == 0 && mixing_ != Mixing::kNone;
  if (!scalar && !(index_list && mixing_ == Mixing::kIndices)) seen->refused = true;
}

HostKernel::Devices HostKernel::inspect(const torch::jit::Stack& stack, size_t base) const {
  Devices seen;
  for (const auto& argument : arguments_) {
    const c10::IValue& value = stack[base + argument.index];
    if (argument.kind == Kind::kTensor && value.isTensor()) {
      inspect(value.toTensor(), false, &seen);
    } else if ((argument.kind == Kind::kTensorList || argument.kind == Kind::kOptionalTensorList) && value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) inspect(item.toTensor(), argument.kind == Kind::kOptionalTensorList, &seen);
      }
    }
  }
  return seen;
}

void HostKernel::to_host(HostCall& call, c10::IValue& value, const Argument& argument) const {
  if (value.isNone()) return;
  switch (argument.kind) {
    case Kind::kTensor:
      if (value.isTensor()) value = c10::IValue(call.to_host(value.toTensor(), argument.written));
      return;
    case Kind::kTensorList: {
      c10::List<at::Tensor> list;
      list.reserve(value.toListRef().size());
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(call.to_host(item.toTensor(), argument.written));
      }
      value = c10::IValue(std::move(list));
      return;
    }
    case Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isTensor() ? std::optional(call.to_host(item.toTensor())) : std::nullopt);
      }
      value = c10::IValue(std::move(list));
      return;
    }
    case Kind::kDevice:
      if (value.toDevice().is_cuda()) {
        call.use_device(value.toDevice());
        value = c10::IValue(c10::Device(c10::kCPU));
      }
      return;
    case Kind::kPinMemory:
      value = c10::IValue();
      return;
    case Kind::kOther:
      return;
  }
}

void HostKernel::to_cuda(HostCall& call, c10::IValue& value) const {
  if (value.isTensor()) {
    value = c10::IValue(call.to_cuda(value.toTensor()));
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(call.to_cuda(item.toTensor()));
    value = c10::IValue(std::move(list));
  }
}

// While a stream has work pending, a plain block copy keeps its place in the stream's order without blocking the
// host: the kernel that was there before issues just one cudaMemcpyAsync for it.
bool HostKernel::copies_by_runtime(const torch::jit::Stack& stack, size_t base) const {
  if (mixing_ != Mixing::kCopy || !anything_pending() || inside_graph()) return false;
  const at::Tensor &to = stack[base].toTensor(), &from = stack[base + 1].toTensor();
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && is_one_block(to) &&
         is_one_block(from);
}

// a copy between devices follows the work of both
void HostKernel::drain_source(const torch::jit::Stack& stack, size_t base, c10::Device device) const {
  const at::Tensor& from = stack[base + 1].toTensor();
  if (from.is_cuda() && from.device() != device) drain_current_stream(from.device(), name_.c_str());
}

// Some CPU kernels lack types that CUDA kernels take; only the call itself tells.
void HostKernel::run(const c10::OperatorHandle& op, bool narrow, size_t base, torch::jit::Stack* stack) {
  c10::DispatchKeySet keys(host_key_);
  if (!narrow) return op.redispatchBoxed(keys, stack);
  std::vector<c10::IValue> arguments(stack->begin() + static_cast<int64_t>(base), stack->end());
  try {
    op.redispatchBoxed(keys, stack);
  } catch (const c10::Error& error) {
    if (!is_missing_type(error)) throw;
    stack->resize(base);
    run_widened(op, keys, arguments, stack);
  }
}

void HostKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(*runtime().captures != 0) &&
      capture_call(op, stack, [this, op, keys](torch::jit::Stack* given) { (*this)(op, keys, given); })) {
    return;
  }
  size_t base = stack->size() - count_;
  Devices seen = inspect(*stack, base);
  if (C10_UNLIKELY((seen.refused && seen.cuda.has_value()) || copies_by_runtime(*stack, base))) {
    replaced_.callBoxed(op, keys, stack);
    return;
  }
  if (C10_UNLIKELY(alert_.kernel != nullptr)) raise_alert(alert_, &(*stack)[base]);
  HostCall call;
  if (seen.cuda.has_value()) call.use_device(*seen.cuda);
  if (mixing_ == Mixing::kCopy && anything_pending() && !inside_graph()) drain_source(*stack, base, *seen.cuda);
  c10::SmallVector<std::pair<size_t, c10::IValue>, 3> originals;
  for (const auto& argument : arguments_) {
    c10::IValue& value = (*stack)[base + argument.index];
    if (argument.written) originals.emplace_back(argument.index, value);
    to_host(call, value, argument);
  }
  call.enter(name_.c_str());
  std::optional<DefaultGeneratorSwap> swap;
  if (seeded_) {
    std::optional<at::Generator> given;
    if (generator_ >= 0) given = (*stack)[base + generator_].toOptional<at::Generator>();
    RandomState state = next_random_state(given, call.device());
    if (generator_ >= 0) {
      (*stack)[base + generator_] = c10::IValue(host_generator(state));
    } else {
      swap.emplace(state);
    }
  }
  run(op, seen.narrow, base, stack);
  swap.reset();
  call.leave();
  size_t first = stack->size() - returned_.size();
  for (size_t i = 0; i < returned_.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (returned_[i] < 0) {
      to_cuda(call, value);
      continue;
    }
    for (auto& original : originals) {
      if (original.first == static_cast<size_t>(returned_[i])) value = original.second;
    }
  }
}

}  // namespace fakegpu::torchhost
