/* CUDA operators whose CPU counterpart has another contract or another name. */
#pragma once
#include <torch/library.h>

#include <memory>
#include <string>
#include <vector>

namespace fakegpu::torchhost {

std::unique_ptr<torch::Library> install_special_kernels();
const std::vector<std::string>& special_kernels(); /* their names */

void register_softmax(torch::Library& library);
void register_attention(torch::Library& library);
void register_cudnn(torch::Library& library);
void register_norm(torch::Library& library);
void register_rnn(torch::Library& library);

}  // namespace fakegpu::torchhost
