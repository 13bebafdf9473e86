#include "kernels/coder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

namespace {

// The present leaf of one source or output: its bytes, and its digest so far.
struct Leaf {
  std::byte* data = nullptr;  // nobody writes to a source through this pointer
  std::size_t size_bytes = 0;
  std::uint64_t* digest = nullptr;
  LeafHasher hasher = {};

  bool in_stripes() const { return digest != nullptr && size_bytes > short_leaf_max_bytes; }
  // The number of stripes that the loop digests: all but the last one, which may be short.
  std::size_t stripes() const { return whole_stripes(size_bytes); }
  std::uint64_t* accumulators(std::size_t stripe) {
    return in_stripes() && stripe < stripes() ? hasher.accumulators : nullptr;
  }
  void finish() {
    if (digest == nullptr) return;
    *digest = in_stripes() ? hasher.finish(data + size_bytes - stripe_size_bytes, size_bytes)
                           : short_leaf_digest(data, size_bytes);
  }
};

// One call of a Coder. It works leaf by leaf. A leaf consists of straight runs of stripes, and of a seam stripe
// wherever a source or the outputs end.
class Pass {
 public:
  // `finished`: true if no source will be added to the outputs later, so they need not stay in the caches.
  Pass(std::span<const Factor> factors, std::size_t columns, bool multiplying, bool to_sum, bool finished,
       CombineLoop loop)
      : factors_(factors),
        columns_(columns),
        multiplying_(multiplying),
        to_sum_(to_sum),
        finished_(finished),
        loop_(loop) {}

  void take(std::size_t column, const Source& source, std::uint64_t* digests) {
    inputs_[input_count_++] = {source, digests, column};
  }

  void run(std::span<const Output> outputs, std::size_t length_bytes) {
    outputs_ = outputs;
    for (std::size_t leaf = 0; leaf < leaf_count(length_bytes); ++leaf) {
      open(leaf, length_bytes);
      run_leaf();
      for (std::size_t i = 0; i < living_; ++i) read_[i].finish();
      for (std::size_t row = 0; row < outputs.size(); ++row) made_[row].finish();
    }
    streaming_fence();
  }

 private:
  struct Input {
    Source source;
    std::uint64_t* digests;
    std::size_t column;
  };

  void open(std::size_t leaf, std::size_t length_bytes) {
    const std::size_t offset = leaf * leaf_size_bytes;
    for (std::size_t row = 0; row < outputs_.size(); ++row) {
      const auto& [data, digests] = outputs_[row];
      made_[row] = {data + offset, leaf_length(length_bytes, leaf), digests == nullptr ? nullptr : digests + leaf};
    }
    living_ = 0;
    for (std::size_t i = 0; i < input_count_; ++i) {
      const auto& [source, digests, column] = inputs_[i];
      const std::size_t size = std::min(source.size_bytes, length_bytes);
      if (size <= offset) continue;
      read_[living_] = {const_cast<std::byte*>(source.data) + offset, leaf_length(size, leaf),
                        digests == nullptr ? nullptr : digests + leaf};
      columns_of_[living_++] = column;
    }
  }

  void run_leaf() {
    const std::size_t last = made_[0].stripes();
    for (std::size_t stripe = 0; stripe <= last;) {
      std::size_t stop = last;
      for (std::size_t i = 0; i < living_; ++i) {
        if (read_[i].stripes() >= stripe) stop = std::min(stop, read_[i].stripes());
      }
      if (stop > stripe) run_straight(stripe, stop - stripe);
      run_seam(stop);
      stripe = stop + 1;
    }
  }

  void run_straight(std::size_t first, std::size_t count) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < living_; ++i) {
      if (read_[i].stripes() > first) take_source(taken++, i, first, read_[i].data + first * stripe_size_bytes);
    }
    std::array<StripeOutput, max_parity_rows> to;
    for (std::size_t row = 0; row < outputs_.size(); ++row) {
      std::byte* data = made_[row].data + first * stripe_size_bytes;
      const bool aligned = reinterpret_cast<std::uintptr_t>(data) % stripe_size_bytes == 0;
      to[row] = {data, made_[row].accumulators(first), aligned && finished_};
    }
    run_loop(taken, to, first, count);
  }

  // Combines one stripe. Where a source ends in it, zeros follow.
  void run_seam(std::size_t stripe) {
    const std::size_t at = stripe * stripe_size_bytes;
    alignas(64) std::byte ends[max_stripe_pieces][stripe_size_bytes];
    std::size_t taken = 0;
    for (std::size_t i = 0; i < living_; ++i) {
      if (read_[i].size_bytes <= at) continue;
      const std::byte* from = read_[i].data + at;
      const std::size_t left = read_[i].size_bytes - at;
      if (left < stripe_size_bytes) from = padded(ends[taken], from, left);
      take_source(taken++, i, stripe, from);
    }
    const std::size_t left = std::min(stripe_size_bytes, made_[0].size_bytes - at);
    alignas(64) std::byte sums[max_parity_rows][stripe_size_bytes];
    std::array<StripeOutput, max_parity_rows> to;
    for (std::size_t row = 0; row < outputs_.size(); ++row) {
      if (to_sum_) padded(sums[row], made_[row].data + at, left);
      to[row] = {sums[row], made_[row].accumulators(stripe), false};
    }
    run_loop(taken, to, stripe, 1);
    for (std::size_t row = 0; row < outputs_.size(); ++row) std::memcpy(made_[row].data + at, sums[row], left);
  }

  static const std::byte* padded(std::byte* stripe, const std::byte* from, std::size_t size_bytes) {
    std::memcpy(stripe, from, size_bytes);
    std::memset(stripe + size_bytes, 0, stripe_size_bytes - size_bytes);
    return stripe;
  }

  void take_source(std::size_t slot, std::size_t living, std::size_t stripe, const std::byte* data) {
    from_[slot] = {data, read_[living].accumulators(stripe), factors_.data() + columns_of_[living]};
  }

  void run_loop(std::size_t taken, const std::array<StripeOutput, max_parity_rows>& to, std::size_t first,
                std::size_t count) const {
    loop_({.sources = std::span(from_).first(taken),
           .outputs = std::span(to).first(outputs_.size()),
           .factor_stride = columns_,
           .multiplying = multiplying_,
           .to_sum = to_sum_},
          first, count);
  }

  std::span<const Factor> factors_;
  std::size_t columns_;
  bool multiplying_;
  bool to_sum_;
  bool finished_;
  CombineLoop loop_;
  std::size_t input_count_ = 0;
  std::array<Input, max_stripe_pieces> inputs_;
  std::span<const Output> outputs_;

  std::size_t living_ = 0;  // how many sources reach into the present leaf
  std::array<Leaf, max_stripe_pieces> read_;
  std::array<std::size_t, max_stripe_pieces> columns_of_;
  std::array<Leaf, max_parity_rows> made_;
  std::array<StripeSource, max_stripe_pieces> from_;
};

}  // namespace

Coder::Coder(Matrix matrix) : matrix_(std::move(matrix)) {
  if (rows() < 1 || rows() > max_parity_rows || columns() < 1 || columns() > max_stripe_pieces ||
      matrix_.coefficients.size() != rows() * columns()) {
    throw std::invalid_argument("a coder has 1 to " + std::to_string(max_parity_rows) + " rows and 1 to " +
                                std::to_string(max_stripe_pieces) + " columns, not " + std::to_string(rows()) +
                                " and " + std::to_string(columns()));
  }
  for (const std::uint8_t coefficient : matrix_.coefficients) factors_.push_back(make_factor(coefficient));
  is_xor_ = rows() == 1 && std::all_of(matrix_.coefficients.begin(), matrix_.coefficients.end(),
                                       [](std::uint8_t coefficient) { return coefficient == 1; });
}

void Coder::combine(std::span<const Source> sources, std::span<const Output> outputs, std::size_t length_bytes,
                    std::span<std::uint64_t* const> source_digests, Isa isa) const {
  Pass pass(factors_, columns(), !is_xor_, false, true, combine_loop(isa));
  for (std::size_t column = 0; column < sources.size(); ++column) {
    pass.take(column, sources[column], source_digests.empty() ? nullptr : source_digests[column]);
  }
  pass.run(outputs, length_bytes);
}

void Coder::start(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
                  Isa isa) const {
  Pass pass(factors_, columns(), !is_xor_, false, false, combine_loop(isa));
  pass.take(column, source, nullptr);
  pass.run(outputs, length_bytes);
}

void Coder::add(std::size_t column, const Source& source, std::span<const Output> outputs, std::size_t length_bytes,
                Isa isa) const {
  Pass pass(factors_, columns(), !is_xor_, true, false, combine_loop(isa));
  pass.take(column, source, nullptr);
  pass.run(outputs, length_bytes);
}

}  // namespace ckpt::kernels
