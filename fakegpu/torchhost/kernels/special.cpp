#include "special.h"

namespace fakegpu::torchhost {

std::unique_ptr<torch::Library> install_special_kernels() {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  register_softmax(*library);
  register_attention(*library);
  register_cudnn(*library);
  register_norm(*library);
  register_rnn(*library);
  return library;
}

const std::vector<std::string>& special_kernels() {
  static const std::vector<std::string> names = {
      "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
      "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward", "cudnn_batch_norm",
      "cudnn_batch_norm_backward", "cudnn_grid_sampler", "cudnn_grid_sampler_backward",
      "cudnn_affine_grid_generator", "cudnn_affine_grid_generator_backward", "_cudnn_rnn_flatten_weight",
      "_fused_rms_norm", "_fused_rms_norm_backward", "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
      "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "_softmax", "_log_softmax", "_softmax_backward_data",
      "_log_softmax_backward_data"};
  return names;
}

}  // namespace fakegpu::torchhost
