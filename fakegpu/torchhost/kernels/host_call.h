/* One operator call on host memory: CPU tensors over the bytes of its CUDA tensors, and the way back. Kernels make
 * one, alias their inputs, enter(), run CPU code, leave(), and convert the results. An error at any point restores
 * the thread's state through the destructors. */
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <optional>
#include <unordered_map>

#include "memory.h"

namespace fakegpu::torchhost {

class HostCall {
 public:
  HostCall() = default;
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  /* The CPU twin of a tensor of any layout; a CPU or undefined tensor is returned as it is. A written tensor's
   * changed sizes, strides and storage are copied back by leave(). */
  at::Tensor to_host(const at::Tensor& tensor, bool written = false);
  /* The CUDA tensor for a result: on the storage of the input it shares, or on its own, adopted. */
  at::Tensor to_cuda(const at::Tensor& result);

  void use_device(c10::Device device);
  bool has_device() const { return device_.has_value(); }
  c10::Device device() const { return *device_; }

  /* Waits for the current stream, then makes the calling thread run CPU code for device(). */
  void enter(const char* operation);
  /* Ends what enter() began and writes back what the CPU code did to written tensors. */
  void leave();

 private:
  struct Shared {
    c10::Storage cuda, host;
    const void* data;  // where the bytes were when the call began
    bool fresh;        // made for a result of this call
  };
  struct Written {
    at::Tensor cuda, host;
  };

  Shared* find_cuda(const c10::StorageImpl* storage);
  Shared* find_host(const c10::StorageImpl* storage);
  c10::Storage host_storage(const c10::Storage& cuda);
  c10::Storage cuda_storage(const c10::Storage& host);
  void write_back(const Written& pair);
  void write_back_storage(const c10::Storage& host);

  at::Tensor sparse_to_host(const at::Tensor& tensor);
  at::Tensor sparse_to_cuda(const at::Tensor& tensor);
  at::Tensor compressed_to_host(const at::Tensor& tensor);
  at::Tensor compressed_to_cuda(const at::Tensor& tensor);
  at::Tensor nested_on(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey backend);
  at::Tensor quantized_on(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key, bool to_host);
  void write_back_members(const Written& pair);

  std::optional<c10::Device> device_;
  c10::SmallVector<Shared, 8> shared_;
  c10::SmallVector<Written, 4> written_;
  std::unordered_map<const c10::StorageImpl*, size_t> index_;  // of shared_ by CUDA storage, once it is long
  std::optional<c10::DeviceGuard> device_guard_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> keys_;
  std::optional<AdoptionScope> adoption_;
};

}  // namespace fakegpu::torchhost
