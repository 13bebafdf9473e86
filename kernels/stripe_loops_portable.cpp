// Plain C++: any processor, ordinary stores.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/gf256.hpp"
#include "kernels/stripe_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET
#define CKPT_COMBINE_TARGET CKPT_TARGET

using Lanes = std::array<std::uint64_t, 8>;
using Stripe = std::array<std::byte, stripe_size_bytes>;

Lanes lanes_load(const std::uint64_t* from) {
  Lanes lanes;
  std::copy_n(from, lanes.size(), lanes.begin());
  return lanes;
}

void lanes_store(std::uint64_t* to, const Lanes& lanes) { std::copy(lanes.begin(), lanes.end(), to); }

Stripe stripe_load(const std::byte* from) {
  Stripe stripe;
  std::memcpy(stripe.data(), from, stripe.size());
  return stripe;
}

void stripe_store(std::byte* to, const Stripe& stripe) { std::memcpy(to, stripe.data(), stripe.size()); }

Stripe stripe_xor(Stripe a, const Stripe& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] ^= b[i];
  return a;
}

void stripe_stream(std::byte* to, const Stripe& stripe) { std::memcpy(to, stripe.data(), stripe.size()); }

void prefetch(const std::byte*) {}

void accumulate(Lanes& lanes, const Stripe& stripe, const unsigned char* key) {
  accumulate_words(lanes.data(), stripe.data(), key);
}

void scramble(Lanes& lanes) {
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const std::uint64_t mixed = lanes[i] ^ (lanes[i] >> 47) ^ load_word(secret + scramble_secret_offset + 8 * i);
    lanes[i] = mixed * prime32_1;
  }
}

// Multiplies by doubling. The compiler turns these loops into vector code.
struct Multiplier {
  std::uint8_t factor;
};

Multiplier multiplier(const Factor& factor) { return {factor.value}; }

Stripe stripe_multiply(Stripe stripe, const Multiplier& multiplier) {
  Stripe product{};
  for (unsigned bits = multiplier.factor; bits != 0; bits >>= 1) {
    if ((bits & 1) != 0) product = stripe_xor(product, stripe);
    for (std::byte& byte : stripe) {
      const auto value = std::to_integer<unsigned>(byte);
      byte = static_cast<std::byte>(value << 1 ^ (value >> 7) * (gf256::polynomial & 0xFF));
    }
  }
  return product;
}

constexpr std::size_t sums_in_registers = 4;

#include "kernels/stripe_loops.inl"
// Included here, because it uses the functions above:
#include "kernels/combine_loops.inl"

}  // namespace

const StripeLoops portable_loops = {digest, digest_and_copy};
const CombineLoop portable_combine = combine;

}  // namespace ckpt::kernels
