#include "operator_table.h"

namespace fakegpu::torchhost {

const OperatorTable& operator_table() {
  static const OperatorTable table = {
#include "operator_table.inc"  // written by build.py
  };
  return table;
}

}  // namespace fakegpu::torchhost
