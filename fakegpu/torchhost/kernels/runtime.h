/* The few calls into libfakegpu_rt that kernels need, found in the process by name: no link-time dependency, so the
 * kernels build without the native libraries. Owned by install.cpp (load), used by every kernel. */
#pragma once
#include <c10/core/Device.h>
#include <string>

namespace fakegpu::torchhost {

struct GraphNode {  // fg_graph_node_t
  int (*run)(void* argument);
  void (*drop)(void* argument);
  const char* name;
  bool waits;
};

struct MemoryInfo {  // fg_memory_info_t
  int kind, device;
  void* base;
  uint64_t bytes;
  int fd;
  uint64_t inode, offset;
};

struct Runtime {
  const volatile int* pending = nullptr;  // unfinished asynchronous items in the process
  int (*stream_drain)(int device, const void* stream) = nullptr;
  int (*memory_kind)(const void* pointer) = nullptr;
  int (*memory_lookup)(const void* pointer, MemoryInfo* out) = nullptr;
  void (*host_operator)(const char* name) = nullptr;  // nests; nullptr ends
  const char* (*last_error)() = nullptr;              // of the calling thread
  int (*set_error)(int status, const char* format, ...) = nullptr;
  const volatile int* captures = nullptr;             // CUDA graphs being captured in the process
  void* (*capture_of)(int device, const void* stream) = nullptr;  // the stream's graph, or NULL
  int (*capture_add)(void* graph, void* stream, const GraphNode* node, void* argument) = nullptr;
  int (*capture_at_end)(void* graph, void (*fn)(void*), void* argument) = nullptr;
  void (*capture_invalidate)(void* graph) = nullptr;
};

/* Finds the runtime; returns the name of the first missing symbol, or an empty string. */
std::string load_runtime();
const Runtime& runtime();

inline bool anything_pending() {
  return *runtime().pending != 0;
}

/* Waits until everything before this point on the device's current stream has finished. `operation` appears in the
 * text of a time-out. */
void drain_current_stream(c10::Device device, const char* operation);

/* True when memory belongs to a fake device (and so must go back to the CUDA caching allocator). */
bool is_device_memory(const void* pointer);

/* Start of the live device allocation around an address, or nullptr. */
const void* device_allocation(const void* pointer);

}  // namespace fakegpu::torchhost
