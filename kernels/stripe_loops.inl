// The loops over stripes, written once for all instruction sets: a source file defines CKPT_TARGET (the function
// attribute that allows its instructions), `struct Lanes` and `struct Stripe` with the operations used below, and then
// includes this file inside its anonymous namespace. They are macros and an include rather than templates because a
// function's target attribute cannot depend on a template argument.
//
//   Lanes lanes_load(const std::uint64_t*); void lanes_store(std::uint64_t*, Lanes);
//   void accumulate(Lanes&, Stripe, const unsigned char* key); void scramble(Lanes&);
//   Stripe stripe_load(const std::byte*);             any alignment
//   void stripe_stream(std::byte*, Stripe);           64-byte aligned, bypassing the cache where there is a way to
//   void prefetch(const std::byte*);

// Far enough ahead to cover the latency of memory at about 10 GB/s; a prefetch beyond the end of the source is harmless.
constexpr std::size_t prefetch_distance_bytes = 1536;

template <bool copying>
CKPT_TARGET inline void take_stripe(Lanes& lanes, const unsigned char* key, const std::byte* source,
                                    std::byte* destination) {
  prefetch(source, prefetch_distance_bytes);
  const Stripe stripe = stripe_load(source);
  if constexpr (copying) stripe_stream(destination, stripe);
  accumulate(lanes, stripe, key);
}

template <bool copying>
CKPT_TARGET void take_stripes(std::uint64_t* accumulators, std::size_t first, const std::byte* source,
                              std::byte* destination, std::size_t count) {
  Lanes lanes = lanes_load(accumulators);
  std::size_t place = first % block_stripes;
  for (std::size_t taken = 0; taken < count;) {
    const std::size_t run = std::min(block_stripes - place, count - taken);
    for (std::size_t i = 0; i < run; ++i) {
      const std::size_t at = (taken + i) * stripe_size_bytes;
      take_stripe<copying>(lanes, secret + 8 * (place + i), source + at, copying ? destination + at : nullptr);
    }
    taken += run;
    place = (place + run) % block_stripes;
    if (place == 0) scramble(lanes);
  }
  lanes_store(accumulators, lanes);
}

CKPT_TARGET void digest(std::uint64_t* accumulators, std::size_t first, const std::byte* source, std::size_t count) {
  take_stripes<false>(accumulators, first, source, nullptr, count);
}

CKPT_TARGET void copy_and_digest(std::uint64_t* accumulators, std::size_t first, const std::byte* source,
                                 std::byte* destination, std::size_t count) {
  take_stripes<true>(accumulators, first, source, destination, count);
}

CKPT_TARGET void copy(const std::byte* source, std::byte* destination, std::size_t size_bytes) {
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(destination) % stripe_size_bytes;
  const std::size_t head = std::min(size_bytes, into_line == 0 ? 0 : stripe_size_bytes - into_line);
  if (head > 0) std::memcpy(destination, source, head);
  std::size_t done = head;
  for (; done + stripe_size_bytes <= size_bytes; done += stripe_size_bytes) {
    stripe_stream(destination + done, stripe_load(source + done));
  }
  if (done < size_bytes) std::memcpy(destination + done, source + done, size_bytes - done);
}
