#include "engine/cpu/kernels.h"

#include <cmath>
#include <cstdlib>

#include "engine/cpu/strip.h"
#include "engine/cpu/targets.h"

namespace withy::engine {

#if !defined(WITHY_HAVE_X86)
const Kernels* Avx2Kernels() { return nullptr; }
const Kernels* Avx512VnniKernels() { return nullptr; }
#endif
#if !defined(WITHY_HAVE_NEON)
const Kernels* NeonDotKernels() { return nullptr; }
const Kernels* NeonI8mmKernels() { return nullptr; }
#endif

const Kernels* KernelsFor(Target target) {
  switch (target) {
    case Target::kPortable:
      return PortableKernels();
    case Target::kAvx2:
      return Avx2Kernels();
    case Target::kAvx512Vnni:
      return Avx512VnniKernels();
    case Target::kNeonDot:
      return NeonDotKernels();
    case Target::kNeonI8mm:
      return NeonI8mmKernels();
  }
  return nullptr;
}

std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  for (const Target target : {Target::kPortable, Target::kNeonDot, Target::kNeonI8mm, Target::kAvx2,
                              Target::kAvx512Vnni}) {
    if (KernelsFor(target) != nullptr) targets.push_back(target);
  }
  return targets;
}

bool ParseTarget(std::string_view name, Target* target) {
  for (const Target candidate : SupportedTargets()) {
    if (name == KernelsFor(candidate)->name) {
      *target = candidate;
      return true;
    }
  }
  return false;
}

Target BestTarget() {
  const char* wanted = std::getenv("WITHY_CPU_TARGET");
  Target target = SupportedTargets().back();
  if (wanted != nullptr) ParseTarget(wanted, &target);
  return target;
}

const Kernels& DefaultKernels() { return *KernelsFor(BestTarget()); }

std::vector<float> RopeFrequencies(int rope_dims, double base, double linear_factor,
                                   const float* factors) {
  std::vector<float> frequencies(static_cast<size_t>(rope_dims / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(base, -2.0 * static_cast<double>(i) / rope_dims) / linear_factor;
    if (factors != nullptr) f /= static_cast<double>(factors[i]);
    frequencies[i] = static_cast<float>(f);
  }
  return frequencies;
}

void RopeAngles(const std::vector<float>& frequencies, float scale, int position, bool interleaved,
                float* angles) {
  const auto factor = static_cast<double>(scale);
  const size_t half = frequencies.size();
  float* of_pair = angles + 2 * half;
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
    const size_t first = interleaved ? 2 * i : i;
    const size_t second = interleaved ? 2 * i + 1 : half + i;
    angles[first] = angles[second] = static_cast<float>(factor * std::cos(angle));
    of_pair[second] = static_cast<float>(factor * std::sin(angle));
    of_pair[first] = -of_pair[second];
  }
}

}  // namespace withy::engine
