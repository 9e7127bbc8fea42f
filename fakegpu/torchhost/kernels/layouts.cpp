// HostCall for tensors that are made of other tensors: sparse COO, sparse compressed, nested and quantized.
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include "host_call.h"

namespace fakegpu::torchhost {
namespace {

at::SparseTensorImpl* coo(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor make_coo(const at::SparseTensorImpl* like, at::Tensor indices, at::Tensor values, c10::DispatchKey key) {
  at::Tensor out = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like->dtype());
  coo(out)->raw_resize_(like->sparse_dim(), like->dense_dim(), like->sizes());
  coo(out)->set_indices_and_values_unsafe(indices, values);
  coo(out)->set_coalesced(like->coalesced());
  return out;
}

at::Tensor make_compressed(const at::Tensor& like, const at::Tensor& rows, const at::Tensor& columns,
                           const at::Tensor& values, c10::DispatchKey key, c10::Device device) {
  at::Tensor out = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(key), device, like.layout(), like.dtype());
  compressed(out)->set_member_tensors(rows, columns, values, like.sizes());
  return out;
}

}  // namespace

at::Tensor HostCall::sparse_to_host(const at::Tensor& tensor) {
  auto* impl = coo(tensor);
  return make_coo(impl, to_host(impl->indices()), to_host(impl->values()), c10::DispatchKey::SparseCPU);
}

at::Tensor HostCall::sparse_to_cuda(const at::Tensor& tensor) {
  auto* impl = coo(tensor);
  return make_coo(impl, to_cuda(impl->indices()), to_cuda(impl->values()), c10::DispatchKey::SparseCUDA);
}

at::Tensor HostCall::compressed_to_host(const at::Tensor& tensor) {
  auto* impl = compressed(tensor);
  return make_compressed(tensor, to_host(impl->compressed_indices()), to_host(impl->plain_indices()),
                         to_host(impl->values()), c10::DispatchKey::SparseCsrCPU, c10::Device(c10::kCPU));
}

at::Tensor HostCall::compressed_to_cuda(const at::Tensor& tensor) {
  auto* impl = compressed(tensor);
  return make_compressed(tensor, to_cuda(impl->compressed_indices()), to_cuda(impl->plain_indices()),
                         to_cuda(impl->values()), c10::DispatchKey::SparseCsrCUDA, device());
}

at::Tensor HostCall::nested_on(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey backend) {
  auto* impl = at::native::get_nested_tensor_impl(tensor);  // its sizes and strides live on the CPU on any device
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      std::move(storage), c10::DispatchKeySet({backend, c10::DispatchKey::NestedTensor}), tensor.dtype(),
      impl->get_nested_sizes(), impl->get_nested_strides(), impl->get_storage_offsets());
}

at::Tensor HostCall::quantized_on(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key, bool to_cpu) {
  auto quantizer = static_cast<at::QTensorImpl*>(tensor.unsafeGetTensorImpl())->quantizer();
  if (quantizer->qscheme() == at::kPerChannelAffine) {
    auto* channels = static_cast<at::PerChannelAffineQuantizer*>(quantizer.get());
    auto move = [&](const at::Tensor& t) { return to_cpu ? to_host(t) : to_cuda(t); };
    quantizer = at::make_per_channel_affine_quantizer(move(channels->scales()), move(channels->zero_points()),
                                                      channels->axis(), quantizer->scalar_type());
  }
  at::Tensor out = at::detail::make_tensor<at::QTensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                            tensor.dtype(), std::move(quantizer));
  out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return out;
}

// in-place operators on sparse tensors replace indices and values
void HostCall::write_back_members(const Written& pair) {
  if (pair.cuda.layout() == at::kSparse) {
    auto *to = coo(pair.cuda), *from = coo(pair.host);
    write_back_storage(from->values().storage());
    write_back_storage(from->indices().storage());
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
    to->set_indices_and_values_unsafe(to_cuda(from->indices()), to_cuda(from->values()));
    to->set_coalesced(from->coalesced());
    return;
  }
  auto *to = compressed(pair.cuda), *from = compressed(pair.host);
  write_back_storage(from->values().storage());
  write_back_storage(from->plain_indices().storage());
  write_back_storage(from->compressed_indices().storage());
  to->set_member_tensors(to_cuda(from->compressed_indices()), to_cuda(from->plain_indices()), to_cuda(from->values()),
                         pair.host.sizes());
}

}  // namespace fakegpu::torchhost
