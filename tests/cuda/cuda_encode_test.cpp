// The kernels that make parity, as the driver launches them: they give what the same code gives on the host.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "device/cuda_kernels.hpp"
#include "gpu.hpp"
#include "kernels/encode_body.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using kernels::device::EncodeJob;

constexpr std::uint64_t leaf_bytes = kernels::leaf_size_bytes;

// Parity, then the digests as bytes.
struct Made {
  std::vector<std::byte> parity, digests;
  bool operator==(const Made&) const = default;
};

class CudaEncodeTest : public GpuTest {
 protected:
  static std::uint64_t whole(std::uint64_t size_bytes) { return kernels::leaf_count(size_bytes) * leaf_bytes; }
  // One row of parity from sources of these sizes. Memory behind a source is no zeros.
  static EncodeJob job_of(std::size_t row, const std::vector<std::size_t>& sizes_bytes) {
    EncodeJob job{};
    job.source_count = static_cast<std::uint32_t>(sizes_bytes.size());
    for (std::size_t i = 0; i < sizes_bytes.size(); ++i) {
      job.sources[i].size_bytes = sizes_bytes[i];
      job.coefficients[i] = kernels::ErasureCode::coefficient(row, i);
    }
    return job;
  }
  static std::vector<std::byte> source(std::size_t number, std::size_t size_bytes) {
    return bytes_of(whole(size_bytes) + leaf_bytes, number + 1);
  }
  static Made on_host(std::size_t row, const std::vector<std::size_t>& sizes_bytes, std::size_t leaves) {
    EncodeJob job = job_of(row, sizes_bytes);
    std::vector<std::vector<std::byte>> sources;
    for (std::size_t i = 0; i < sizes_bytes.size(); ++i) sources.push_back(source(i, sizes_bytes[i]));
    for (std::size_t i = 0; i < sizes_bytes.size(); ++i)
      job.sources[i].data = reinterpret_cast<const unsigned char*>(sources[i].data());
    Made made{std::vector<std::byte>(leaves * leaf_bytes),
              std::vector<std::byte>(leaves * (sizes_bytes.size() + 1) * sizeof(std::uint64_t))};
    job.parity = reinterpret_cast<unsigned char*>(made.parity.data());
    job.digests = reinterpret_cast<std::uint64_t*>(made.digests.data());
    job.keys = kernels::device::make_digest_keys();
    for (std::size_t leaf = 0; leaf < leaves; ++leaf)
      row == 0 ? kernels::device::encode_leaf_on_host<true>(job, leaf)
               : kernels::device::encode_leaf_on_host<false>(job, leaf);
    return made;
  }
  static Made on_gpu(std::size_t row, const std::vector<std::size_t>& sizes_bytes, std::size_t leaves) {
    EncodeJob job = job_of(row, sizes_bytes);
    std::vector<std::unique_ptr<GpuBytes>> sources;
    for (std::size_t i = 0; i < sizes_bytes.size(); ++i) {
      sources.push_back(std::make_unique<GpuBytes>(source(i, sizes_bytes[i])));
      job.sources[i].data = static_cast<const unsigned char*>(sources.back()->data());
    }
    const GpuBytes parity(leaves * leaf_bytes), digests(leaves * (sizes_bytes.size() + 1) * sizeof(std::uint64_t));
    job.parity = static_cast<unsigned char*>(parity.data());
    job.digests = static_cast<std::uint64_t*>(digests.data());
    const CudaKernels kernels;
    const BackgroundStream stream;
    kernels.encode(job, leaves, stream);
    EXPECT_CUDA(cuStreamSynchronize(stream));
    return {parity.read(), digests.read()};
  }
  static void expect_same(const std::vector<std::size_t>& sizes_bytes, std::size_t leaves) {
    for (const std::size_t row : {0u, 1u, 3u})
      EXPECT_TRUE(on_gpu(row, sizes_bytes, leaves) == on_host(row, sizes_bytes, leaves))
          << "row " << row << ", " << sizes_bytes.size() << " sources, the first of " << sizes_bytes[0] << " bytes";
  }
};

TEST_F(CudaEncodeTest, MatchesTheHostsEncoding) {
  expect_same({leaf_bytes}, 1);
  expect_same({40 * leaf_bytes, 40 * leaf_bytes, 40 * leaf_bytes}, 40);
  expect_same({3 * leaf_bytes, 5 * leaf_bytes, 5 * leaf_bytes - 1, 0, leaf_bytes + 1, 2 * leaf_bytes + 100}, 5);
  expect_same(std::vector<std::size_t>(kernels::max_stripe_pieces - 1, 2 * leaf_bytes - 3), 2);
}

TEST_F(CudaEncodeTest, AcceptsSourcesOfAnyLength) {
  for (const std::size_t odd : {1u, 3u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 1023u, 1024u, 1025u, 40'001u, 65'535u})
    expect_same({2 * leaf_bytes, odd, leaf_bytes + odd}, 2);
}

}  // namespace
}  // namespace ckpt::device
