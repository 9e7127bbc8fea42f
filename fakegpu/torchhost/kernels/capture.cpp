#include "capture.h"

#include <ATen/Operators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/empty_cuda_dispatch.h>
#include <ATen/ops/empty_strided_cuda_dispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "host_call.h"

namespace fakegpu::torchhost {
namespace {

struct CapturedRandom {
  const int64_t *seed, *offset;  // the generator's, filled before each launch
  uint64_t within;               // of this call inside the graph

  RandomState now() const { return {static_cast<uint64_t>(*seed), static_cast<uint64_t>(*offset) + within}; }
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakStorage weak(const c10::Storage& storage) {
  return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()));
}

// What one capture has to put back, and which storages are its own. It owns none of them: what the program lets go
// goes back to the graph's pool at once, for later operators of the same capture. A weak reference still keeps the
// address of a StorageImpl from being another's.
class Capture {
 public:
  void made(const at::Tensor& tensor) {
    if (!tensor.is_cuda() || !tensor.has_storage()) return;
    const c10::Storage& storage = tensor.storage();
    if (!own_.emplace(storage.unsafeGetStorageImpl(), weak(storage)).second || storage.nbytes() == 0) return;
    pool_.insert(device_allocation(storage.data()));
  }

  // Before an operator runs: what it is given from outside, and what of that it will write.
  void takes(const at::Tensor& tensor, bool written) {
    if (!tensor.has_storage()) return;
    const c10::Storage& storage = tensor.storage();
    const auto* key = storage.unsafeGetStorageImpl();
    if (own_.count(key) != 0 || (!written && !tensor.is_cuda())) return;
    auto [found, is_new] =
        outside_.try_emplace(key, Outside{weak(storage), const_cast<void*>(storage.data()), storage.nbytes(), {}});
    if (written && !found->second.content) found->second.save();
  }

  // Inputs that the program has let go may lie where the next result will be, but the first launch reads them there.
  void save_freed() {
    for (auto& entry : outside_) {
      Outside& one = entry.second;
      if (one.content || !one.storage.expired()) continue;
      if (device_allocation(one.data) == nullptr) one.bytes = 0;
      one.save();
    }
  }

  void restore() {
    for (auto& entry : outside_) {
      const Outside& one = entry.second;
      if (!one.content) continue;
      auto storage = one.storage.lock();
      bool there = storage ? storage->data() == one.data && storage->nbytes() >= one.bytes
                           : pool_.count(device_allocation(one.data)) != 0;
      if (there) std::memcpy(one.data, one.content->data(), one.bytes);
    }
  }

 private:
  struct Outside {
    WeakStorage storage;
    void* data;
    size_t bytes;
    std::optional<std::string> content;

    void save() { content.emplace(static_cast<const char*>(data), bytes); }
  };
  std::unordered_map<const c10::StorageImpl*, WeakStorage> own_;
  std::unordered_set<const void*> pool_;  // allocations with something of its own in them
  std::unordered_map<const c10::StorageImpl*, Outside> outside_;
};

std::mutex g_lock;
std::unordered_map<void*, std::unique_ptr<Capture>> g_captures;  // by graph

thread_local bool t_inside = false;
thread_local std::vector<CapturedRandom>* t_recording = nullptr;
thread_local const std::vector<CapturedRandom>* t_replaying = nullptr;
thread_local size_t t_next_random = 0;

struct Inside {
  Inside() { t_inside = true; }
  ~Inside() {
    t_inside = false;
    t_recording = nullptr;
    t_replaying = nullptr;
  }
};

void end_capture(void* graph) {
  std::unique_ptr<Capture> capture;
  {
    std::lock_guard<std::mutex> guard(g_lock);
    auto found = g_captures.find(graph);
    if (found == g_captures.end()) return;
    capture = std::move(found->second);
    g_captures.erase(found);
  }
  capture->restore();
}

Capture& capture_of(void* graph) {
  std::lock_guard<std::mutex> guard(g_lock);
  auto& slot = g_captures[graph];
  if (!slot) {
    slot = std::make_unique<Capture>();
    TORCH_CHECK(runtime().capture_at_end(graph, end_capture, graph) == 0, runtime().last_error());
  }
  return *slot;
}

// The arguments and results of one node: metadata and addresses, as in a CUDA graph. The memory stays the program's,
// or goes back to the graph's pool; only what lies on the host is held.
class Keeper {
 public:
  // A scalar on the host goes into a kernel by value, unless the operator names its memory: a copy, or a write.
  c10::IValue keep(const c10::IValue& value, bool by_value = true) {
    if (value.isTensor()) return c10::IValue(alias(value.toTensor(), by_value));
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back(alias(item.toTensor(), by_value));
      return c10::IValue(std::move(list));
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isTensor() ? std::optional(alias(item.toTensor(), by_value)) : std::nullopt);
      }
      return c10::IValue(std::move(list));
    }
    return value.isList() ? value.deepcopy() : value;
  }

 private:
  at::Tensor alias(const at::Tensor& tensor, bool by_value) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().is_cpu()) return by_value && tensor.dim() == 0 ? tensor.detach().clone() : tensor.detach();
    auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), false);
    if (impl->has_storage()) impl->set_storage_keep_dtype(borrow(impl->unsafe_storage()));
    return at::Tensor(std::move(impl));
  }

  c10::Storage borrow(const c10::Storage& storage) {
    const auto* key = storage.unsafeGetStorageImpl();
    auto found = borrowed_.find(key);
    if (found != borrowed_.end() && found->second.data() == storage.data()) return found->second;
    c10::Storage made(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
        c10::DataPtr(const_cast<void*>(storage.data()), storage.device()), c10::GetAllocator(c10::kCUDA), true));
    borrowed_.insert_or_assign(key, made);
    return made;
  }

  std::unordered_map<const c10::StorageImpl*, c10::Storage> borrowed_;
};

template <typename F>
void each_tensor(const c10::IValue& value, F&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

bool is_written(const c10::Argument& argument) {
  // batch norms change their running statistics without saying so
  return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
         argument.name().rfind("running_", 0) == 0;
}

void copy_result(const at::Tensor& to, const at::Tensor& from) {
  if (!to.defined() || !from.defined() || !to.is_cuda() || to.data_ptr() == from.data_ptr()) return;
  TORCH_CHECK(to.sizes() == from.sizes(), "a launch made a result of shape ", from.sizes(), " where the capture had ",
              to.sizes());
  HostCall call;
  at::Tensor host_to = call.to_host(to), host_from = call.to_host(from);
  c10::impl::ExcludeDispatchKeyGuard keys(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  host_to.copy_(host_from);
}

struct Node {
  c10::OperatorHandle op;
  BoxedCall kernel;
  std::vector<c10::IValue> arguments, results;
  std::vector<CapturedRandom> randoms;
  c10::Device device;
};

// The program may have freed memory that the capture used; a GPU would compute with whatever is there now.
void check_mapped(const c10::IValue& value) {
  each_tensor(value, [](const at::Tensor& tensor) {
    if (!tensor.is_cuda() || !tensor.has_storage() || tensor.storage().nbytes() == 0) return;
    TORCH_CHECK(is_device_memory(tensor.storage().data()), "illegal memory access: memory of a tensor of shape ",
                tensor.sizes(), " was freed after the capture");
  });
}

int run_node(void* argument) {
  auto* node = static_cast<Node*>(argument);
  try {
    Inside inside;
    t_replaying = &node->randoms;
    t_next_random = 0;
    c10::DeviceGuard device(node->device);
    c10::impl::ExcludeDispatchKeyGuard keys(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    torch::jit::Stack stack;
    for (const auto& value : node->arguments) {
      check_mapped(value);
      stack.push_back(value);
    }
    node->kernel(&stack);
    for (size_t i = 0; i < node->results.size(); ++i) {
      std::vector<at::Tensor> to, from;
      check_mapped(node->results[i]);
      each_tensor(node->results[i], [&](const at::Tensor& tensor) { to.push_back(tensor); });
      each_tensor(stack[i], [&](const at::Tensor& tensor) { from.push_back(tensor); });
      TORCH_CHECK(node->results[i].isNone() || to.size() == from.size(), "a launch made ", from.size(),
                  " results where the capture had ", to.size());
      for (size_t j = 0; j < to.size(); ++j) copy_result(to[j], from[j]);
    }
    return 0;
  } catch (const std::exception& error) {
    return runtime().set_error(1719, "%s in a graph's launch: %.600s", node->op.schema().name().c_str(), error.what());
  }
}

void drop_node(void* argument) {
  delete static_cast<Node*>(argument);
}

[[noreturn]] void refuse(void* graph, const std::string& what) {
  runtime().capture_invalidate(graph);
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (fakegpu: ", what, ")");
}

// An operator with the tag has a fixed shape when it is told the size, or indexes without a mask.
bool has_dynamic_shape(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t base) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  const auto& arguments = op.schema().arguments();
  bool masked = op.schema().name() != "aten::index";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (arguments[i].name() == "output_size" && !value.isNone()) return false;
    if (arguments[i].name() == "indices") {
      each_tensor(value, [&](const at::Tensor& index) {
        masked = masked || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
      });
    }
  }
  return masked;
}

void check_capturable(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t base, void* graph) {
  const auto& name = op.schema().name();
  if (has_dynamic_shape(op, stack, base)) refuse(graph, name + " has a result whose shape depends on values");
  if (name != "aten::copy_") return;
  const at::Tensor &to = stack[base].toTensor(), &from = stack[base + 1].toTensor();
  bool crosses = to.device().type() != from.device().type();
  if (crosses && !stack[base + 2].toBool()) refuse(graph, "a copy between host and device that waits");
}

c10::Device device_of(const torch::jit::Stack& stack, size_t base) {
  for (size_t i = base; i < stack.size(); ++i) {
    std::optional<c10::Device> found;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!found && tensor.is_cuda()) found = tensor.device();
    });
    if (found) return *found;
    if (stack[i].isDevice() && stack[i].toDevice().is_cuda() && stack[i].toDevice().has_index()) return stack[i].toDevice();
  }
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}

class CapturingKernel final : public c10::OperatorKernel {
 public:
  explicit CapturingKernel(c10::KernelFunction inner) : inner_(std::move(inner)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    BoxedCall call = [this, op, keys](torch::jit::Stack* given) { inner_.callBoxed(op, keys, given); };
    if (!captured(op, stack, call)) call(stack);
  }

 private:
  c10::KernelFunction inner_;
};

}  // namespace

bool inside_graph() {
  return t_inside;
}

bool capture_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, const BoxedCall& kernel) {
  if (t_inside) return false;
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), base = stack->size() - count;
  c10::Device device = device_of(*stack, base);
  c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  void* graph = runtime().capture_of(device.index(), cuda.getStreamNativeHandle(cuda.getStream(device)));
  if (graph == nullptr) return false;
  check_capturable(op, *stack, base, graph);
  Capture& capture = capture_of(graph);
  capture.save_freed();
  bool copies = schema.name() == "aten::copy_";
  auto node = std::make_unique<Node>(Node{op, kernel, {}, {}, {}, device});
  Keeper keeper;
  std::vector<std::pair<size_t, c10::IValue>> outputs;
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = (*stack)[base + i];
    bool written = is_written(schema.arguments()[i]);
    each_tensor(value, [&](const at::Tensor& tensor) { capture.takes(tensor, written); });
    node->arguments.push_back(keeper.keep(value, !written && !copies));
    if (written) outputs.emplace_back(i, value);
  }
  {
    Inside inside;
    t_recording = &node->randoms;
    kernel(stack);
  }
  // the kernel may have given an output its size and memory
  for (const auto& [i, value] : outputs) node->arguments[i] = keeper.keep(value, false);
  size_t first = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const auto* info = schema.returns()[i].alias_info();
    const c10::IValue& value = (*stack)[first + i];
    bool is_argument = info != nullptr && info->isWrite();
    node->results.push_back(is_argument ? c10::IValue() : keeper.keep(value));
    if (!is_argument) each_tensor(value, [&](const at::Tensor& tensor) { capture.made(tensor); });
  }
  static const GraphNode kNode = {run_node, drop_node, "operator", false};
  if (runtime().capture_add(graph, nullptr, &kNode, node.get()) != 0) TORCH_CHECK(false, "CUDA error: ", runtime().last_error());
  node.release();
  return true;
}

at::Tensor fresh(at::Tensor made) {
  if (C10_LIKELY(*runtime().captures == 0) || t_inside) return made;
  c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  auto device = made.device();
  void* graph = runtime().capture_of(device.index(), cuda.getStreamNativeHandle(cuda.getStream(device)));
  if (graph != nullptr) capture_of(graph).made(made);
  return made;
}

std::optional<RandomState> captured_random_state(const at::Generator& generator, uint64_t increment) {
  if (t_replaying != nullptr) {
    TORCH_CHECK(t_next_random < t_replaying->size(), "a launch draws more random numbers than the capture did");
    return (*t_replaying)[t_next_random++].now();
  }
  if (t_recording == nullptr) return std::nullopt;
  auto* impl = static_cast<at::CUDAGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  at::PhiloxCudaState state = impl->philox_cuda_state(increment);
  TORCH_CHECK(state.captured_, "a random operator is captured with a generator that is not registered with the graph");
  t_recording->push_back({state.seed_.ptr, state.offset_.ptr, state.offset_intragraph_});
  return t_recording->back().now();
}

std::unique_ptr<torch::Library> install_capturing(const std::vector<std::string>& names) {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : names) {
    size_t dot = name.find('.');
    auto op = dispatcher.findSchema({"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!op.has_value()) continue;
    auto inner = op->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA).kernelFunction();
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CapturingKernel>(inner)));
  }
  library->impl("empty.memory_format", [](at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                          std::optional<at::Layout> layout, std::optional<at::Device> device,
                                          std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
    return fresh(at::cuda::empty(size, dtype, layout, device, pinned, format));
  });
  library->impl("empty_strided", [](at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                                    std::optional<at::Layout> layout, std::optional<at::Device> device,
                                    std::optional<bool> pinned) {
    return fresh(at::cuda::empty_strided(size, stride, dtype, layout, device, pinned));
  });
  return library;
}

}  // namespace fakegpu::torchhost
