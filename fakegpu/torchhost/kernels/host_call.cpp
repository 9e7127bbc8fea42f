#include "host_call.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "capture.h"
#include "runtime.h"

namespace fakegpu::torchhost {
namespace {

constexpr size_t kLinearSearch = 24;  // foreach lists are longer and get an index

bool is_strided(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided;
}

at::Tensor strided_on(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

}  // namespace

HostCall::Shared* HostCall::find_cuda(const c10::StorageImpl* storage) {
  if (shared_.size() <= kLinearSearch) {
    for (auto& entry : shared_) {
      if (entry.cuda.unsafeGetStorageImpl() == storage) return &entry;
    }
    return nullptr;
  }
  for (size_t i = index_.size(); i < shared_.size(); ++i) index_.emplace(shared_[i].cuda.unsafeGetStorageImpl(), i);
  auto found = index_.find(storage);
  return found == index_.end() ? nullptr : &shared_[found->second];
}

HostCall::Shared* HostCall::find_host(const c10::StorageImpl* storage) {
  for (auto& entry : shared_) {
    if (entry.host.unsafeGetStorageImpl() == storage) return &entry;
  }
  return nullptr;
}

c10::Storage HostCall::host_storage(const c10::Storage& cuda) {
  if (auto* entry = find_cuda(cuda.unsafeGetStorageImpl())) return entry->host;
  c10::Storage host = alias_storage(cuda);
  shared_.push_back({cuda, host, host.data(), false});
  return host;
}

c10::Storage HostCall::cuda_storage(const c10::Storage& host) {
  if (auto* entry = find_host(host.unsafeGetStorageImpl())) return entry->cuda;
  size_t bytes = host.nbytes();
  c10::Storage cuda(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, take_data(*host.unsafeGetStorageImpl(), device()),
      c10::GetAllocator(c10::kCUDA), /*resizable=*/true));
  shared_.push_back({cuda, host, nullptr, true});
  return cuda;
}

void HostCall::use_device(c10::Device device) {
  if (device_.has_value()) return;
  device_ = device.has_index() ? device : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}

at::Tensor HostCall::to_host(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  use_device(tensor.device());
  at::Tensor host;
  if (tensor.is_nested()) {
    host = nested_on(tensor, host_storage(tensor.unsafeGetTensorImpl()->unsafe_storage()), c10::DispatchKey::CPU);
  } else if (tensor.layout() == at::kSparse) {
    host = sparse_to_host(tensor);
  } else if (!is_strided(tensor)) {
    host = compressed_to_host(tensor);
  } else if (tensor.is_quantized()) {
    host = quantized_on(tensor, host_storage(tensor.storage()), c10::DispatchKey::QuantizedCPU, true);
  } else {
    host = strided_on(host_storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
  }
  if (written) written_.push_back({tensor, host});
  return host;
}

at::Tensor HostCall::to_cuda(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  if (result.is_nested()) {
    return nested_on(result, cuda_storage(result.unsafeGetTensorImpl()->unsafe_storage()), c10::DispatchKey::CUDA);
  }
  if (result.layout() == at::kSparse) return sparse_to_cuda(result);
  if (!is_strided(result)) return compressed_to_cuda(result);
  if (result.is_quantized()) {
    return quantized_on(result, cuda_storage(result.storage()), c10::DispatchKey::QuantizedCUDA, false);
  }
  return strided_on(cuda_storage(result.storage()), result, c10::DispatchKey::CUDA);
}

void HostCall::enter(const char* operation) {
  c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  if (!device_.has_value()) device_ = cuda.getDevice();
  if (anything_pending() && !inside_graph()) drain_current_stream(*device_, operation);
  if (cuda.getDevice() != *device_) device_guard_.emplace(*device_);
  keys_.emplace(c10::autograd_dispatch_keyset_with_ADInplaceOrView.add(c10::DispatchKey::AutocastCPU));
  adoption_.emplace(device_->index());
}

void HostCall::leave() {
  adoption_.reset();
  for (const auto& pair : written_) write_back(pair);
  keys_.reset();
}

void HostCall::write_back(const Written& pair) {
  if (pair.cuda.is_nested()) return;  // sizes of a nested tensor never change in place
  if (!is_strided(pair.cuda)) return write_back_members(pair);
  write_back_storage(pair.host.storage());
  if (pair.cuda.sizes() != pair.host.sizes() || pair.cuda.strides() != pair.host.strides()) {
    pair.cuda.unsafeGetTensorImpl()->set_sizes_and_strides(
        pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
  }
}

// an out= tensor that the CPU code resized has new memory: it becomes the CUDA storage's
void HostCall::write_back_storage(const c10::Storage& host) {
  Shared* entry = find_host(host.unsafeGetStorageImpl());
  if (entry == nullptr || entry->fresh || host.data() == entry->data) return;
  auto* cuda = entry->cuda.unsafeGetStorageImpl();
  size_t bytes = host.nbytes();
  cuda->set_data_ptr_noswap(take_data(*host.unsafeGetStorageImpl(), device()));
  cuda->set_nbytes(bytes);
  entry->data = host.data();
}

}  // namespace fakegpu::torchhost
