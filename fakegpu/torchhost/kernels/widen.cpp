#include "widen.h"

#include <string_view>

namespace fakegpu::torchhost {
namespace {

at::ScalarType wider(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kComplexHalf:
      return at::kComplexFloat;
    case at::kBool:
      return at::kByte;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return at::kDouble;
    default:
      return type;
  }
}

struct Widening {
  at::ScalarType narrow = at::kFloat, wide = at::kFloat;  // of the first tensor that was widened

  // indices and masks keep their type beside a floating tensor
  at::Tensor widen(const at::Tensor& tensor) {
    if (!tensor.defined() || !has_wider_type(tensor.scalar_type())) return tensor;
    if (narrow == wide) {
      narrow = tensor.scalar_type();
      wide = wider(narrow);
    }
    return tensor.scalar_type() == narrow ? tensor.to(wide) : tensor;
  }

  at::Tensor narrowed(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    if (tensor.scalar_type() == wide) return tensor.to(narrow);
    // a transform of half precision gives complex half, and back
    if (narrow == at::kHalf && tensor.scalar_type() == at::kComplexFloat) return tensor.to(at::kComplexHalf);
    if (narrow == at::kComplexHalf && tensor.scalar_type() == at::kFloat) return tensor.to(at::kHalf);
    return tensor;
  }

  c10::IValue widen(const c10::IValue& value) {
    if (value.isTensor()) return widen(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(widen(item.toTensor()));
    return list;
  }

  c10::IValue narrowed(const c10::IValue& value) const {
    if (value.isTensor()) return narrowed(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(narrowed(item.toTensor()));
    return list;
  }
};

void store(const at::Tensor& target, const at::Tensor& wide) {
  if (target.sizes() != wide.sizes()) target.resize_(wide.sizes());
  target.copy_(wide);
}

void store(const c10::IValue& target, const c10::IValue& wide) {
  if (target.isTensor() && target.toTensor().defined()) {
    store(target.toTensor(), wide.toTensor());
  } else if (target.isTensorList()) {
    auto targets = target.toTensorVector(), results = wide.toTensorVector();
    for (size_t i = 0; i < targets.size(); ++i) store(targets[i], results[i]);
  }
}

}  // namespace

bool has_wider_type(at::ScalarType type) {
  return wider(type) != type;
}

bool is_missing_type(const c10::Error& error) {
  std::string_view text = error.what_without_backtrace();
  return text.find("not implemented for '") != text.npos || text.find("doesn't support tensors of type") != text.npos ||
         text.find("Expected self to be a floating-point") != text.npos;
}

void run_widened(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const std::vector<c10::IValue>& arguments,
                 torch::jit::Stack* stack) {
  Widening types;
  std::vector<c10::IValue> wide;
  for (const auto& argument : arguments) wide.push_back(types.widen(argument));
  for (const auto& argument : wide) stack->push_back(argument);
  op.redispatchBoxed(keys, stack);
  const auto& schema = op.schema();
  for (size_t i = 0; i < wide.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) store(arguments[i], wide[i]);
  }
  size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = types.narrowed((*stack)[i]);
}

}  // namespace fakegpu::torchhost
