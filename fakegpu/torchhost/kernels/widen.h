/* Types that CUDA kernels take and torch's CPU kernels do not: such a call is run on wider copies of its tensors and
 * the results are narrowed again. Half and bfloat16 become float, complex half complex float, bool and integers the
 * next type that CPU kernels know. */
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <vector>

namespace fakegpu::torchhost {

/* Whether a tensor of this type may meet a CPU kernel that lacks it. */
bool has_wider_type(at::ScalarType type);

/* Whether the error says that a CPU kernel lacks the type. */
bool is_missing_type(const c10::Error& error);

/* Runs `op` on wide copies of `arguments` (host tensors); leaves narrow results on the stack. Written arguments get
 * the narrowed values, resized where the operator resized them. */
void run_widened(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const std::vector<c10::IValue>& arguments,
                 torch::jit::Stack* stack);

}  // namespace fakegpu::torchhost
