#include "runtime.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace fakegpu::torchhost {
namespace {

constexpr int kMemoryDevice = 2;   // fg_memory_kind_t
constexpr int kMemoryManaged = 3;
Runtime g_runtime;

template <typename T>
bool find(const char* name, T* out) {
  *out = reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name));
  return *out != nullptr;
}

// The runtime keeps the name until it is ended; ending must happen on errors too.
struct OperatorName {
  explicit OperatorName(const char* name) { g_runtime.host_operator(name); }
  ~OperatorName() { g_runtime.host_operator(nullptr); }
};

}  // namespace

std::string load_runtime() {
  if (!find("fg_rt_pending", &g_runtime.pending)) return "fg_rt_pending";
  if (!find("fg_rt_stream_drain", &g_runtime.stream_drain)) return "fg_rt_stream_drain";
  if (!find("fg_rt_memory_kind", &g_runtime.memory_kind)) return "fg_rt_memory_kind";
  if (!find("fg_rt_memory_lookup", &g_runtime.memory_lookup)) return "fg_rt_memory_lookup";
  if (!find("fg_rt_host_operator", &g_runtime.host_operator)) return "fg_rt_host_operator";
  if (!find("fg_rt_last_error", &g_runtime.last_error)) return "fg_rt_last_error";
  if (!find("fg_rt_set_error", &g_runtime.set_error)) return "fg_rt_set_error";
  if (!find("fg_rt_captures", &g_runtime.captures)) return "fg_rt_captures";
  if (!find("fg_rt_capture_of", &g_runtime.capture_of)) return "fg_rt_capture_of";
  if (!find("fg_rt_capture_add", &g_runtime.capture_add)) return "fg_rt_capture_add";
  if (!find("fg_rt_capture_at_end", &g_runtime.capture_at_end)) return "fg_rt_capture_at_end";
  if (!find("fg_rt_capture_invalidate", &g_runtime.capture_invalidate)) return "fg_rt_capture_invalidate";
  return {};
}

const Runtime& runtime() {
  return g_runtime;
}

void drain_current_stream(c10::Device device, const char* operation) {
  c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  void* stream = cuda.getStreamNativeHandle(cuda.getStream(device));
  OperatorName name(operation);
  int status = g_runtime.stream_drain(device.index(), stream);
  TORCH_CHECK(status == 0, operation, " on ", device, ": ", g_runtime.last_error());
}

bool is_device_memory(const void* pointer) {
  int kind = g_runtime.memory_kind(pointer);
  return kind == kMemoryDevice || kind == kMemoryManaged;
}

const void* device_allocation(const void* pointer) {
  MemoryInfo info{};
  bool known = g_runtime.memory_lookup(pointer, &info) == 0;
  return known && (info.kind == kMemoryDevice || info.kind == kMemoryManaged) ? info.base : nullptr;
}

}  // namespace fakegpu::torchhost
