/* What the dispatcher does not know about operators: tables that build.py writes for the torch at hand
 * (operator_table.inc) from torch's own operator file and data/api/torch_ops.yaml. */
#pragma once
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace fakegpu::torchhost {

struct OperatorTable {
  std::unordered_set<std::string> unchecked_devices;     // CUDA kernels that check their tensors' devices themselves
  std::unordered_map<std::string, std::string> refused;  // operator: reason
};

const OperatorTable& operator_table();

}  // namespace fakegpu::torchhost
