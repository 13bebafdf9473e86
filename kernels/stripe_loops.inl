// The loops over stripes, written once for all instruction sets. A source file includes this file inside its anonymous
// namespace. Before that, it defines CKPT_TARGET (the function attribute that allows its instructions), `struct Lanes`
// (the eight accumulators of XXH3), `struct Stripe` (64 bytes) and the functions below. This is not a template, because
// a function's target attribute cannot depend on a template argument.
//
//   Lanes lanes_load(const std::uint64_t*); void lanes_store(std::uint64_t*, Lanes);
//   void accumulate(Lanes&, Stripe, const unsigned char* key); void scramble(Lanes&);
//   Stripe stripe_load(const std::byte*);             any alignment
//   void stripe_stream(std::byte*, Stripe);           64-byte aligned; past the caches, if the processor can do that
//   void prefetch(const std::byte*);                  prefetches the line prefetch_distance_bytes after this address

template <bool copying>
CKPT_TARGET void take_stripes(std::uint64_t* accumulators, std::size_t first, const std::byte* source,
                              const std::byte* copied, std::byte* destination, std::size_t count) {
  Lanes lanes = lanes_load(accumulators);
  std::size_t place = first % block_stripes;
  for (std::size_t at = 0, end = count * stripe_size_bytes; at < end; at += stripe_size_bytes) {
    prefetch(source + at);
    accumulate(lanes, stripe_load(source + at), secret + 8 * place);
    if constexpr (copying) stripe_stream(destination + at, stripe_load(copied + at));
    if (++place == block_stripes) {
      scramble(lanes);
      place = 0;
    }
  }
  lanes_store(accumulators, lanes);
}

CKPT_TARGET void digest(std::uint64_t* accumulators, std::size_t first, const std::byte* source, std::size_t count) {
  take_stripes<false>(accumulators, first, source, nullptr, nullptr, count);
}

CKPT_TARGET void digest_and_copy(std::uint64_t* accumulators, std::size_t first, const std::byte* source,
                                 const std::byte* copied, std::byte* destination, std::size_t count) {
  take_stripes<true>(accumulators, first, source, copied, destination, count);
}
