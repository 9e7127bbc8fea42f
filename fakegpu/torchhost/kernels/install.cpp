// Chooses the operators that get host kernels and registers them. Entry points for loader.py (ctypes).
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <string_view>
#include <unordered_set>

#include "boxed.h"
#include "capture.h"
#include "memory.h"
#include "operator_table.h"
#include "refusal.h"
#include "runtime.h"
#include "special.h"

namespace fakegpu::torchhost {
namespace {

struct Backend {
  c10::DispatchKey cuda, host;
};
constexpr Backend kBackends[] = {
    {c10::DispatchKey::CUDA, c10::DispatchKey::CPU},
    {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCPU},
    {c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::SparseCsrCPU},
    {c10::DispatchKey::NestedTensorCUDA, c10::DispatchKey::NestedTensorCPU},
    {c10::DispatchKey::QuantizedCUDA, c10::DispatchKey::QuantizedCPU},
};

// These handle memory and metadata only, or ask about the device: torch's CUDA kernels do it on host memory too.
const std::unordered_set<std::string_view> kKept = {
    "_local_scalar_dense", "record_stream", "is_pinned", "_pin_memory", "resize_", "resize_as_", "set_", "set_data",
    "is_set_to", "_has_same_storage_numel", "_efficientzerotensor", "_fw_primal", "_make_dual", "_backward",
    "_fused_sdp_choice", "_lazy_clone", "_has_compatible_shallow_copy_type",
    // sparse metadata
    "_nnz", "_dimI", "_dimV", "sparse_dim", "dense_dim", "is_coalesced", "_coalesced_", "sparse_resize_",
    "sparse_resize_and_clear_", "resize_as_sparse_", "is_same_size",
    // nested metadata, on the CPU by design
    "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets", "_is_any_true",
    // quantizer metadata
    "q_scale", "q_zero_point", "q_per_channel_axis", "qscheme", "q_per_channel_scales", "q_per_channel_zero_points"};

// Composite operators that only allocate: their allocation must stay on the device.
constexpr std::string_view kFactories[] = {"empty", "new_", "full_like", "zeros_like", "ones_like", "rand"};

std::vector<std::unique_ptr<torch::Library>> g_libraries;

struct QuietWarnings final : c10::WarningHandler {  // "Overriding a previously registered kernel", 2,000 times
  void process(const c10::Warning&) override {}
};

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool has_argument_of(const c10::FunctionSchema& schema, const char* type) {
  for (const auto& argument : schema.arguments()) {
    if (argument.type()->str().find(type) != std::string::npos) return true;
  }
  return false;
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// A composite operator may launch CUDA kernels through torch's DispatchStubs (copy_ does), so it is run on host whole.
bool composite_needs_host(const c10::FunctionSchema& schema, std::string_view base) {
  if (!has_argument_of(schema, "Tensor") || has_argument_of(schema, "Device")) return false;
  for (auto prefix : kFactories) {
    if (starts_with(base, prefix)) return false;
  }
  return true;
}

bool wanted(const c10::OperatorHandle& op, std::string_view base, const Backend& backend) {
  const auto& schema = op.schema();
  if (kKept.count(base) != 0 || returns_view(schema)) return false;
  bool dense = backend.cuda == c10::DispatchKey::CUDA;
  bool composite = dense && is_composite(op);
  if (op.hasKernelForDispatchKey(backend.cuda)) {
    if (starts_with(base, "empty") || (!dense && has_argument_of(schema, "Device"))) return false;
    return composite || op.hasKernelForDispatchKey(backend.host);
  }
  return composite && composite_needs_host(schema, base);
}

Mixing mixing_of(const std::string& name, std::string_view base, bool has_cuda_kernel) {
  if (base == "copy_") return Mixing::kCopy;
  if (!has_cuda_kernel) return Mixing::kNone;  // the composite itself decides
  if (operator_table().unchecked_devices.count(name) == 0) return Mixing::kNone;
  return base.find("index") != std::string_view::npos ? Mixing::kIndices : Mixing::kScalars;
}

int install_backend(const Backend& backend) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", backend.cuda, __FILE__, __LINE__);
  int count = 0;
  for (const auto& op_name : dispatcher.getAllOpNames()) {
    if (!starts_with(op_name.name, "aten::")) continue;
    auto op = dispatcher.findSchema(op_name);
    if (!op.has_value()) continue;
    std::string name = op_name.name.substr(6);
    const std::string base = name;
    if (!op_name.overload_name.empty()) name += "." + op_name.overload_name;
    if (!wanted(*op, base, backend)) continue;
    bool own_kernel = op->hasKernelForDispatchKey(backend.cuda);
    auto replaced = op->getComputedKernelForDispatchKey(backend.cuda).kernelFunction();
    bool seeded = op->hasTag(at::Tag::nondeterministic_seeded);
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(
                                    op->schema(), backend.host, mixing_of(name, base, own_kernel), seeded, replaced)));
    ++count;
  }
  g_libraries.push_back(std::move(library));
  return count;
}

int install_refusals() {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto& [name, reason] : operator_table().refused) {
    size_t dot = name.find('.');
    std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    if (!dispatcher.findSchema({"aten::" + name.substr(0, dot), overload}).has_value()) continue;
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusal>(reason)));
    ++count;
  }
  g_libraries.push_back(std::move(library));
  return count;
}

thread_local std::string t_error;

}  // namespace
}  // namespace fakegpu::torchhost

/* Registers everything; the number of operators, or -1 with fakegpu_torchhost_error() set. Call once, with the GIL. */
extern "C" __attribute__((visibility("default"))) int fakegpu_torchhost_install(void) {
  using namespace fakegpu::torchhost;
  try {
    std::string missing = load_runtime();
    TORCH_CHECK(missing.empty(), "symbol ", missing, " is not in this process: libfakegpu_rt.so is not preloaded");
    QuietWarnings quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    install_adopting_allocator();
    int count = 0;
    for (const auto& backend : kBackends) count += install_backend(backend);
    count += install_refusals();
    g_libraries.push_back(install_special_kernels());
    g_libraries.push_back(install_capturing(special_kernels()));
    return count;
  } catch (const std::exception& error) {
    t_error = error.what();
    return -1;
  }
}

extern "C" __attribute__((visibility("default"))) const char* fakegpu_torchhost_error(void) {
  return fakegpu::torchhost::t_error.c_str();
}
