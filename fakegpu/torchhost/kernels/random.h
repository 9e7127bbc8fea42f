/* Random numbers of CUDA generators from CPU engines: a call's engine is seeded with the generator's seed and Philox
 * offset, and the offset advances by 4, so manual_seed and get/set of the state behave as on hardware. The values are
 * those of a Mersenne twister, not of Philox. */
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <mutex>
#include <optional>

namespace fakegpu::torchhost {

struct RandomState {
  uint64_t seed, offset;
};

/* The state this call draws from; advances the generator (the device's default one when undefined). */
RandomState next_random_state(const std::optional<at::Generator>& generator, c10::Device device);

at::Generator host_generator(RandomState state);

/* While it lives, the default CPU generator draws from `state`: for operators that take no generator. Serialised over
 * threads, because that generator is one per process. */
class DefaultGeneratorSwap {
 public:
  explicit DefaultGeneratorSwap(RandomState state);
  ~DefaultGeneratorSwap();
  DefaultGeneratorSwap(const DefaultGeneratorSwap&) = delete;
  DefaultGeneratorSwap& operator=(const DefaultGeneratorSwap&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  at::mt19937 engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

}  // namespace fakegpu::torchhost
