/* Operators inside a CUDA graph. While a stream captures, an operator runs once, so that its result exists and what
 * follows computes with real values, and is kept with its arguments; every launch runs it again on the same memory
 * and copies its results to the captured addresses. What it wrote outside the capture is put back when the capture
 * ends: capturing changes nothing, as on a GPU. */
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "random.h"
#include "runtime.h"

namespace fakegpu::torchhost {

using BoxedCall = std::function<void(torch::jit::Stack*)>;

/* True while this thread runs an operator for a graph: it must not look at its stream. */
bool inside_graph();

/* Captures the call if the current stream of its device captures; false: it goes its normal way. `kernel` has to stay
 * valid for ever (kernels are never unregistered). */
bool capture_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, const BoxedCall& kernel);

inline bool captured(const c10::OperatorHandle& op, torch::jit::Stack* stack, const BoxedCall& kernel) {
  return *runtime().captures != 0 && capture_call(op, stack, kernel);
}

/* The state that a random operator inside a graph draws from; empty outside. */
std::optional<RandomState> captured_random_state(const at::Generator& generator, uint64_t increment);

/* Registers capturing kernels over those that are there for the named operators, and over torch's two that only
 * allocate: what they give during a capture belongs to it. */
std::unique_ptr<torch::Library> install_capturing(const std::vector<std::string>& names);

}  // namespace fakegpu::torchhost
