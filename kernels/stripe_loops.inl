// The loops over stripes, written once for all instruction sets: a source file defines CKPT_TARGET (the function
// attribute that allows its instructions), `struct Lanes` and `struct Stripe` with the operations used below, and then
// includes this file inside its anonymous namespace. They are macros and an include rather than templates because a
// function's target attribute cannot depend on a template argument.
//
//   Lanes lanes_load(const std::uint64_t*); void lanes_store(std::uint64_t*, Lanes);
//   void accumulate(Lanes&, Stripe, const unsigned char* key); void scramble(Lanes&);
//   Stripe stripe_load(const std::byte*);             any alignment
//   void stripe_stream(std::byte*, Stripe);           64-byte aligned, bypassing the cache where there is a way to
//   void prefetch(const std::byte*);                  what lies prefetch_distance_bytes behind it

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
