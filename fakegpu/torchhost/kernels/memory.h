/* Device memory for results that CPU kernels allocate: while an AdoptionScope is open on a thread, torch's CPU
 * allocator takes its blocks from the CUDA caching allocator, so that a result becomes a CUDA tensor without a copy
 * and torch.cuda.memory_allocated() counts it. */
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace fakegpu::torchhost {

/* Replaces torch's CPU allocator by one that adopts; once per process. */
void install_adopting_allocator();

class AdoptionScope {
 public:
  explicit AdoptionScope(c10::DeviceIndex device);
  ~AdoptionScope();
  AdoptionScope(const AdoptionScope&) = delete;
  AdoptionScope& operator=(const AdoptionScope&) = delete;

 private:
  int previous_;
};

/* A host storage over the bytes of a CUDA storage, which it keeps alive. Resizing it takes device memory. */
c10::Storage alias_storage(const c10::Storage& cuda);

/* Moves (or, for memory that is not the device's, copies) the bytes of a host storage to a data pointer on `device`. */
c10::DataPtr take_data(c10::StorageImpl& host, c10::Device device);

}  // namespace fakegpu::torchhost
