#include "kernels/parity_job.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::kernels::device {

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
  for (std::size_t column = 0; column < sources.size(); ++column) {
    job.sources[column] = {reinterpret_cast<const unsigned char*>(sources[column].data),
                           std::min(sources[column].size_bytes, length_bytes)};
    for (std::size_t row = 0; row < matrix.rows; ++row) job.coefficients[row][column] = matrix.at(row, column);
  }
  for (std::size_t row = 0; row < outputs.size(); ++row) {
    job.outputs[row] = reinterpret_cast<unsigned char*>(outputs[row].data);
  }
  job.length_bytes = length_bytes;
  job.source_count = static_cast<std::uint32_t>(sources.size());
  job.to_sum = to_sum;
  return job;
}

bool is_xor(const ParityJob& job, std::size_t rows) {
  return rows == 1 && std::all_of(job.coefficients[0], job.coefficients[0] + job.source_count,
                                  [](std::uint8_t coefficient) { return coefficient == 1; });
}

}  // namespace ckpt::kernels::device
