// The GPU's packing and unpacking, run on the host thread by thread, over tensors with memory that may not be touched
// right behind them.
#include "kernels/segments_body.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "parity_support.hpp"

namespace ckpt::kernels::device {
namespace {

// Tensors in a row, and the table that finds them.
class Tensors {
 public:
  explicit Tensors(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      const Bytes bytes = random_bytes(static_cast<unsigned>(memories_.size()) + 1, size);
      memories_.push_back(std::make_unique<Fenced>(bytes));
      table_.push_back({reinterpret_cast<unsigned char*>(memories_.back()->data()), all_.size()});
      all_.insert(all_.end(), bytes.begin(), bytes.end());
    }
    table_.push_back({nullptr, all_.size()});
  }
  const Bytes& all() const { return all_; }
  SegmentsJob job(std::uint64_t first_byte, std::uint64_t length_bytes, void* packed) const {
    return {table_.data(), table_.size() - 1, first_byte, length_bytes, static_cast<unsigned char*>(packed)};
  }
  Bytes read() const {
    Bytes all;
    for (std::size_t i = 0; i + 1 < table_.size(); ++i) {
      const auto* const begin = reinterpret_cast<const std::byte*>(table_[i].data);
      all.insert(all.end(), begin, begin + (table_[i + 1].begin - table_[i].begin));
    }
    return all;
  }
  void clear() {
    for (std::size_t i = 0; i + 1 < table_.size(); ++i)
      std::fill_n(table_[i].data, table_[i + 1].begin - table_[i].begin, std::uint8_t{0});
  }

 private:
  std::vector<std::unique_ptr<Fenced>> memories_;
  std::vector<DeviceSegment> table_;
  Bytes all_;
};

const std::vector<std::vector<std::size_t>> cases = {
    {1},           {16}, {15, 1, 17}, {4096, 3, 3, 3, 5000}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40},
    {33, 64, 100},
};

TEST(SegmentsBody, PackingPutsAllTensorsInARow) {
  for (const auto& sizes : cases) {
    const Tensors tensors(sizes);
    alignas(16) std::byte packed[16384];
    const SegmentsJob job = tensors.job(0, tensors.all().size(), packed);
    for (std::uint64_t i = vector_count(job); i-- > 0;) pack_vector(job, i);
    EXPECT_EQ(Bytes(packed, packed + tensors.all().size()), tensors.all());
  }
}

TEST(SegmentsBody, EveryRangeHoldsItsPartAndNothingBehindItIsWritten) {
  const Tensors tensors({100, 7, 3000, 1, 64, 50});
  for (std::uint64_t first = 0; first < tensors.all().size(); first += 16) {
    for (const std::uint64_t length : {1ul, 16ul, 100ul}) {
      if (first + length > tensors.all().size()) continue;
      alignas(16) std::byte packed[128] = {};
      const SegmentsJob job = tensors.job(first, length, packed);
      for (std::uint64_t i = 0; i < vector_count(job); ++i) pack_vector(job, i);
      const auto begin = tensors.all().begin() + static_cast<std::ptrdiff_t>(first);
      Bytes expected(begin, begin + static_cast<std::ptrdiff_t>(length));
      expected.resize(sizeof(packed));
      EXPECT_EQ(Bytes(packed, packed + sizeof(packed)), expected);
    }
  }
}

TEST(SegmentsBody, UnpackingPutsEverythingBackInTwoRanges) {
  for (const auto& sizes : cases) {
    Tensors tensors(sizes);
    const std::uint64_t length = tensors.all().size(), cut = length / 2 / 16 * 16;
    alignas(16) std::byte packed[16384];
    std::copy(tensors.all().begin(), tensors.all().end(), packed);
    tensors.clear();
    for (const SegmentsJob& job : {tensors.job(0, cut, packed), tensors.job(cut, length - cut, packed + cut)})
      for (std::uint64_t i = vector_count(job); i-- > 0;) unpack_vector(job, i);
    EXPECT_EQ(tensors.read(), tensors.all());
  }
}

}  // namespace
}  // namespace ckpt::kernels::device
