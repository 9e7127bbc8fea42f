#include "memory.h"

#include <c10/core/Allocator.h>
#include <cstring>

#include "runtime.h"

namespace fakegpu::torchhost {
namespace {

constexpr int kOff = -1;
constexpr uint8_t kAllocatorPriority = 200;  // above torch's own and the profiler's
thread_local int t_adopting_device = kOff;
c10::Allocator* g_host_allocator = nullptr;
c10::DeleterFnPtr g_host_deleter = nullptr;

// mkldnn frees by raw pointer what it allocated through us, perhaps long ago and on another thread
void delete_either(void* pointer) {
  if (is_device_memory(pointer)) {
    c10::GetAllocator(c10::kCUDA)->raw_deleter()(pointer);
  } else {
    g_host_deleter(pointer);
  }
}

class AdoptingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (t_adopting_device == kOff || bytes == 0) return g_host_allocator->allocate(bytes);
    // the CUDA allocator may itself use host memory
    struct Pause {
      int device = t_adopting_device;
      Pause() { t_adopting_device = kOff; }
      ~Pause() { t_adopting_device = device; }
    } pause;
    c10::DataPtr block = c10::GetAllocator(c10::kCUDA)->allocate(bytes);
    block.unsafe_set_device(c10::Device(c10::kCPU));
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_either; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }
};

AdoptingAllocator* g_adopting = nullptr;

void release_storage(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::intrusive_ptr_target*>(static_cast<c10::StorageImpl*>(storage)));
}

}  // namespace

void install_adopting_allocator() {
  g_host_allocator = c10::GetAllocator(c10::kCPU);
  g_host_deleter = g_host_allocator->raw_deleter();
  g_adopting = new AdoptingAllocator;  // lives as long as any storage: never freed
  c10::SetAllocator(c10::kCPU, g_adopting, kAllocatorPriority);
}

AdoptionScope::AdoptionScope(c10::DeviceIndex device) : previous_(t_adopting_device) {
  t_adopting_device = device;
}

AdoptionScope::~AdoptionScope() {
  t_adopting_device = previous_;
}

c10::Storage alias_storage(const c10::Storage& cuda) {
  c10::StorageImpl* impl = cuda.unsafeGetStorageImpl();
  void* bytes = impl->mutable_data();
  c10::raw::intrusive_ptr::incref(impl);
  c10::DataPtr data(bytes, impl, &release_storage, c10::Device(c10::kCPU));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), impl->nbytes(), std::move(data), g_adopting, /*resizable=*/true));
}

c10::DataPtr take_data(c10::StorageImpl& host, c10::Device device) {
  size_t bytes = host.nbytes();
  if (bytes == 0) return c10::DataPtr(nullptr, device);
  auto* allocator = c10::GetAllocator(c10::kCUDA);
  if (host.data_ptr().get_deleter() == allocator->raw_deleter()) {
    c10::DataPtr block = host.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    block.unsafe_set_device(device);
    return block;
  }
  // allocated on a worker thread or by a library: the bytes must move
  c10::DataPtr block = allocator->allocate(bytes);
  std::memcpy(block.get(), host.data(), bytes);
  return block;
}

}  // namespace fakegpu::torchhost
