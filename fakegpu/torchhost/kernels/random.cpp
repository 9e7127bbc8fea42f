#include "random.h"

#include "capture.h"

#include <ATen/Context.h>

namespace fakegpu::torchhost {
namespace {

constexpr uint64_t kOffsetPerCall = 4;  // CUDA generators only take multiples of 4
// odd 64-bit multipliers (Knuth's MMIX pair) spread neighbouring seeds and offsets
constexpr uint64_t kSeedFactor = 6364136223846793005ULL;
constexpr uint64_t kOffsetFactor = 1442695040888963407ULL;
std::recursive_mutex g_swap;

uint64_t engine_seed(RandomState state) {
  return state.seed * kSeedFactor + state.offset * kOffsetFactor;
}

at::CPUGeneratorImpl* default_host_generator() {
  return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

RandomState next_random_state(const std::optional<at::Generator>& given, c10::Device device) {
  at::Generator generator =
      given.has_value() && given->defined() ? *given : at::globalContext().defaultGenerator(device);
  TORCH_CHECK(generator.device().type() == c10::kCUDA, "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  std::lock_guard<std::mutex> lock(generator.mutex());
  if (auto captured = captured_random_state(generator, kOffsetPerCall)) return *captured;
  RandomState state{generator.current_seed(), generator.get_offset()};
  generator.set_offset(state.offset + kOffsetPerCall);
  return state;
}

at::Generator host_generator(RandomState state) {
  return at::make_generator<at::CPUGeneratorImpl>(engine_seed(state));
}

DefaultGeneratorSwap::DefaultGeneratorSwap(RandomState state) : lock_(g_swap) {
  auto* generator = default_host_generator();
  engine_ = generator->engine();
  next_float_ = generator->next_float_normal_sample();
  next_double_ = generator->next_double_normal_sample();
  generator->set_engine(at::mt19937(engine_seed(state)));
  generator->set_next_float_normal_sample(std::nullopt);
  generator->set_next_double_normal_sample(std::nullopt);
}

DefaultGeneratorSwap::~DefaultGeneratorSwap() {
  auto* generator = default_host_generator();
  generator->set_engine(engine_);
  generator->set_next_float_normal_sample(next_float_);
  generator->set_next_double_normal_sample(next_double_);
}

}  // namespace fakegpu::torchhost
