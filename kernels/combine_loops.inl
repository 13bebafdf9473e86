// The loop over the stripes of a combination, written once for all instruction sets. A source file includes it after
// stripe_loops.inl. Besides what that file needs, the source file defines CKPT_COMBINE_TARGET (like CKPT_TARGET, but it
// may allow more instructions) and
//
//   void stripe_store(std::byte*, Stripe);                      any alignment
//   Stripe stripe_xor(Stripe, Stripe);
//   struct Multiplier; Multiplier multiplier(const Factor&);    a factor in registers
//   Stripe stripe_multiply(Stripe, const Multiplier&);
//   constexpr std::size_t sums_in_registers;                    for how many stripes the loop has registers left

CKPT_COMBINE_TARGET inline void digest_stripes(std::uint64_t* accumulators, std::size_t place, const Stripe* stripes,
                                               std::size_t count) {
  Lanes lanes = lanes_load(accumulators);
  for (std::size_t i = 0; i < count; ++i) accumulate(lanes, stripes[i], secret + 8 * (place + i));
  if (place + count == block_stripes) scramble(lanes);
  lanes_store(accumulators, lanes);
}

// Combines `at_a_time` stripes of one block. The first is stripe number `place` of the block, and is `at` bytes into
// each source and output.
template <bool multiplying, std::size_t rows, std::size_t at_a_time>
CKPT_COMBINE_TARGET inline void combine_at(const StripeJob& job, std::size_t place, std::size_t at) {
  Stripe sums[rows][at_a_time];
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < at_a_time; ++i) {
      sums[row][i] = job.to_sum ? stripe_load(job.outputs[row].data + at + i * stripe_size_bytes) : Stripe{};
    }
  }
  for (const StripeSource& source : job.sources) {
    Stripe stripes[at_a_time];
    // For bare XOR, the processor's own prefetching is fastest. If there is more to do per byte, it falls behind.
    const bool prefetching = multiplying || source.accumulators != nullptr;
    for (std::size_t i = 0; i < at_a_time; ++i) {
      if (prefetching) prefetch(source.data + at + i * stripe_size_bytes);
      stripes[i] = stripe_load(source.data + at + i * stripe_size_bytes);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      const Factor* factor = multiplying ? source.factors + row * job.factor_stride : nullptr;
      if (multiplying && factor->value != 1) {
        const Multiplier times = multiplier(*factor);
        for (std::size_t i = 0; i < at_a_time; ++i) {
          sums[row][i] = stripe_xor(sums[row][i], stripe_multiply(stripes[i], times));
        }
      } else {
        for (std::size_t i = 0; i < at_a_time; ++i) sums[row][i] = stripe_xor(sums[row][i], stripes[i]);
      }
    }
    if (source.accumulators != nullptr) digest_stripes(source.accumulators, place, stripes, at_a_time);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const StripeOutput& output = job.outputs[row];
    if (output.accumulators != nullptr) digest_stripes(output.accumulators, place, sums[row], at_a_time);
    for (std::size_t i = 0; i < at_a_time; ++i) {
      std::byte* to = output.data + at + i * stripe_size_bytes;
      if (output.streaming) {
        stripe_stream(to, sums[row][i]);
      } else {
        stripe_store(to, sums[row][i]);
      }
    }
  }
}

template <bool multiplying, std::size_t rows>
CKPT_COMBINE_TARGET void combine_rows(const StripeJob& job, std::size_t first, std::size_t count) {
  constexpr std::size_t at_a_time = rows <= sums_in_registers / 4 ? 4 : rows <= sums_in_registers / 2 ? 2 : 1;
  static_assert(block_stripes % at_a_time == 0);
  for (std::size_t done = 0; done < count;) {
    const std::size_t place = (first + done) % block_stripes;
    if (place % at_a_time == 0 && count - done >= at_a_time) {
      combine_at<multiplying, rows, at_a_time>(job, place, done * stripe_size_bytes);
      done += at_a_time;
    } else {
      combine_at<multiplying, rows, 1>(job, place, done * stripe_size_bytes);
      ++done;
    }
  }
}

CKPT_COMBINE_TARGET void combine(const StripeJob& job, std::size_t first, std::size_t count) {
  if (!job.multiplying) return combine_rows<false, 1>(job, first, count);
  switch (job.outputs.size()) {
    case 1:
      return combine_rows<true, 1>(job, first, count);
    case 2:
      return combine_rows<true, 2>(job, first, count);
    case 3:
      return combine_rows<true, 3>(job, first, count);
    default:
      return combine_rows<true, 4>(job, first, count);
  }
}
