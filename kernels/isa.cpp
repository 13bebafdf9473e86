#include "kernels/isa.hpp"

namespace ckpt::kernels {

const char* name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::portable:
      break;
  }
  return "portable";
}

bool supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx512) return __builtin_cpu_supports("avx512f");
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
#endif
  return isa == Isa::portable;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() {
  if (supported(Isa::avx512)) return Isa::avx512;
  return supported(Isa::avx2) ? Isa::avx2 : Isa::portable;
}

}  // namespace ckpt::kernels
