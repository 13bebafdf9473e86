#include "kernels/parity_job.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace ckpt::kernels::device {
namespace {

bool is_aligned(const Source& source, const Output& first) {
  return misalignment(source.data) == misalignment(first.data);
}

// The numbers of the sources in the order that ParityJob wants.
std::vector<std::size_t> order_of(std::span<const Source> sources, const Output& first) {
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool a_first = is_aligned(sources[a], first), b_first = is_aligned(sources[b], first);
    return a_first != b_first ? a_first : sources[a].size_bytes > sources[b].size_bytes;
  });
  return order;
}

}  // namespace

ParityJob make_parity_job(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                          std::size_t length_bytes, bool to_sum) {
  if (sources.size() != matrix.columns || outputs.size() != matrix.rows || matrix.rows < 1 ||
      matrix.rows > max_parity_rows || matrix.columns > max_stripe_pieces) {
    throw std::invalid_argument("a matrix of " + std::to_string(matrix.rows) + " rows and " +
                                std::to_string(matrix.columns) + " columns cannot make " +
                                std::to_string(outputs.size()) + " outputs from " + std::to_string(sources.size()) +
                                " sources: give one output per row and one source per column");
  }
  if (std::any_of(outputs.begin(), outputs.end(), [](const Output& output) { return output.digests != nullptr; })) {
    throw std::invalid_argument(
        "the GPU kernel for parity computes no digests: pass outputs without digests, and enqueue digest_leaves() "
        "afterwards");
  }
  ParityJob job{};
  const std::vector<std::size_t> order = order_of(sources, outputs[0]);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Source& source = sources[order[i]];
    job.sources[i] = {reinterpret_cast<const unsigned char*>(source.data),
                      std::min<std::uint64_t>(source.size_bytes, length_bytes)};
    for (std::size_t row = 0; row < matrix.rows; ++row) job.coefficients[row][i] = matrix.at(row, order[i]);
    if (is_aligned(source, outputs[0])) ++job.aligned_count;
  }
  for (std::size_t row = 0; row < outputs.size(); ++row) {
    job.outputs[row] = reinterpret_cast<unsigned char*>(outputs[row].data);
  }
  job.length_bytes = length_bytes;
  job.source_count = static_cast<std::uint32_t>(sources.size());
  job.to_sum = to_sum;
  return job;
}

bool is_first_plain(const ParityJob& job) {
  return std::all_of(job.coefficients[0], job.coefficients[0] + job.source_count,
                     [](std::uint8_t coefficient) { return coefficient == 1; });
}

}  // namespace ckpt::kernels::device
