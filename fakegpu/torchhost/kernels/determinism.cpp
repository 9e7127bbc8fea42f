#include "determinism.h"

#include <ATen/Context.h>
#include <unordered_map>

namespace fakegpu::torchhost {
namespace {

bool is_floating(const c10::IValue* arguments) {
  return arguments[0].isTensor() && c10::isFloatingType(arguments[0].toTensor().scalar_type());
}

bool has_weights(const c10::IValue* arguments) {
  return arguments[1].isTensor() && arguments[1].toTensor().defined();
}

template <int kMode>
bool is_max_bag(const c10::IValue* arguments) {
  return arguments[kMode].isInt() && arguments[kMode].toInt() == 2;
}

bool accumulates(const c10::IValue* arguments) {
  return arguments[3].isBool() && arguments[3].toBool();  // self, index, source, accumulate
}

bool is_product(const c10::IValue* arguments) {
  return arguments[4].isString() && arguments[4].toStringRef() == "prod";  // self, dim, index, src, reduce
}

// The list is in the documentation of torch.use_deterministic_algorithms, the names in its CUDA sources.
const std::unordered_map<std::string_view, Alert> kAlerts = {
    {"_adaptive_avg_pool2d_backward", {"adaptive_avg_pool2d_backward_cuda"}},
    {"_adaptive_avg_pool3d_backward", {"adaptive_avg_pool3d_backward_cuda"}},
    {"adaptive_max_pool2d_backward", {"adaptive_max_pool2d_backward_cuda"}},
    {"avg_pool3d_backward", {"avg_pool3d_backward_cuda"}},
    {"fractional_max_pool2d_backward", {"fractional_max_pool2d_backward_cuda"}},
    {"fractional_max_pool3d_backward", {"fractional_max_pool3d_backward_cuda"}},
    {"max_unpool2d", {"max_unpooling2d_forward_out"}},
    {"max_unpool3d", {"max_unpooling3d_forward_out"}},
    {"upsample_linear1d_backward", {"upsample_linear1d_backward_out_cuda"}},
    {"upsample_bilinear2d_backward", {"upsample_bilinear2d_backward_out_cuda"}},
    {"upsample_bicubic2d_backward", {"upsample_bicubic2d_backward_out_cuda"}},
    {"upsample_trilinear3d_backward", {"upsample_trilinear3d_backward_out_cuda"}},
    {"reflection_pad1d_backward", {"reflection_pad1d_backward_out_cuda"}},
    {"reflection_pad2d_backward", {"reflection_pad2d_backward_cuda"}},
    {"reflection_pad3d_backward", {"reflection_pad3d_backward_out_cuda"}},
    {"nll_loss2d_forward", {"nll_loss2d_forward_out_cuda_template"}},
    {"_ctc_loss_backward", {"ctc_loss_backward_gpu"}},
    {"grid_sampler_2d_backward", {"grid_sampler_2d_backward_cuda"}},
    {"grid_sampler_3d_backward", {"grid_sampler_3d_backward_cuda"}},
    {"histc", {"_histc_cuda with floating point input", is_floating}},
    {"bincount", {"_bincount_cuda", has_weights}},
    {"_embedding_bag_backward", {"embedding_bag_backward_cuda_max", is_max_bag<8>}},
    {"_embedding_bag_dense_backward", {"embedding_bag_backward_cuda_max", is_max_bag<7>}},
    {"put_", {"put_", accumulates}},  // without it torch's own code for all devices refuses
    {"scatter_reduce", {"scatter_reduce_cuda_prod_", is_product}},
    {"scatter_reduce_", {"scatter_reduce_cuda_prod_", is_product}},
};

}  // namespace

Alert nondeterministic_alert(std::string_view name, std::string_view overload) {
  bool indexed = overload.substr(0, 3) == "dim";
  if (indexed && (name == "median" || name == "nanmedian")) return {"median CUDA with indices output"};
  auto found = kAlerts.find(name);
  return found == kAlerts.end() ? Alert{} : found->second;
}

void raise_alert(const Alert& alert, const c10::IValue* arguments) {
  if (alert.when != nullptr && !alert.when(arguments)) return;
  at::globalContext().alertNotDeterministic(alert.kernel);
}

}  // namespace fakegpu::torchhost
